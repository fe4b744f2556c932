"""Tests a rendered manifest on a real Kubernetes: its controllers create pods, which run and train as `headway run` does."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from headway.cli.documents import load_job_plan
from headway.templates.schedulers.kubernetes.yaml_text import quote
from tests.faults.processes import Process, companions, processes_of, worker
from tests.faults.runs import LIMIT_S, Run, only_run, wait_for_step, wait_until
from tests.real.conftest import STORY, run_here
from tests.support import LIGHT

from .control_plane import ControlPlane, KubectlError, Object
from .image import IMAGE
from .node import RealNodes

pytestmark = pytest.mark.slow

JOB = (STORY / "job.yaml").read_text()
# Trained in pods: all sequences of a rank at once.
QUICK = JOB.replace("micro: 1\n", "micro: 8\n")
SPARED = JOB.replace("nodes: 2", "nodes: 1") + "\nresilience: {spares: 1}\n"
STEPS = list(range(1, 31))
# Two attempts, and the half minute in which the second node may still return.
END_S = 300
CPU_NODES = "node_groups: [{name: cpu, count: 2, cpus: 1, procs: 1}]"
GPU_NODES = """\
node_groups: [{name: gpu, count: 2, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [mlx5_0, mlx5_1]}]
fabrics:
  - {name: rails, role: scale-out, transport: roce, classes: [{name: roce, carries: collectives, dscp: 26, lossless: true}]}
  - {name: admin, role: management, transport: tcp, interface: bond0}
"""
CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: pods
scheduler: {{kind: kubernetes, options: {options}}}
storage: [{{name: runs, kind: posix, path: {runs}, shared: true}}]
{nodes}
"""
NOWHERE: Object = {
    "image": IMAGE,
    "mounts": [{"path": "/scratch", "claim": "scratch"}],
    "node_selector": {"no-node-has-this": "true"},
}
EVERYTHING: Object = {
    "image": "registry.example.com/headway@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "image_pull_policy": "IfNotPresent",
    "service_account": "default",
    "setup": ["ulimit -l"],
    "mounts": [{"path": "/scratch", "claim": "scratch"}, {"path": "/data", "host_path": "/mnt/data", "read_only": True}],
    "memory": "1536Gi",
    "rdma": {"resource": "rdma/hca_shared_devices_a"},
    "host_network": True,
    "node_selector": {"pool": "training"},
    "tolerations": [
        {"key": "nvidia.com/gpu"},
        {"key": "pool", "value": "training", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "seconds": 30},
    ],
    "user": 1000,
    "group": 1000,
}
ASKED: Object = NOWHERE | {
    "local_queue": "research",
    "priority_class": "high",
    "labels": {"team": "nlp"},
    "annotations": {"karpenter.sh/do-not-disrupt": "true"},
    "image_pull_secrets": ["registry"],
    "runtime_class": "nvidia",
    "restricted": True,
    "user": 1000,
    "fs_group": 1000,
    "pod": {"schedulerName": "volcano", "volumes": [{"name": "cache", "emptyDir": {}}], "affinity": {"nodeAffinity": {}}},
    "container": {
        "env": [{"name": "SITE", "value": "a"}],
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
        "resources": {"limits": {"hugepages-2Mi": "64Mi"}, "requests": {"hugepages-2Mi": "64Mi"}},
    },
}


def manifest(folder: Path, options: Object, *, nodes: str = CPU_NODES, runs: str = "/scratch/runs", job: str = JOB) -> str:
    """The job's manifest on a cluster with these options; the documents are written to `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "cluster.yaml").write_text(CLUSTER.format(options=quote(options), runs=quote(runs), nodes=nodes))
    (folder / "job.yaml").write_text(re.sub(r"cluster: .*", "cluster: pods", job))
    planned = load_job_plan(folder / "job.yaml")
    assert planned is not None
    (text,) = [text for path, text in planned.files().items() if path.suffix == ".yaml"]
    return text


def job_of(text: str) -> str:
    """The Job to be created from the manifest's JobSet, whose webhook does not check everything in it."""
    (found,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "JobSet"]
    (replicated,) = found["spec"]["replicatedJobs"]
    metadata = {"name": found["metadata"]["name"], "namespace": found["metadata"]["namespace"]}
    return json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, **replicated["template"]})


def annotations_of(jobset: Object) -> dict[str, str]:
    """The annotations of its pods, with the contents of their files."""
    (job,) = jobset["spec"]["replicatedJobs"]
    found: dict[str, str] = job["template"]["spec"]["template"]["metadata"]["annotations"]
    return found


def pod_of(text: str) -> str:
    """A pod to be created from that Job."""
    job = json.loads(job_of(text))
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": job["metadata"], "spec": job["spec"]["template"]["spec"]})


def jobset(plane: ControlPlane, namespace: str) -> Object:
    (found,) = plane.objects("jobsets", "-n", namespace)
    return found


def await_state(plane: ControlPlane, namespace: str, state: str) -> Object:
    """The JobSet's final status, which must be `state`."""

    def status() -> Object:
        found: Object = jobset(plane, namespace).get("status", {})
        return found

    ended = plane.wait(f"{state} JobSet", status, lambda found: "terminalState" in found, END_S)
    assert ended["terminalState"] == state, plane.situation()
    return ended


def pods_of(plane: ControlPlane, namespace: str, attempt: int) -> list[Object]:
    """The two pods of an attempt by their index, once both exist."""
    selector = f"--selector=jobset.sigs.k8s.io/restart-attempt={attempt}"
    found = plane.wait(
        f"pods of attempt {attempt}",
        lambda: plane.objects("pods", "-n", namespace, selector),
        lambda pods: len(pods) == 2,
        LIMIT_S,
    )
    return sorted(found, key=lambda pod: str(pod["spec"]["hostname"]))


# --- API server and controllers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "nodes"), [(NOWHERE, CPU_NODES), (EVERYTHING, CPU_NODES), (EVERYTHING, GPU_NODES), (ASKED, CPU_NODES)]
)
def test_the_manifest_is_accepted_unchanged(control_plane: ControlPlane, tmp_path: Path, options: Object, nodes: str) -> None:
    text = manifest(tmp_path, options, nodes=nodes)
    stored = control_plane.dry_run(text)
    assert [each["kind"] for each in stored] == [each["kind"] for each in yaml.safe_load_all(text)]
    (job,) = control_plane.dry_run(job_of(text))
    assert job["kind"] == "Job"


@pytest.mark.parametrize(
    ("taken", "refused"),
    [
        ('"path": "/mnt/data"', '"path": "/mnt/../data"'),
        ('serviceAccountName: "default"', 'serviceAccountName: "a..b"'),
        ('{"pool": "training"}', '{"a..b/x": "training"}'),
        ('"rdma/hca_shared_devices_a"', '"a..b/x"'),
    ],
)
def test_invalid_options_are_rejected_only_when_pods_are_created(
    control_plane: ControlPlane, tmp_path: Path, taken: str, refused: str
) -> None:
    text = manifest(tmp_path, EVERYTHING)
    assert taken in text
    spoilt = text.replace(taken, refused)
    control_plane.dry_run(spoilt)
    with pytest.raises(KubectlError, match="Invalid value"):
        control_plane.dry_run(job_of(spoilt))


def test_pod_security_level_baseline_forbids_what_the_header_names(control_plane: ControlPlane, tmp_path: Path) -> None:
    with control_plane.namespace() as namespace:
        control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=baseline")
        control_plane.dry_run(pod_of(manifest(tmp_path, NOWHERE | {"namespace": namespace, "service_account": "default"})))
        with pytest.raises(KubectlError, match="violates PodSecurity") as found:
            control_plane.dry_run(pod_of(manifest(tmp_path, EVERYTHING | {"namespace": namespace})))
        assert re.findall(r"IPC_LOCK|hostNetwork|hostPath", str(found.value)) == ["IPC_LOCK", "hostNetwork", "hostPath"]


def test_pod_security_level_restricted_accepts_compliant_pods(control_plane: ControlPlane, tmp_path: Path) -> None:
    with control_plane.namespace() as namespace:
        control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        options = NOWHERE | {"namespace": namespace, "service_account": "default"}
        with pytest.raises(KubectlError, match="violates PodSecurity"):
            control_plane.dry_run(pod_of(manifest(tmp_path, options)))
        control_plane.dry_run(pod_of(manifest(tmp_path, options | {"restricted": True, "user": 1000})))


def test_hostile_values_arrive_unchanged(control_plane: ControlPlane, tmp_path: Path) -> None:
    hostile = 'it\'s "a": #b $(HOME) $$ {x} \\ \u2028\x85\ufeff\x7f\U0001f642'
    options = NOWHERE | {"setup": [f": '{hostile}'", "- &a *a !!b", "\tindented", "yes"]}
    text = manifest(tmp_path, options, runs='/scratch/{it\'s} "a": #b é')
    (stored,), rendered = control_plane.dry_run(text), yaml.safe_load(text)
    assert annotations_of(stored) == annotations_of(rendered)
    assert hostile in annotations_of(stored)["headway/pod.sh"]


@pytest.mark.parametrize("options", [NOWHERE, EVERYTHING])
def test_the_controllers_pods_are_the_nodes_passed_to_the_runner(
    control_plane: ControlPlane, tmp_path: Path, options: Object
) -> None:
    with control_plane.namespace() as namespace:
        unplaced = options | {"namespace": namespace, "node_selector": NOWHERE["node_selector"]}
        control_plane.apply(manifest(tmp_path, unplaced))
        pods = pods_of(control_plane, namespace, 0)
        assert [pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for pod in pods] == ["0", "1"]
        assert configured_nodes(pods[0]) == [f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}" for pod in pods]
        (service,) = control_plane.objects("services", "-n", namespace)
        assert service["metadata"]["name"] == pods[0]["spec"]["subdomain"]
        assert service["metadata"]["ownerReferences"][0]["kind"] == "JobSet"
        assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
        for pod in pods:
            (container,) = pod["spec"]["containers"]
            assert not [mount for mount in container["volumeMounts"] if "serviceaccount" in mount["mountPath"]]
            assert "jobset.sigs.k8s.io/jobset-uid" in pod["metadata"]["labels"]
        # Nothing remains of a deleted JobSet.
        control_plane.kubectl("delete", "jobsets", "--all", "-n", namespace)
        kinds = "jobsets,jobs,services,configmaps,secrets"
        control_plane.wait(
            "an empty namespace",
            lambda: [each["metadata"]["name"] for each in control_plane.objects(kinds, "-n", namespace)],
            lambda names: names == ["kube-root-ca.crt"],
            LIMIT_S,
        )


def configured_nodes(pod: Object) -> list[str]:
    """HEADWAY_NODES as the pod's script sets it."""
    (lines,) = re.findall(
        r"^(HEADWAY_NODES=''.*?)^export", pod["metadata"]["annotations"]["headway/pod.sh"], re.DOTALL | re.MULTILINE
    )
    variables = {"HEADWAY_JOBSET": pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"]}
    script = f'{lines}echo "$HEADWAY_NODES"'
    found = subprocess.run(["sh", "-euc", script], env=variables, capture_output=True, text=True, check=True)
    return found.stdout.strip().split(",")


def end_pod(plane: ControlPlane, pod: Object, exit_code: int) -> None:
    """Report what a kubelet reports about a pod that has ended."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    ended = {"name": "runner", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0}
    state = {"terminated": {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed"}}
    phase = "Failed" if exit_code else "Succeeded"
    patch = {"status": {"phase": phase, "containerStatuses": [ended | {"state": state}]}}
    plane.kubectl("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", json.dumps(patch))


@pytest.mark.parametrize("code", [83, *(pytest.param(code, marks=pytest.mark.variant) for code in (84, 85))])
def test_a_verdict_to_stop_ends_the_jobset(control_plane: ControlPlane, tmp_path: Path, code: int) -> None:
    with control_plane.namespace() as namespace:
        control_plane.apply(manifest(tmp_path, NOWHERE | {"namespace": namespace}))
        end_pod(control_plane, pods_of(control_plane, namespace, 0)[1], code)
        ended = await_state(control_plane, namespace, "Failed")
        assert ended["restarts"] == 0


@pytest.mark.parametrize("code", [80, 137, *(pytest.param(code, marks=pytest.mark.variant) for code in (81, 82, 1))])
def test_any_other_failure_starts_the_next_attempt_of_the_same_run(
    control_plane: ControlPlane, tmp_path: Path, code: int
) -> None:
    with control_plane.namespace() as namespace:
        control_plane.apply(manifest(tmp_path, NOWHERE | {"namespace": namespace, "max_restarts": 1}))
        first = pods_of(control_plane, namespace, 0)
        end_pod(control_plane, first[0], code)
        second = pods_of(control_plane, namespace, 1)
        uids = {pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-uid"] for pod in first + second}
        assert uids == {jobset(control_plane, namespace)["metadata"]["uid"]}
        for pod in second:
            end_pod(control_plane, pod, 0)
        assert await_state(control_plane, namespace, "Completed")["restarts"] == 1


def test_with_spares_a_killed_pod_returns_in_the_same_attempt(control_plane: ControlPlane, tmp_path: Path) -> None:
    with control_plane.namespace() as namespace:
        control_plane.apply(manifest(tmp_path, NOWHERE | {"namespace": namespace}, job=SPARED))
        lost, other = pods_of(control_plane, namespace, 0)
        end_pod(control_plane, lost, 137)
        again = control_plane.wait(
            "another pod of the same index",
            lambda: [each for each in pods(control_plane, namespace) if each["metadata"]["name"] != other["metadata"]["name"]],
            lambda found: any(each["metadata"]["uid"] != lost["metadata"]["uid"] for each in found),
            LIMIT_S,
        )
        (new,) = [each for each in again if each["metadata"]["uid"] != lost["metadata"]["uid"]]
        assert new["spec"]["hostname"] == lost["spec"]["hostname"]
        for pod in (other, new):
            end_pod(control_plane, pod, 0)
        assert await_state(control_plane, namespace, "Completed")["restarts"] == 0


def test_with_spares_a_verdict_still_ends_the_attempt_or_the_run(control_plane: ControlPlane, tmp_path: Path) -> None:
    with control_plane.namespace() as namespace:
        control_plane.apply(manifest(tmp_path, NOWHERE | {"namespace": namespace}, job=SPARED))
        end_pod(control_plane, pods_of(control_plane, namespace, 0)[1], 82)
        end_pod(control_plane, pods_of(control_plane, namespace, 1)[0], 83)
        assert await_state(control_plane, namespace, "Failed")["restarts"] == 1


def pods(plane: ControlPlane, namespace: str) -> list[Object]:
    """All pods of the namespace, including ended ones."""
    return plane.objects("pods", "-n", namespace)


def test_restarts_are_bounded_and_time_limits_do_not_count(control_plane: ControlPlane, tmp_path: Path) -> None:
    with control_plane.namespace() as namespace:
        text = manifest(tmp_path, NOWHERE | {"namespace": namespace, "max_restarts": 0})
        assert "activeDeadlineSeconds: 1800\n" in text
        control_plane.apply(text.replace("activeDeadlineSeconds: 1800\n", "activeDeadlineSeconds: 2\n"))
        end_pod(control_plane, pods_of(control_plane, namespace, 1)[0], 81)
        ended = await_state(control_plane, namespace, "Failed")
        assert (ended["restarts"], ended.get("restartsCountTowardsMax", 0)) == (1, 0)


def test_a_changed_configuration_with_the_same_name_is_rejected(control_plane: ControlPlane, tmp_path: Path) -> None:
    with control_plane.namespace() as namespace:
        text = manifest(tmp_path, NOWHERE | {"namespace": namespace})
        control_plane.apply(text)
        control_plane.apply(text)
        with pytest.raises(KubectlError, match="immutable"):
            control_plane.apply(text.replace('"steps": 30', '"steps": 31'))


# --- runs in pods -----------------------------------------------------------------------------------------------------

# A rank without torch: the ranks connect at the address that they are given, as torch.distributed does. A rank saves when asked to stop,
# and ends when the test releases it.
RANK = """\
import os, signal, socket, sys, time
from pathlib import Path

directory, rank = Path(sys.argv[1]), os.environ["RANK"]

def note(text):
    with (directory / "ranks").open("a") as file:
        file.write(f"{rank} {text}\\n")

def save(*_):
    note("saved")
    sys.exit()

signal.signal(signal.SIGTERM, save)
# The agent listens on MASTER_PORT.
place = os.environ["MASTER_ADDR"], 29999
if rank == "0":
    with socket.create_server(("", place[1])) as server:
        server.accept()
else:
    while True:
        try:
            socket.create_connection(place).close()
            break
        except OSError:
            time.sleep(0.1)
note("started")
while not (directory.parent / "go").exists():
    time.sleep(0.1)
note("ended")
"""


@pytest.fixture
def runs(real_nodes: RealNodes, request: pytest.FixtureRequest) -> Path:
    """The location of the test's run: below the folder that both nodes share."""
    folder: Path = real_nodes.runs / request.node.name
    folder.mkdir()
    return folder


Submits = Callable[[str], None]


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    with control_plane.namespace() as name:
        yield name
        control_plane.kubectl("delete", "jobsets", "--all", "-n", name)


@pytest.fixture
def submit(control_plane: ControlPlane, namespace: str, real_nodes: RealNodes, runs: Path, tmp_path: Path) -> Submits:
    """Submit a job to nodes whose pods find this machine's Python by the option `setup`."""
    mounts = [{"path": str(m.path), "host_path": str(m.host_path), "read_only": m.read_only} for m in real_nodes.mounts]
    options = {"namespace": namespace, "image": IMAGE, "image_pull_policy": "Never", "mounts": mounts}
    # Without standbys, whose imports take longer than the run; and with time for kubectl before its end.
    light = f"export HEADWAY_STANDBY=0 PYTHONPATH={LIGHT} LIGHT_STEP_S=0.2 OMP_WAIT_POLICY=PASSIVE"
    options["setup"] = [f"PATH={sys.prefix}/bin:$PATH", light]
    return lambda job: control_plane.apply(manifest(tmp_path, options, runs=str(runs), job=job))


def runner_in(run: Run, index: int) -> Process:
    """The runner's first process in the pod with this index."""
    (found,) = [
        each for each in companions(run.directory, "headway.runner") if each.environment["JOB_COMPLETION_INDEX"] == str(index)
    ]
    return found


def test_pods_survive_kills_and_a_deleted_one_saves(
    control_plane: ControlPlane, namespace: str, submit: Submits, runs: Path
) -> None:
    (runs / "rank.py").write_text(RANK)
    head = JOB.partition("\nmodel:")[0]
    words = json.dumps(["python3", str(runs / "rank.py"), "{run_directory}"])
    submit(f"{head}\ntrainer: {{kind: script, options: {{python: false, argv: {words}}}}}\n")

    def lines(of: str) -> int:
        return sum(path.read_text().count(of) for path in runs.glob("*/ranks"))

    wait_until(lambda: lines("started") == 2, "both ranks")
    run, pods = only_run(runs), pods_of(control_plane, namespace, 0)
    uid = jobset(control_plane, namespace)["metadata"]["uid"]
    assert run.directory.name == f"{jobset(control_plane, namespace)['metadata']['name']}-{uid.replace('-', '')}"
    (start,) = run.journal("start")
    assert [node["host"] for node in start["nodes"]] == [f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}" for pod in pods]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    # A killed rank: another generation in the same pods.
    worker(run.directory, rank=1).kill()
    wait_until(lambda: lines("started") == 4, "another generation")
    (failure,) = run.journal("failure")
    assert (failure["cause"], failure["rank"]) == ("killed by SIGKILL", 1)
    assert jobset(control_plane, namespace)["status"].get("restarts", 0) == 0
    # A killed runner: its pod has failed, and the next attempt begins.
    runner_in(run, 1).kill()
    wait_until(lambda: lines("started") == 6, "another attempt")
    assert jobset(control_plane, namespace)["status"]["restarts"] == 1
    # A deleted pod: both ranks save before the next attempt.
    before = lines("saved")
    name = pods_of(control_plane, namespace, 1)[1]["metadata"]["name"]
    control_plane.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
    wait_until(lambda: lines("started") == 8, "a third attempt")
    assert lines("saved") == before + 2
    assert run.verdict(attempt=1)["verdict"] == "preempted"
    (runs / "go").touch()
    assert await_state(control_plane, namespace, "Completed")["restarts"] == 2
    assert run.verdict(attempt=2)["verdict"] == "completed"
    wait_until(lambda: not processes_of(run.directory), "the end of every process")


# --- training in pods -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("local")
    shutil.copytree(STORY, folder, dirs_exist_ok=True)
    (folder / "job.yaml").write_text(QUICK)
    return run_here(folder / "job.yaml", folder / "runs")


@pytest.mark.variant
def test_training_in_pods_survives_kills_and_ends_in_the_state_of_a_local_run(
    control_plane: ControlPlane, namespace: str, submit: Submits, local: Run, runs: Path
) -> None:
    submit(QUICK)
    run = wait_for_step(runs, 4)
    worker(run.directory, rank=1).kill()
    wait_until(lambda: len(run.journal("start")) == 2, "another generation in the same pods")
    wait_for_step(runs, 14)
    runner_in(run, 1).kill()
    assert await_state(control_plane, namespace, "Completed")["restarts"] == 1
    assert run.verdict(attempt=1)["verdict"] == "completed"
    assert run.hashes() == local.hashes()
    assert run.steps()[-1] == STEPS[-1]


@pytest.mark.variant
def test_a_deleted_pod_saves_its_current_step(
    control_plane: ControlPlane, namespace: str, submit: Submits, local: Run, runs: Path
) -> None:
    submit(QUICK)
    name = pods_of(control_plane, namespace, 0)[1]["metadata"]["name"]
    run = wait_for_step(runs, 14)
    control_plane.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
    assert await_state(control_plane, namespace, "Completed")["restarts"] == 1
    assert run.verdict(attempt=0)["verdict"] == "preempted"
    assert run.journal("claim")[1]["base"]["step"] >= 14, "it saved where it stood"
    assert run.hashes() == local.hashes()
    assert run.steps() == STEPS
    wait_until(lambda: not processes_of(run.directory), "the end of every process")
