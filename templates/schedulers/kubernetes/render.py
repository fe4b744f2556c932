"""Renders a plan as `kubernetes/job.yaml`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from headway.jobspec.json_text import json_text
from headway.jobspec.plan import ClusterPlan, EnvVar, JobPlan, to_json
from headway.templates.kind import Files
from headway.templates.schedulers.kubernetes.options import KubernetesOptions, Toleration
from headway.templates.schedulers.kubernetes.yaml_text import block, render_yaml
from headway.templates.shell import Shell, render_shell

_MANIFEST = Path(__file__).parent / "job.yaml.j2"
_SCRIPT = Path(__file__).parent / "pod.sh.j2"

CONFIG_PATH = "/etc/headway"
SHM_PATH = "/dev/shm"
# Indentation of the ConfigMap's literal blocks, below `data:` and a key.
_INDENT = 4
_REPLICATED_JOB = "node"
# A Secret of the namespace whose keys are variables: the addresses of webhooks, which are in no file.
_WEBHOOK_SECRET = "headway-webhooks"
# After the workers' grace the agents, the supervisor and the kubelet need some seconds each.
_TERMINATION_MARGIN_S = 30


@dataclass(frozen=True)
class _Mount:
    """An external directory of the pods: a claim's, or the node's own."""

    path: str
    claim: str | None
    host_path: str | None
    read_only: bool


def render(options: KubernetesOptions, plan: JobPlan, cluster: ClusterPlan) -> Files:
    """Return one manifest that can be applied unchanged."""
    script = render_shell(
        _SCRIPT,
        plan=plan,
        run_name=plan.run_stem,
        config_path=CONFIG_PATH,
        setup=[Shell(line) for line in options.setup],
    )
    nodes = "".join(f"{host_name(plan, index)}.{plan.run_stem}\n" for index in range(plan.nodes))
    limits, mounts = _limits(options, plan), list(_mounts(options, plan))
    text = render_yaml(
        _MANIFEST,
        plan=plan,
        options=options,
        name=plan.run_stem,
        replicated_job=_REPLICATED_JOB,
        config_path=CONFIG_PATH,
        shm_path=SHM_PATH,
        command=["/bin/sh", f"{CONFIG_PATH}/pod.sh"],
        service_account=options.service_account or plan.run_stem,
        brings_account=options.service_account is None,
        script=block(script, _INDENT),
        nodes=block(nodes, _INDENT),
        run_json=block(to_json(plan.run), _INDENT),
        spec_json=block(json_text(plan.spec_without_run), _INDENT),
        image=plan.code["image"] or options.image,
        webhook=None if plan.run.notify is None else plan.run.notify.webhook_env,
        webhook_secret=_WEBHOOK_SECRET,
        environment=[_unexpanded(variable) for variable in plan.env],
        tolerations=[_toleration(toleration) for toleration in options.tolerations],
        identity=_given(runAsUser=options.user, runAsGroup=options.group),
        requests={"cpu": plan.cpus_per_slot, **limits},
        limits=limits,
        locks_memory=locks_memory(options, plan, cluster),
        privileges=_privileges(options, plan, cluster),
        mounts=[_mount(number, mount) for number, mount in enumerate(mounts)],
        volumes=[_volume(number, mount) for number, mount in enumerate(mounts)],
        deadline_s=_seconds(plan.time_limit),
        termination_s=math.ceil(plan.run.grace_s) + _TERMINATION_MARGIN_S,
    )
    return {PurePosixPath("kubernetes/job.yaml"): text}


def host_name(plan: JobPlan, index: int) -> str:
    """Return the pod's host name in JobSet's form: set, replicated job, index of the Job, index of the pod."""
    return f"{plan.run_stem}-{_REPLICATED_JOB}-0-{index}"


def needs_rdma(plan: JobPlan, cluster: ClusterPlan) -> bool:
    """Return whether the ranks' GPUs communicate over RDMA adapters."""
    # TCPXO moves data by TCP, from GPU memory that a daemon has registered.
    return plan.gpus_per_slot > 0 and cluster.scale_out is not None and cluster.scale_out.transport not in ("tcp", "tcpxo")


def locks_memory(options: KubernetesOptions, plan: JobPlan, cluster: ClusterPlan) -> bool:
    """Return whether the pods' processes register memory with RDMA adapters, which locks it."""
    return needs_rdma(plan, cluster) or options.rdma is not None


def _privileges(options: KubernetesOptions, plan: JobPlan, cluster: ClusterPlan) -> str:
    """Return the pods' requirements that the Pod Security level `baseline` forbids."""
    wanted = {
        "IPC_LOCK": locks_memory(options, plan, cluster),
        "hostNetwork": options.host_network,
        "hostPath": bool(plan.mounts) or any(mount.host_path for mount in options.mounts),
    }
    return ", ".join(name for name, is_wanted in wanted.items() if is_wanted)


def _limits(options: KubernetesOptions, plan: JobPlan) -> dict[str, Any]:
    """Return a pod's resource limits. CPU time has none: a limit there would stop the processes repeatedly."""
    devices = {options.rdma.resource: options.rdma.count} if options.rdma else {}
    gpus = {"nvidia.com/gpu": plan.gpus_per_slot} if plan.gpus_per_slot else {}
    memory = None if options.memory is None else options.memory.removesuffix("B")
    return {**_given(memory=memory), **gpus, **devices}


def _toleration(toleration: Toleration) -> dict[str, Any]:
    operator = "Exists" if toleration.value is None else "Equal"
    more = _given(value=toleration.value, effect=toleration.effect, tolerationSeconds=toleration.seconds)
    return {"key": toleration.key, "operator": operator, **more}


def _mounts(options: KubernetesOptions, plan: JobPlan) -> Iterator[_Mount]:
    """Yield the cluster's mounts, then the job's."""
    for own in options.mounts:
        yield _Mount(own.path, own.claim, own.host_path, own.read_only)
    for wanted in plan.mounts:
        yield _Mount(wanted.target, None, wanted.source, wanted.read_only)


def _mount(number: int, mount: _Mount) -> dict[str, Any]:
    return {"name": _volume_name(number), "mountPath": mount.path, "readOnly": mount.read_only}


def _volume(number: int, mount: _Mount) -> dict[str, Any]:
    if mount.claim is not None:
        return {"name": _volume_name(number), "persistentVolumeClaim": {"claimName": mount.claim}}
    return {"name": _volume_name(number), "hostPath": {"path": mount.host_path, "type": "Directory"}}


def _volume_name(number: int) -> str:
    return f"mount-{number}"


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _unexpanded(variable: EnvVar) -> EnvVar:
    """Return a value escaped for Kubernetes: `$(NAME)` in a value is another variable's, and `$$` is a dollar sign."""
    return EnvVar(variable.name, variable.value.replace("$", "$$"), variable.reason, variable.source)


def _seconds(time_limit: str | None) -> int | None:
    if time_limit is None:
        return None
    hours, minutes, seconds = map(int, time_limit.split(":"))
    return (hours * 60 + minutes) * 60 + seconds
