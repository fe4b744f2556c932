"""The manifest: its requests to Kubernetes, the quoting of values, and the script of a pod."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import ValidationError

from headway.cli.documents import load_job_plan
from headway.compile import PlannedJob
from headway.jobspec.plan import EnvVar
from headway.runner.contract import RunConfig, from_json, with_shared
from headway.templates.schedulers.kubernetes.options import KubernetesOptions
from headway.templates.schedulers.kubernetes.render import render
from headway.templates.schedulers.kubernetes.yaml_text import block, comment, quote

Object = dict[str, Any]

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {{kind: kubernetes, options: {options}}}
storage: [{{name: runs, kind: posix, path: {runs}, shared: true}}]
{nodes}
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: lab
nodes: 2
model: {vocab_size: 256, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn_hidden: 176}
data: {kind: files, options: {paths: ["it's/*.txt"]}}
batch: {global: 16 sequences, micro: 1, sequence: 128}
optimizer: {lr: 0.003}
steps: 100
checkpoint: {tiers: [{kind: shared, every: 10 steps}]}
resilience: {grace: 12.5s}
"""
CPUS = "node_groups: [{name: cpu, count: 2, cpus: 4, procs: 2}]"
GPUS = """\
node_groups: [{name: gpu, count: 2, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [mlx5_0, mlx5_1]}]
fabrics:
  - {name: rails, role: scale-out, transport: roce, classes: [{name: roce, carries: collectives, dscp: 26, lossless: true}]}
"""
LEAST: Object = {"image": "registry.example.com/headway:1", "mounts": [{"path": "/scratch", "claim": "scratch"}]}
# Values that YAML, a shell or Kubernetes would misinterpret.
HOSTILE = [
    "it's",
    'a "b" \\',
    "a: b #c",
    "$(HOME) $$ ${X}",
    "- &a *a !!x %y @z `w`",
    "yes",
    "0x10",
    "{",
    "\u2028\x85\ufeff\x7f\x07",
    "☃ 🙂",
]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def planned(folder: Path, options: Object, *, nodes: str = CPUS, runs: str = "/scratch/runs", job: str = JOB) -> PlannedJob:
    (folder / "cluster.yaml").write_text(CLUSTER.format(options=json.dumps(options), runs=json.dumps(runs), nodes=nodes))
    (folder / "job.yaml").write_text(job)
    found = load_job_plan(folder / "job.yaml")
    assert found is not None
    return found


def manifest(folder: Path, options: Object, **documents: str) -> str:
    (text,) = [text for path, text in planned(folder, options, **documents).files().items() if path.suffix == ".yaml"]
    return text


def objects(text: str) -> dict[str, Object]:
    """Return the manifest's objects by their kind."""
    return {found["kind"]: found for found in yaml.safe_load_all(text)}


def job_of(text: str) -> Object:
    (replicated,) = objects(text)["JobSet"]["spec"]["replicatedJobs"]
    found: Object = replicated["template"]["spec"]
    return found


def pod_of(text: str) -> Object:
    found: Object = job_of(text)["template"]["spec"]
    return found


def data_of(text: str) -> dict[str, str]:
    """Return the files for the pods by name: annotations with headway's prefix."""
    annotations = job_of(text)["template"]["metadata"]["annotations"]
    return {key.removeprefix("headway/"): value for key, value in annotations.items() if key.startswith("headway/")}


def container_of(text: str) -> Object:
    (found,) = pod_of(text)["containers"]
    container: Object = found
    return container


# --- requests ---------------------------------------------------------------------------------------------------------


def test_job_has_one_pod_per_slot_and_restarts_all_of_them(tmp_path: Path) -> None:
    text = manifest(tmp_path, LEAST)
    job = job_of(text)
    assert (job["completions"], job["parallelism"], job["completionMode"], job["backoffLimit"]) == (2, 2, "Indexed", 0)
    assert pod_of(text)["restartPolicy"] == "Never"
    (apart,) = pod_of(text)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    name = objects(text)["JobSet"]["metadata"]["name"]
    assert re.fullmatch(r"case-[0-9a-f]{8}", name)
    assert apart["labelSelector"]["matchLabels"] == {"jobset.sigs.k8s.io/jobset-name": name}
    (rule,) = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [83, 84, 85])
    failure = objects(text)["JobSet"]["spec"]["failurePolicy"]
    assert failure["maxRestarts"] == 100
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in failure["rules"]] == [("FailJobSet", ["PodFailurePolicy"])]


def test_killed_pod_is_replaced_without_a_new_attempt_with_spares(tmp_path: Path) -> None:
    spared = JOB.replace("nodes: 2", "nodes: 1").replace("{grace: 12.5s}", "{grace: 12.5s, spares: 1}")
    text = manifest(tmp_path, LEAST, job=spared)
    job = job_of(text)
    assert (job["completions"], job["parallelism"], job["backoffLimit"]) == (2, 2, 0)
    stop, killed, disrupted = job["podFailurePolicy"]["rules"]
    assert stop["onExitCodes"]["values"] == [83, 84, 85]
    assert (killed["action"], killed["onExitCodes"]["values"]) == ("Ignore", [134, 135, 137, 139])
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert 'while [ "$index" -lt 2 ]' in data_of(text)["pod.sh"]


def test_webhook_address_comes_from_an_optional_secret(tmp_path: Path) -> None:
    job = JOB.replace("{grace: 12.5s}", "{grace: 12.5s, notify: {webhook_env: RUN_WEBHOOK}}")
    (variable,) = [each for each in container_of(manifest(tmp_path, LEAST, job=job))["env"] if each["name"] == "RUN_WEBHOOK"]
    secret = {"name": "headway-webhooks", "key": "RUN_WEBHOOK", "optional": True}
    assert variable == {"name": "RUN_WEBHOOK", "valueFrom": {"secretKeyRef": secret}}


def test_all_objects_have_the_same_name_and_namespace(tmp_path: Path) -> None:
    found = objects(manifest(tmp_path, LEAST | {"namespace": "research"}))
    assert list(found) == ["JobSet"]
    assert len({each["metadata"]["name"] for each in found.values()}) == 1
    assert {each["metadata"]["namespace"] for each in found.values()} == {"research"}


def test_pods_get_no_token_and_no_permissions(tmp_path: Path) -> None:
    text = manifest(tmp_path, LEAST)
    assert pod_of(text)["automountServiceAccountToken"] is False
    assert container_of(text)["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_given_service_account_is_used_and_none_created(tmp_path: Path) -> None:
    text = manifest(tmp_path, LEAST | {"service_account": "training"})
    assert list(objects(text)) == ["JobSet"]
    assert pod_of(text)["serviceAccountName"] == "training"
    assert "serviceAccountName" not in pod_of(manifest(tmp_path, LEAST))


def test_cpu_is_requested_but_not_limited(tmp_path: Path) -> None:
    text = manifest(tmp_path, LEAST)
    assert container_of(text)["resources"] == {"requests": {"cpu": "4"}}
    text = manifest(tmp_path, LEAST | {"memory": "64Gi"})
    assert container_of(text)["resources"] == {"requests": {"cpu": "4", "memory": "64Gi"}, "limits": {"memory": "64Gi"}}


def test_gpus_and_rdma_devices_are_limits_and_may_lock_memory(tmp_path: Path) -> None:
    text = manifest(tmp_path, LEAST | {"rdma": {"resource": "rdma/shared", "count": 2}}, nodes=GPUS)
    devices = {"nvidia.com/gpu": "8", "rdma/shared": "2"}
    assert container_of(text)["resources"] == {"requests": {"cpu": "96", **devices}, "limits": devices}
    assert container_of(text)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_amd_gpus_have_their_resource_and_hyperthreads_are_counted(tmp_path: Path) -> None:
    amd = GPUS.replace("gpu: H100-SXM-80", "gpu: MI300X-192").replace("cpus: 96", "cpus: 96, threads_per_core: 2")
    assert container_of(manifest(tmp_path, LEAST, nodes=amd))["resources"]["limits"] == {"amd.com/gpu": "8"}
    assert container_of(manifest(tmp_path, LEAST, nodes=amd))["resources"]["requests"]["cpu"] == "192"


def test_restricted_pods_meet_the_requirements_of_the_level(tmp_path: Path) -> None:
    text = manifest(tmp_path, LEAST | {"restricted": True, "user": 1000, "fs_group": 7, "rdma": {"resource": "rdma/shared"}})
    assert pod_of(text)["securityContext"] == {
        "runAsUser": 1000,
        "fsGroup": 7,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container_of(text)["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert "Pod Security" not in text


REQUEST = """\
scheduler:
  kubernetes:
    local_queue: research
    priority_class: high
    labels: {team: nlp}
    annotations: {karpenter.sh/do-not-disrupt: "true"}
    image_pull_secrets: [mine]
    runtime_class: nvidia
    node_selector: {pool: spot}
    tolerations: [{key: spot, effect: NoSchedule}]
    pod: {schedulerName: volcano, volumes: [{name: cache, emptyDir: {}}], affinity: {nodeAffinity: {}}}
    container: {env: [{name: SITE, value: a}], volumeMounts: [{name: cache, mountPath: /cache}], resources: {limits: {hugepages-2Mi: 5Gi}}}
"""


def test_request_of_a_job_is_merged_into_the_options_of_its_cluster(tmp_path: Path) -> None:
    options = {
        "local_queue": "default",
        "labels": {"site": "a"},
        "image_pull_secrets": ["site"],
        "node_selector": {"pool": "main", "b": "c"},
    }
    text = manifest(tmp_path, LEAST | options | {"tolerations": [{"key": "gpu"}]}, job=JOB + REQUEST)
    labels, pod = objects(text)["JobSet"]["metadata"]["labels"], pod_of(text)
    assert labels["kueue.x-k8s.io/queue-name"] == "research"
    assert (labels["site"], labels["team"]) == ("a", "nlp")
    assert job_of(text)["template"]["metadata"]["labels"]["team"] == "nlp"
    annotations = job_of(text)["template"]["metadata"]["annotations"]
    assert [key for key in annotations if not key.startswith("headway/")] == ["karpenter.sh/do-not-disrupt"]
    assert (pod["priorityClassName"], pod["runtimeClassName"], pod["schedulerName"]) == ("high", "nvidia", "volcano")
    assert pod["imagePullSecrets"] == [{"name": "site"}, {"name": "mine"}]
    assert pod["nodeSelector"] == {"pool": "spot", "b": "c"}
    assert [each["key"] for each in pod["tolerations"]] == ["gpu", "spot"]
    assert set(pod["affinity"]) == {"nodeAffinity", "podAntiAffinity"}
    assert {"name": "cache", "emptyDir": {}} in pod["volumes"]
    container = container_of(text)
    assert {"name": "SITE", "value": "a"} in container["env"]
    assert {"name": "cache", "mountPath": "/cache"} in container["volumeMounts"]
    assert container["resources"]["limits"] == {"hugepages-2Mi": "5Gi"}


def test_grace_period_of_a_pod_leaves_time_to_save(tmp_path: Path) -> None:
    assert pod_of(manifest(tmp_path, LEAST))["terminationGracePeriodSeconds"] == 13 + 30


def test_time_limit_ends_an_attempt_without_counting_as_a_restart(tmp_path: Path) -> None:
    text = manifest(tmp_path, LEAST, job=JOB + 'limits: {attempt: {time: "1:30:05"}}\n')
    assert job_of(text)["activeDeadlineSeconds"] == 5405
    rules = objects(text)["JobSet"]["spec"]["failurePolicy"]["rules"]
    assert ("RestartJobSetAndIgnoreMaxRestarts", ["DeadlineExceeded"]) in [
        (rule["action"], rule["onJobFailureReasons"]) for rule in rules
    ]
    assert "activeDeadlineSeconds" not in job_of(manifest(tmp_path, LEAST))


def test_mounts_are_claims_or_directories_of_the_node(tmp_path: Path) -> None:
    mounts = [*LEAST["mounts"], {"path": "/data", "host_path": "/mnt/data", "read_only": True}]
    text = manifest(tmp_path, LEAST | {"mounts": mounts})
    volumes = {volume.pop("name"): volume for volume in pod_of(text)["volumes"]}
    mounted = {
        each["mountPath"]: (volumes[each["name"]], each.get("readOnly", False)) for each in container_of(text)["volumeMounts"]
    }
    assert mounted["/scratch"] == ({"persistentVolumeClaim": {"claimName": "scratch"}}, False)
    assert mounted["/data"] == ({"hostPath": {"path": "/mnt/data", "type": "Directory"}}, True)
    assert mounted["/dev/shm"] == ({"emptyDir": {"medium": "Memory"}}, False)
    items = [
        {"path": name, "fieldRef": {"fieldPath": f"metadata.annotations['headway/{name}']"}}
        for name in ("pod.sh", "run.json", "spec.json")
    ]
    assert mounted["/etc/headway"] == ({"downwardAPI": {"items": items}}, True)


def test_mounts_of_a_job_are_added_as_directories_of_the_node(tmp_path: Path) -> None:
    job = JOB + "mounts: [{source: /mnt/corpus, target: /data}, {source: /cache, read_only: false}]\n"
    text = manifest(tmp_path, LEAST, job=job)
    volumes = {volume.pop("name"): volume for volume in pod_of(text)["volumes"]}
    mounted = {each["mountPath"]: (volumes[each["name"]], each.get("readOnly")) for each in container_of(text)["volumeMounts"]}
    assert mounted["/scratch"] == ({"persistentVolumeClaim": {"claimName": "scratch"}}, False)
    assert mounted["/data"] == ({"hostPath": {"path": "/mnt/corpus", "type": "Directory"}}, True)
    assert mounted["/cache"] == ({"hostPath": {"path": "/cache", "type": "Directory"}}, False)
    assert len(volumes) == len(mounted) == 5


def test_image_of_the_job_replaces_that_of_the_cluster(tmp_path: Path) -> None:
    image = f"registry.example.com/team/train@sha256:{'0123456789abcdef' * 4}"
    job = f"{JOB}code: {{image: '{image}'}}\n"
    assert container_of(manifest(tmp_path, LEAST))["image"] == LEAST["image"]
    assert container_of(manifest(tmp_path, LEAST, job=job))["image"] == image
    assert container_of(manifest(tmp_path, {"mounts": LEAST["mounts"]}, job=job))["image"] == image


def test_variables_of_the_job_are_added_with_their_reason(tmp_path: Path) -> None:
    text = manifest(tmp_path, LEAST, job=JOB + 'environment: {GREETING: "it\'s $HOME"}\n')
    environment = {each["name"]: each.get("value") for each in container_of(text)["env"]}
    assert (environment["OMP_NUM_THREADS"], environment["GREETING"]) == ("2", "it's $$HOME")
    assert "# set by the job\n                    #   `environment` of the job\n" in text


def test_placement_and_user_of_pods_are_optional(tmp_path: Path) -> None:
    options: Object = {
        "node_selector": {"pool": "training", "fast": "true"},
        "tolerations": [{"key": "a/b"}, {"key": "c", "value": "d", "effect": "NoExecute", "seconds": 0}],
        "host_network": True,
        "image_pull_policy": "Always",
        "user": 0,
        "group": 7,
    }
    pod = pod_of(manifest(tmp_path, LEAST | options))
    assert pod["nodeSelector"] == {"pool": "training", "fast": "true"}
    assert pod["tolerations"] == [
        {"key": "a/b", "operator": "Exists"},
        {"key": "c", "operator": "Equal", "value": "d", "effect": "NoExecute", "tolerationSeconds": 0},
    ]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["securityContext"] == {"runAsUser": 0, "runAsGroup": 7}
    assert pod["containers"][0]["imagePullPolicy"] == "Always"
    without = pod_of(manifest(tmp_path, LEAST))
    assert not {"nodeSelector", "tolerations", "hostNetwork", "dnsPolicy", "securityContext"} & set(without)
    assert "imagePullPolicy" not in without["containers"][0]


def test_runner_gets_its_configuration_from_the_jobset(tmp_path: Path) -> None:
    plan = planned(tmp_path, LEAST).plan
    data = data_of(manifest(tmp_path, LEAST))
    assert from_json(RunConfig, data["run.json"]) == plan.run
    spec, run = (json.loads(data[name]) for name in ("spec.json", "run.json"))
    assert with_shared(spec, run) == plan.kept_spec


def test_every_variable_is_below_its_reason_and_source(tmp_path: Path) -> None:
    plan = planned(tmp_path, LEAST, nodes=GPUS).plan
    text = manifest(tmp_path, LEAST, nodes=GPUS)
    environment = {each["name"]: each.get("value") for each in container_of(text)["env"]}
    for variable in plan.env:
        assert environment[variable.name] == variable.value
        lines = [line.strip() for line in text.splitlines()]
        at = lines.index(f'- name: "{variable.name}"')
        assert lines[at - 2 : at] == [f"# {variable.reason}", f"#   {variable.source}"]


def test_header_lists_what_the_namespace_must_allow(tmp_path: Path) -> None:
    assert "Pod Security" not in manifest(tmp_path, LEAST)
    mounts = [*LEAST["mounts"], {"path": "/data", "host_path": "/mnt/data"}]
    own = JOB + "mounts: [{source: /data}]\n"
    for options, nodes, job, privileges in (
        (LEAST, GPUS, JOB, "IPC_LOCK"),
        (LEAST | {"host_network": True}, CPUS, JOB, "hostNetwork"),
        (LEAST | {"mounts": mounts}, CPUS, JOB, "hostPath"),
        (LEAST, CPUS, own, "hostPath"),
        (LEAST | {"mounts": mounts, "host_network": True}, GPUS, JOB, "IPC_LOCK, hostNetwork, hostPath"),
    ):
        line = manifest(tmp_path, options, nodes=nodes, job=job).splitlines()[2]
        assert line.startswith(f"# The namespace must allow its pods {privileges} (Pod Security `privileged`, not `baseline`)")


@pytest.mark.parametrize(
    "option",
    [
        {"service_account": "a..b"},
        {"service_account": "a.-b"},
        {"service_account": "a" * 254},
        {"node_selector": {"a..b/x": "y"}},
        {"tolerations": [{"key": "a..b/x"}]},
        {"rdma": {"resource": "a..b/x"}},
        {"mounts": [{"path": "/a", "claim": "a..b"}]},
        {"mounts": [{"path": "/a", "host_path": "/a/../b"}]},
        {"mounts": [{"path": "/a", "host_path": "/.."}]},
        {"mounts": [{"path": "/a/../dev", "claim": "a"}]},
    ],
)
def test_invalid_form_of_a_pod_setting_is_rejected(option: Object) -> None:
    with pytest.raises(ValidationError, match=r"string_pattern_mismatch|string_too_long"):
        KubernetesOptions.model_validate_json(json.dumps(LEAST | option))


@pytest.mark.parametrize(
    "option",
    [
        {"service_account": "a.b-c.9"},
        {"node_selector": {"a.b/x_y.z": "", "plain": "y"}},
        {"rdma": {"resource": "a.b-c/x"}},
        {"mounts": [{"path": "/", "claim": "a.b"}, {"path": "/a//b/", "host_path": "/a.b/.c/d.."}]},
    ],
)
def test_valid_form_of_a_pod_setting_is_accepted(option: Object) -> None:
    KubernetesOptions.model_validate_json(json.dumps(LEAST | option))


# --- quoting ----------------------------------------------------------------------------------------------------------


def test_rendering_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    assert manifest(tmp_path, LEAST, nodes=GPUS) == manifest(tmp_path, LEAST, nodes=GPUS)


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_arrive_unchanged(value: str, tmp_path: Path) -> None:
    found = planned(tmp_path, LEAST)
    run = dataclasses.replace(found.plan.run, data=dataclasses.replace(found.plan.run.data, options={"paths": [value]}))  # type: ignore[type-var]
    variable = EnvVar("HOSTILE", value, value if len(value.splitlines()) == 1 else "why", "where")
    plan = replace(found.plan, run=run, runs=f"/scratch/{value}", env=(variable,))
    (text,) = render(found.scheduler, plan, found.cluster).values()  # type: ignore[arg-type]
    data = data_of(text)
    assert from_json(RunConfig, data["run.json"]) == run
    environment = {each["name"]: each.get("value") for each in container_of(text)["env"]}
    assert environment["HOSTILE"] == value.replace("$", "$$"), "Kubernetes makes one dollar sign of two"
    done = run_script(data, tmp_path / "pod")
    assert done.calls[0].startswith(f"-m headway.runner.rundir open /scratch/{value} case-")


@given(texts)
def test_quoted_text_round_trips(text: str) -> None:
    assert yaml.safe_load(f"a: {quote(text)}\nb: {quote({text: [text, 1, None]})}") == {"a": text, "b": {text: [text, 1, None]}}


@given(st.lists(texts, max_size=4).map("\n".join), st.sampled_from(["", "\n", "\n\n"]))
def test_block_texts_round_trip(text: str, end: str) -> None:
    assert yaml.safe_load(f"a:\n  b: {block(text + end, 4)}\n  # comment\n  c: 1\n") == {"a": {"b": text + end, "c": 1}}


@given(texts)
def test_comment_stays_on_its_line_or_is_rejected(text: str) -> None:
    if len(text.splitlines()) > 1:
        with pytest.raises(ValueError, match="several lines"):
            comment(text)
    else:
        assert yaml.safe_load(f"# {comment(text)}\na: 1") == {"a": 1}


# --- the script of a pod ----------------------------------------------------------------------------------------------

PYTHON = """\
#!/bin/sh
printf '%s\\n' "$*" >>"$CALLS"
case "$2 $3" in
"headway.runner.rundir open")
  cat >"$STDIN"; cat "${10}" >"$STDIN.spec"
  [ -z "${TAKEN:-}" ] || exit 75
  printf '%s\\n' "$4/attempts/3/run.json" ;;
*) echo "pid=$$ nodes=$HEADWAY_NODES setup=${FROM_SETUP:-}" >>"$CALLS"; exit "${CODE:-0}" ;;
esac
"""


SLEEP = """\
#!/bin/sh
echo "sleep $*" >>"$CALLS"
[ -z "${HELD:-}" ] || exec cat "$HELD"
"""


@dataclasses.dataclass(frozen=True)
class Done:
    """Exit code and calls of the script."""

    code: int
    pid: int
    calls: list[str]
    stdin: str
    spec: str


def prepare(data: Mapping[str, str], folder: Path) -> Path:
    """Write the script with its other files to `folder`, and stand-ins for python3 and sleep to `folder/tools`."""
    (folder / "tools").mkdir(parents=True)
    for name, text in data.items():
        (folder / name).write_text(text.replace("/etc/headway/", f"{folder}/") if name == "pod.sh" else text)
    for name, text in {"python3": PYTHON, "sleep": SLEEP}.items():
        (folder / "tools" / name).write_text(text)
        (folder / "tools" / name).chmod(0o755)
    return folder / "pod.sh"


UID = "eb8cef16-08f0-4272-8881-787a1070b367"
JOBSET = {"HEADWAY_JOBSET": "case-0123abcd", "HEADWAY_JOBSET_UID": UID, "HEADWAY_RESTART": "2"}


def environment(folder: Path, **variables: str) -> dict[str, str]:
    own = {"PATH": f"{folder}/tools:{os.environ['PATH']}", "CALLS": f"{folder}/calls", "STDIN": f"{folder}/stdin"}
    return own | JOBSET | variables


def run_script(data: Mapping[str, str], folder: Path, **variables: str) -> Done:
    script = prepare(data, folder)
    with subprocess.Popen(["sh", str(script)], env=environment(folder, **variables), stdout=subprocess.DEVNULL) as process:
        code = process.wait(30)
    calls = (folder / "calls").read_text().split("\n")[:-1]
    return Done(code, process.pid, calls, (folder / "stdin").read_text(), (folder / "stdin.spec").read_text())


def wait_for_text(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_pod_opens_the_attempt_and_then_execs_the_runner(tmp_path: Path) -> None:
    data = data_of(manifest(tmp_path, LEAST | {"setup": ["export FROM_SETUP='a b'"]}))
    done = run_script(data, tmp_path / "pod", CODE="82")
    assert done.code == 82
    open_run = "-m headway.runner.rundir open /scratch/runs case-HASH-eb8cef1608f042728881787a1070b367"
    assert [re.sub(r"case-[0-9a-f]{8}", "case-HASH", call) for call in done.calls] == [
        f"{open_run} --job {UID}/2 --every-node --spec {tmp_path}/pod/spec.json",
        "-m headway.runner /scratch/runs/attempts/3/run.json --attempt 3",
        f"pid={done.pid} nodes=case-HASH-node-0-0.case-HASH,case-HASH-node-0-1.case-HASH setup=a b",
    ]
    assert (done.stdin, done.spec) == (data["run.json"], data["spec.json"])
    submitted = run_script(data, tmp_path / "submitted", HEADWAY_RUN="case-0123abcd-7", HEADWAY_JOBSET="case-0123abcd-7")
    assert submitted.calls[0].startswith("-m headway.runner.rundir open /scratch/runs case-0123abcd-7 --job")
    assert "nodes=case-0123abcd-7-node-0-0.case-0123abcd-7,case-0123abcd-7-node-0-1.case-0123abcd-7 " in submitted.calls[2]


def test_pod_that_cannot_open_the_attempt_waits_without_a_runner(tmp_path: Path) -> None:
    done = run_script(data_of(manifest(tmp_path, LEAST)), tmp_path / "pod", TAKEN="1")
    assert (done.code, len(done.calls), done.calls[-1]) == (75, 2, "sleep 60")


def test_failed_setup_waits_before_it_counts_as_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    script = prepare(data_of(manifest(tmp_path, LEAST | {"setup": [". /nowhere/activate"]})), folder)
    done = subprocess.run(["sh", str(script)], env=environment(folder), stderr=subprocess.DEVNULL, check=False, timeout=30)
    assert done.returncode not in {0, 82}
    assert (folder / "calls").read_text() == "sleep 60\n"


def test_signal_ends_the_wait_of_a_failed_pod(tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    script = prepare(data_of(manifest(tmp_path, LEAST | {"setup": ["false"]})), folder)
    held, holding = os.pipe()
    variables = environment(folder, HELD=f"/dev/fd/{held}")
    with (
        subprocess.Popen(["sh", str(script)], env=variables, pass_fds=[held]) as process,
        os.fdopen(held),
        os.fdopen(holding, "w"),
    ):
        wait_for_text(folder / "calls")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 82
    assert (folder / "calls").read_text() == "sleep 60\n"


def test_signal_before_the_runner_ends_the_pod_as_preempted(tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    setup = [f"echo >{folder}/ready", f"while [ ! -e {folder}/go ]; do command -p sleep 0.02; done"]
    script = prepare(data_of(manifest(tmp_path, LEAST | {"setup": setup})), folder)
    with subprocess.Popen(["sh", str(script)], env=environment(folder)) as process:
        wait_for_text(folder / "ready")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 82
    assert not (folder / "calls").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="apt-get install shellcheck")
def test_pod_script_passes_shellcheck(tmp_path: Path) -> None:
    script = prepare(data_of(manifest(tmp_path, LEAST)), tmp_path / "pod")
    command = ["shellcheck", "--shell=sh", "--severity=style", str(script)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == ""
