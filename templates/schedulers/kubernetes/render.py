"""Renders a plan as `kubernetes/job.yaml`."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from headway.jobspec.json_text import json_text
from headway.jobspec.plan import ClusterPlan, EnvVar, JobPlan, MountPlan, to_json
from headway.jobspec.spec.scheduling import Toleration
from headway.templates.kind import Files
from headway.templates.schedulers.kubernetes.options import KubernetesOptions
from headway.templates.schedulers.kubernetes.request import merged, with_request
from headway.templates.schedulers.kubernetes.yaml_text import block, render_yaml
from headway.templates.shell import Shell, render_shell

_MANIFEST = Path(__file__).parent / "job.yaml.j2"
_SCRIPT = Path(__file__).parent / "pod.sh.j2"

CONFIG_PATH = "/etc/headway"
SHM_PATH = "/dev/shm"
# Annotations of the pods with the prefix `headway/`, which the kubelet writes into files of these names.
_FILES = ("pod.sh", "run.json", "spec.json")
# Indentation of their literal blocks, below `annotations:` and a key.
_INDENT = 18
_REPLICATED_JOB = "node"
# Lists of a pod to which options add, each at its own place in the manifest.
_LISTS_OF_POD = ("containers", "initContainers", "volumes")
# A Secret of the namespace whose keys are variables: the addresses of webhooks, which are in no file.
_WEBHOOK_SECRET = "headway-webhooks"
# After the workers' grace the agents, the supervisor and the kubelet need some seconds each.
_TERMINATION_MARGIN_S = 30


class _Mount(Struct, frozen=True):
    """An external directory of the pods: a claim's, or the node's own."""

    path: str
    claim: str | None
    host_path: str | None
    read_only: bool


class _Field(Struct, frozen=True):
    """A field of a mapping whose keys are not known here."""

    key: str
    value: Any


def render(options: KubernetesOptions, plan: JobPlan, cluster: ClusterPlan) -> Files:
    """Return one manifest that can be applied unchanged."""
    options = with_request(options, plan)
    pod, container = options.pod, options.container
    script = render_shell(
        _SCRIPT,
        plan=plan,
        run_name=plan.run_stem,
        config_path=CONFIG_PATH,
        setup=[Shell(line) for line in options.setup],
        job_setup=[Shell(line) for line in plan.spec["setup"]],
        host=Shell(f"$HEADWAY_JOBSET-{_REPLICATED_JOB}-0-$index.$HEADWAY_JOBSET"),
    )
    limits, mounts = _limits(options, plan, cluster), list(_mounts(options, plan))
    resources = {"requests": {"cpu": str(plan.cpus_per_slot), **limits}, **({"limits": limits} if limits else {})}
    locks = locks_memory(options, plan, cluster) and not options.restricted
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if locks else {})}}
    text = render_yaml(
        _MANIFEST,
        plan=plan,
        options=options,
        name=plan.run_stem,
        replicated_job=_REPLICATED_JOB,
        config_path=CONFIG_PATH,
        shm_path=SHM_PATH,
        command=["/bin/sh", f"{CONFIG_PATH}/pod.sh"],
        script=block(script, _INDENT),
        files=[{"path": name, "fieldRef": {"fieldPath": f"metadata.annotations['headway/{name}']"}} for name in _FILES],
        run_json=block(to_json(plan.run), _INDENT),
        spec_json=block(json_text(plan.spec_without_run), _INDENT),
        image=plan.code["image"] or options.image,
        webhook=None if plan.run.notify is None else plan.run.notify.webhook_env,
        webhook_secret=_WEBHOOK_SECRET,
        secrets=[_secret(options, secret) for secret in plan.spec["secrets"]],
        environment=[_unexpanded(variable) for variable in plan.env],
        tolerations=[_toleration(toleration) for toleration in options.tolerations],
        pull_secrets=[{"name": name} for name in options.image_pull_secrets],
        identity=merged(_identity(options), pod.get("securityContext", {})),
        labels=_fields(options.labels),
        annotations=_fields(options.annotations),
        affinity=_fields(pod.get("affinity", {})),
        more_of_pod=_fields(pod, *_LISTS_OF_POD, "affinity", "securityContext"),
        more_containers=pod.get("containers", ()),
        init_containers=pod.get("initContainers", ()),
        more_volumes=pod.get("volumes", ()),
        resources=_fields(merged(resources, container.get("resources", {}))),
        security=_fields(merged(security, container.get("securityContext", {}))),
        locks_memory=locks,
        more_of_container=_fields(container, "env", "volumeMounts", "resources", "securityContext"),
        more_variables=container.get("env", ()),
        more_mounts=container.get("volumeMounts", ()),
        privileges=_privileges(options, plan, cluster),
        mounts=[_mount(number, mount) for number, mount in enumerate(mounts)],
        volumes=[_volume(number, mount) for number, mount in enumerate(mounts)],
        deadline_s=_seconds(plan.time_limit),
        termination_s=math.ceil(plan.run.grace_s) + _TERMINATION_MARGIN_S,
    )
    return {PurePosixPath("kubernetes/job.yaml"): text}


def mounted(options: KubernetesOptions, plan: JobPlan) -> tuple[MountPlan, ...]:
    """Return the directories that the pods get from outside."""
    own = (MountPlan(mount.host_path or mount.path, mount.path, mount.read_only) for mount in options.mounts)
    return (*own, *plan.mounts)


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
        "IPC_LOCK": locks_memory(options, plan, cluster) and not options.restricted,
        "hostNetwork": options.host_network,
        "hostPath": bool(plan.mounts) or any(mount.host_path for mount in options.mounts),
    }
    return ", ".join(name for name, is_wanted in wanted.items() if is_wanted)


def _fields(given: Mapping[str, Any], *elsewhere: str) -> list[_Field]:
    """Return the fields of the mapping but those that have another place in the manifest."""
    return [_Field(key, value) for key, value in given.items() if key not in elsewhere]


def _secret(options: KubernetesOptions, secret: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the variable of a secret, which a Secret of the namespace has."""
    source = {"name": secret["source"] or options.secrets, "key": secret["key"] or secret["name"]}
    return {"name": secret["name"], "valueFrom": {"secretKeyRef": source}}


def _identity(options: KubernetesOptions) -> dict[str, Any]:
    """Return the pod's part of the identity of its processes."""
    restricted = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} if options.restricted else {}
    return {**_given(runAsUser=options.user, runAsGroup=options.group, fsGroup=options.fs_group), **restricted}


def _limits(options: KubernetesOptions, plan: JobPlan, cluster: ClusterPlan) -> dict[str, str]:
    """Return a pod's resource limits. CPU time has none: a limit there would stop the processes repeatedly.

    Quantities are text: Kueue writes numbers as text, and then owns them for the next server-side apply.
    """
    devices = {options.rdma.resource: str(options.rdma.count)} if options.rdma else {}
    resource = "amd.com/gpu" if cluster.group(plan.group).is_amd else "nvidia.com/gpu"
    gpus = {resource: str(plan.gpus_per_slot)} if plan.gpus_per_slot else {}
    memory = None if options.memory is None else _share(options.memory.removesuffix("B"), plan)
    return {**_given(memory=memory), **gpus, **devices}


def _share(memory: str, plan: JobPlan) -> str:
    """Return the job's share of a node's memory, in the next smaller unit if it would be a fraction."""
    if plan.has_whole_nodes:
        return memory
    number = int(memory.rstrip("kKMGTi"))
    unit = memory.removeprefix(str(number))
    smaller = {"Ti": "Gi", "Gi": "Mi", "Mi": "Ki", "Ki": "", "T": "G", "G": "M", "M": "k", "k": ""}
    if number * plan.gpus_per_slot % plan.gpus_per_node and unit:
        number, unit = number * (1024 if unit.endswith("i") else 1000), smaller[unit]
    return f"{number * plan.gpus_per_slot // plan.gpus_per_node}{unit}"


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
