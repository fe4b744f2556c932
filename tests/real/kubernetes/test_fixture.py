"""Tests the cluster that other tests build on: it accepts manifests and runs pods as Kubernetes does, and is cleaned up."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.real import archives
from tests.real.slurm.leftovers import leftovers, pid_namespace
from tests.real.slurm.machine import leashed

from . import programs
from .cgroups import groups_named
from .control_plane import ControlPlane, KubectlError, KubernetesError, Object
from .image import IMAGE
from .node import RealNodes

REPOSITORY = Path(__file__).parents[3]
START_S = 60.0
JOBSET_LABELS = {"jobset-name", "jobset-uid", "job-index", "job-key", "replicatedjob-name", "restart-attempt"}

MEETING = """
import os, socket, sys, time
index = int(os.environ["JOB_COMPLETION_INDEX"])
if index == 0:
    with socket.create_server(("", 29500)) as server:
        peer = server.accept()[0]
else:
    while True:
        try:
            peer = socket.create_connection(("pair-workers-0-0.pair", 29500), 1)
            peer.settimeout(None)
            break
        except OSError:
            time.sleep(0.1)
with peer:
    peer.sendall(socket.gethostname().encode() + b"\\n")
    answers = peer.makefile()
    print("met", answers.readline().strip(), "on", os.environ["NODE"], flush=True)
    if "stay" in sys.argv:
        sys.exit(f"the other said {answers.readline()!r}")
"""

IMPORTS_TORCH = "import sys, torch; print(torch.ones(3).sum().item(), torch.__version__, sys.executable)"

HOLDS_A_CLUSTER = """
import json, signal, sys
from pathlib import Path
from tests.real.kubernetes.control_plane import ControlPlane
from tests.real.kubernetes.node import RealNodes
from tests.real.kubernetes.test_fixture import pod, pod_spec

with ControlPlane() as plane, RealNodes(plane, Path(sys.argv[1]), count=1) as nodes:
    plane.apply(pod("sleeper", pod_spec(nodes, "sleep", "600")))
    plane.wait("pod", lambda: plane.objects("pods")[0]["status"]["phase"], lambda phase: phase == "Running", 60)
    pids = [host.pid for host in (plane.host, *nodes.hosts.values())]
    print(json.dumps({"roots": [str(plane.root), str(nodes.root)], "pids": pids}), flush=True)
    signal.pause()
"""


def pod_spec(nodes: RealNodes, *command: str) -> Object:
    """A pod that looks like this machine and runs `command` to its end."""
    mounts = {f"mount-{number}": mount for number, mount in enumerate(nodes.mounts)}
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "volumeMounts": [mount.volume_mount(name) for name, mount in mounts.items()],
    }
    volumes = [mount.volume(name) for name, mount in mounts.items()]
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes}


def pod(name: str, spec: Object) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def jobset(name: str, spec: Object, **extra: object) -> str:
    """Two pods, each on a separate node."""
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": name}}}
    spread = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}}
    job = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": {"spec": spec | spread}}
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "workers", "template": {"spec": job}}], **extra},
    }
    return json.dumps(document)


SLEEPER: Object = {"restartPolicy": "Never", "containers": [{"name": "main", "image": IMAGE, "command": ["sleep", "600"]}]}


# --- manifests --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.fixture
def test_manifest_with_an_unknown_field_is_rejected(control_plane: ControlPlane) -> None:
    control_plane.dry_run(jobset("right", SLEEPER))
    with pytest.raises(KubectlError, match=r'unknown field "spec\.sucessPolicy"'):
        control_plane.dry_run(jobset("wrong", SLEEPER, sucessPolicy={"operator": "All"}))
    with pytest.raises(KubectlError, match=r"(?s)\.spec\.sucessPolicy.*field not declared in schema"):
        control_plane.apply(jobset("wrong", SLEEPER, sucessPolicy={"operator": "All"}))


@pytest.mark.slow
@pytest.mark.fixture
def test_jobset_webhooks_are_called(control_plane: ControlPlane) -> None:
    (stored,) = control_plane.dry_run(jobset("defaulted", SLEEPER))
    assert stored["spec"]["replicatedJobs"][0]["template"]["spec"]["completionMode"] == "Indexed"
    with pytest.raises(KubectlError, match="JobSet name is too long"):
        control_plane.dry_run(jobset("a" * 60, SLEEPER))


@pytest.mark.slow
@pytest.mark.fixture
def test_dry_run_creates_nothing(control_plane: ControlPlane) -> None:
    assert len(control_plane.dry_run(jobset("one", SLEEPER) + "\n---\n" + pod("two", SLEEPER))) == 2
    assert control_plane.objects("jobsets,pods") == []


@pytest.mark.slow
@pytest.mark.fixture
def test_the_real_controller_creates_labeled_pods(control_plane: ControlPlane) -> None:
    with control_plane.namespace() as name:
        control_plane.apply(jobset("labelled", SLEEPER), "-n", name)
        pods = control_plane.wait(
            "two pods", lambda: control_plane.objects("pods", "-n", name), lambda found: len(found) == 2, START_S
        )
        for found in pods:
            labels = found["metadata"]["labels"]
            assert {f"jobset.sigs.k8s.io/{label}" for label in JOBSET_LABELS} - set(labels) == set()
            assert labels["jobset.sigs.k8s.io/restart-attempt"] == "0"
        assert sorted(found["spec"]["hostname"] for found in pods) == ["labelled-workers-0-0", "labelled-workers-0-1"]


@pytest.mark.slow
@pytest.mark.fixture
def test_a_service_account_has_only_the_rights_of_its_roles(control_plane: ControlPlane) -> None:
    asked = ("auth", "can-i", "list", "pods", "--as=system:serviceaccount:default:default")
    with pytest.raises(KubectlError, match="no"):
        control_plane.kubectl(*asked)


@pytest.mark.slow
@pytest.mark.fixture
def test_waiting_times_out_and_shows_the_cluster(control_plane: ControlPlane) -> None:
    with pytest.raises(KubernetesError, match=r"(?s)waited 0.1 s for nothing, found 0\n.*"):
        control_plane.wait("nothing", lambda: 0, bool, 0.1)


# --- pods -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.fixture
def test_two_pods_on_two_nodes_find_each_other_by_jobset_names_and_end(
    control_plane: ControlPlane, real_nodes: RealNodes
) -> None:
    with control_plane.namespace() as name:
        spec = pod_spec(real_nodes, "python3", "-c", MEETING)
        control_plane.apply(jobset("pair", spec, network={"publishNotReadyAddresses": True}), "-n", name)
        wait_for_end(control_plane, name, count=2)
        said = logs_of_pair(control_plane, name)
        control_plane.wait_condition("jobset/pair", "Completed", "True", START_S, name)
    assert {line.rpartition(" on ")[0] for line in said} == {"met pair-workers-0-0", "met pair-workers-0-1"}
    assert {line.rpartition(" on ")[2] for line in said} == {"n1", "n2"}


@pytest.mark.slow
@pytest.mark.fixture
def test_pod_imports_torch_from_here_and_writes_world_readable_files(control_plane: ControlPlane, real_nodes: RealNodes) -> None:
    written = real_nodes.runs / "torch"
    with control_plane.namespace() as name:
        command = f"import pathlib; pathlib.Path({str(written)!r}).write_text('seen')\n{IMPORTS_TORCH}"
        control_plane.apply(pod("torch", pod_spec(real_nodes, sys.executable, "-c", command)), "-n", name)
        wait_for_end(control_plane, name, count=1)
        said = control_plane.kubectl("logs", "-n", name, "torch").split()
    assert said[0] == "3.0"
    assert said[2] == sys.executable
    assert written.read_text() == "seen"


@pytest.mark.slow
@pytest.mark.fixture
def test_lost_node_sends_nothing_and_runs_pods_again_when_it_returns(control_plane: ControlPlane, real_nodes: RealNodes) -> None:
    with control_plane.namespace() as name:
        spec = pod_spec(real_nodes, "python3", "-c", MEETING, "stay")
        control_plane.apply(jobset("pair", spec, network={"publishNotReadyAddresses": True}), "-n", name)
        control_plane.wait("meeting", lambda: logs_of_pair(control_plane, name), lambda lines: len(lines) == 2, START_S)
        try:
            with pid_namespaces(real_nodes.hosts["n2"].pid) as lost:
                real_nodes.power_off("n2")
                assert leftovers(Path("/nothing/has/this/name"), lost) == []
            control_plane.wait_condition("node/n2", "Ready", "Unknown", START_S)
            (survivor,) = control_plane.objects("pods", "-n", name, "--field-selector=spec.nodeName=n1")
            assert survivor["status"]["phase"] == "Running"
        finally:
            real_nodes.power_on("n2")
    with control_plane.namespace() as name:
        spec = pod_spec(real_nodes, "python3", "-c", "print(1)")
        control_plane.apply(pod("after", spec | {"nodeSelector": {"kubernetes.io/hostname": "n2"}}), "-n", name)
        wait_for_end(control_plane, name, count=1)


def logs_of_pair(plane: ControlPlane, namespace: str) -> list[str]:
    names = [found["metadata"]["name"] for found in plane.objects("pods", "-n", namespace) if is_started(found)]
    return [line for name in names for line in plane.kubectl("logs", "-n", namespace, name).splitlines()]


def is_started(found: Object) -> bool:
    return bool(found["status"]["phase"] in {"Running", "Succeeded", "Failed"})


def wait_for_end(plane: ControlPlane, namespace: str, count: int) -> None:
    """Wait until `count` pods have succeeded; report their output if one failed."""

    def phases() -> list[str]:
        return [pod["status"]["phase"] for pod in plane.objects("pods", "-n", namespace)]

    ended = plane.wait("end of pods", phases, lambda found: len(found) == count and {*found} <= {"Succeeded", "Failed"}, START_S)
    if "Failed" in ended:
        names = [pod["metadata"]["name"] for pod in plane.objects("pods", "-n", namespace)]
        pytest.fail("\n".join(plane.kubectl("logs", "-n", namespace, name) for name in names))


# --- cleanup ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.fixture
def test_second_cluster_runs_in_parallel_and_is_cleaned_up(real_nodes: RealNodes, tmp_path: Path) -> None:
    with contextlib.ExitStack() as until_looked_at:
        with ControlPlane() as plane, RealNodes(plane, tmp_path, count=1) as nodes:
            plane.apply(pod("sleeper", pod_spec(nodes, "sleep", "600")))
            plane.wait("pod", lambda: phase(plane, "sleeper"), lambda found: found == "Running", START_S)
            namespaces = until_looked_at.enter_context(pid_namespaces(plane.host.pid, nodes.hosts["n1"].pid))
            roots = [plane.root, nodes.root]
            running = left_of(roots, namespaces)
            assert any("kube-apiserver" in line for line in running)
            assert any("containerd" in line for line in running)
            assert any(line.startswith("control group") for line in running)
            assert [node["metadata"]["name"] for node in plane.objects("nodes")] == ["n1"]
            assert len(real_nodes.plane.objects("nodes")) == 2
        assert left_of(roots, namespaces) == []


@pytest.mark.slow
@pytest.mark.fixture
def test_node_that_cannot_start_is_reported_and_cleaned_up(real_nodes_here: None, tmp_path: Path) -> None:
    with ControlPlane(controllers=()) as plane:
        nodes = RealNodes(plane, tmp_path / "absent", count=1)
        with pytest.raises(RuntimeError, match=r"(?s)`n1` did not come up; its console:\n.*absent"), nodes:
            pytest.fail("a node started with a folder that is not there")
        assert left_of([nodes.root], set()) == []
        assert plane.objects("nodes") == []


@pytest.mark.slow
@pytest.mark.fixture
def test_killed_process_is_cleaned_up(real_nodes_here: None, tmp_path: Path) -> None:
    with held_cluster(tmp_path) as (holder, roots, namespaces):
        assert len(left_of(roots, namespaces)) > 3
        holder.kill()
        holder.wait(timeout=START_S)
        assert wait_until_gone(roots, namespaces) == []


def phase(plane: ControlPlane, name: str) -> str:
    return plane.kubectl("get", "pod", name, "--output=jsonpath={.status.phase}")


@contextlib.contextmanager
def pid_namespaces(*pids: int) -> Iterator[set[str]]:
    """The names of these processes' namespaces, kept open: the kernel reuses the name of one that has ended."""
    with contextlib.ExitStack() as stack:
        for pid in pids:
            stack.enter_context(Path(f"/proc/{pid}/ns/pid").open("rb", buffering=0))
        yield {pid_namespace(pid) for pid in pids}


def left_of(roots: list[Path], namespaces: Collection[str]) -> list[str]:
    found = [line for root in roots for line in leftovers(root, namespaces)]
    return found + [f"control group {path}" for root in roots for path in groups_named(root.name)]


def wait_until_gone(roots: list[Path], namespaces: Collection[str]) -> list[str]:
    deadline = time.monotonic() + 20
    while (left := left_of(roots, namespaces)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@contextlib.contextmanager
def held_cluster(runs: Path) -> Iterator[tuple[subprocess.Popen[str], list[Path], set[str]]]:
    """A process with a cluster and a running pod, the cluster's folders and PID namespaces; the process is killed in the end."""
    command = leashed([sys.executable, "-c", HOLDS_A_CLUSTER, str(runs)])
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as holder:
        try:
            assert holder.stdout is not None
            line = holder.stdout.readline()
            assert line.startswith("{"), line + holder.stdout.read()
            held = json.loads(line)
            with pid_namespaces(*held["pids"]) as namespaces:
                yield holder, [Path(root) for root in held["roots"]], namespaces
        finally:
            holder.kill()


# --- parts ------------------------------------------------------------------------------------------------------------


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(archives, "ARCHIVES", tmp_path)
    monkeypatch.setattr(programs, "SEARCH_PATH", "/nonexistent")
    assert programs.control_plane_obstacle() == "run `apt-get install iproute2 openssl`"
    with pytest.raises(FileNotFoundError, match="`coredns`, `kubelet` not found; put their releases on PATH"):
        programs.node_programs()
    with pytest.raises(FileNotFoundError, match="run `apt-get install busybox-static`"):
        programs.busybox()
