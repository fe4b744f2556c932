"""Reports what Kubernetes cannot do with a plan."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from headway.jobspec.check.job import HOW_TO_PIN, is_image_file, not_pinned
from headway.jobspec.check.names import check_unique
from headway.jobspec.check.shell_lines import check_shell
from headway.jobspec.document import Path
from headway.jobspec.notation import counted
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import CLUSTER, JOB, Problem, Severity
from headway.jobspec.resolve.placement import USER
from headway.jobspec.spec.scheduling import Toleration
from headway.jobspec.suggest import joined_or
from headway.jobspec.units import parse_bytes
from headway.templates.nccl.pods import ATTACHED_NETWORKS
from headway.templates.schedulers.containers import IMAGE, check_hidden, check_no_commit, check_steps, check_variables, hidden
from headway.templates.schedulers.kubernetes.options import KubernetesOptions, Mount
from headway.templates.schedulers.kubernetes.overlay import check_overlay
from headway.templates.schedulers.kubernetes.render import CONFIG_PATH, SHM_PATH, host_name, locks_memory, needs_rdma
from headway.templates.schedulers.kubernetes.request import with_request
from headway.templates.schedulers.requests import (
    check_memory_of_groups,
    check_memory_of_node,
    check_request,
    place_of,
    request_of,
)

_OPTIONS = ("scheduler", "options")
# The resource of the EFA device plugin, one for each adapter (docs.aws.amazon.com/eks/latest/userguide/node-efa.html).
_EFA = "vpc.amazonaws.com/efa"
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_LABEL_CHARACTERS = 63
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_OWN_LABELS = ("app.kubernetes.io/managed-by", "app.kubernetes.io/name", _QUEUE_LABEL)
_OWN_PREFIXES = ("jobset.sigs.k8s.io/", "batch.kubernetes.io/")
# The Job controller's suffix of a pod's name, with its dash.
_RANDOM = "-xxxxx"
# A JobSet of `headway submit` has the name of its run, which ends with a number.
_NUMBER = "-99"
# Container runtimes' name for the interface to the pod network (containerd: defaultIfName).
_POD_INTERFACE = "eth0"


def check(options: KubernetesOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Yield names, mounts and networks that pods cannot have."""
    yield from check_no_commit(plan, "pods run what is in the image and the mounts")
    yield from _check_name(plan)
    yield from _check_image(options, plan)
    yield from check_memory_of_node(None if options.memory is None else _bytes_of(options.memory), plan, cluster)
    yield from _check_own(options)
    yield from _check_job_mounts(options, plan)
    closed = list(check_request(plan, options.allow))
    yield from closed
    # What is in a closed field has to go with it.
    places = [problem.path for problem in closed if problem.at_key]
    yield from (each for each in _check_request(options, plan) if not any(each.path[: len(place)] == place for place in places))
    yield from _check_restricted_job(options, plan)
    options = with_request(options, plan)
    yield from _check_runs(options, plan, cluster)
    yield from _check_rdma(options, plan, cluster)
    yield from _check_user(options, plan, cluster)
    yield from _check_interfaces(options, plan, cluster)
    yield from check_variables(plan)


def check_cluster(options: KubernetesOptions, cluster: ClusterPlan) -> Iterator[Problem]:
    """Yield problems of the options by themselves, and with the cluster's groups."""
    yield from _check_own(options)
    yield from check_memory_of_groups(None if options.memory is None else _bytes_of(options.memory), cluster)


def _check_own(options: KubernetesOptions) -> Iterator[Problem]:
    yield from _check_mounts(options)
    yield from _check_restricted(options)
    yield from _check_labels(CLUSTER, _OPTIONS, options.labels)
    yield from _check_tolerations(CLUSTER, _OPTIONS, options.tolerations)


def _bytes_of(memory: str) -> int:
    """Return the bytes of a quantity of Kubernetes, in which the `B` is optional."""
    return parse_bytes(f"{memory.removesuffix('B')}B")


def check_options(options: KubernetesOptions) -> Iterator[Problem]:
    """Check the lines of shell, and warn about a tag: the cluster's image is that of all jobs which set none."""
    yield from check_shell(CLUSTER, (*_OPTIONS, "setup"), options.setup)
    scheme, slashes, name = (options.image or "").partition("://")
    found = None if options.image is None or slashes else not_pinned(options.image)
    if slashes:
        message = f"an image is a name in a registry, without `{scheme}://`"
        yield Problem("HW204", CLUSTER, (*_OPTIONS, "image"), message, f"write `{name}`", fix=name)
    if found:
        yield Problem("HW221", CLUSTER, (*_OPTIONS, "image"), found, HOW_TO_PIN, Severity.WARNING)


def _check_name(plan: JobPlan) -> Iterator[Problem]:
    if not re.match(r"[a-z]", plan.name):
        message = f"`{plan.name}` starts with a digit, which the names of a JobSet's pods must not (RFC 1035)"
        yield Problem("HW407", JOB, ("name",), message, "start it with a letter")
    over = len(host_name(plan, plan.nodes - 1) + _NUMBER + _RANDOM) - _LABEL_CHARACTERS
    if over > 0:
        message = (
            f"the names of its pods would have {_LABEL_CHARACTERS + over} characters, but at most {_LABEL_CHARACTERS} are allowed"
        )
        most = len(plan.name) - over
        shorter = plan.name[:most].rstrip("-") if most > 0 and plan.name == plan.spec["name"] else ""
        hint = f"use at most {most} characters{f', for example `{shorter}`' if shorter else ''}"
        yield Problem("HW407", JOB, ("name",), message, hint)


def _check_image(options: KubernetesOptions, plan: JobPlan) -> Iterator[Problem]:
    image = plan.code["image"]
    if image is not None and is_image_file(image):
        message = f"a pod's image comes from a registry, but `{image}` is a file"
        yield Problem("HW422", JOB, IMAGE, message, "push the image to a registry and set its digest there")
    if image is None and options.image is None:
        message = f"a pod needs an image, but neither the job nor `{plan.cluster}` sets one"
        hint = "set `code.image` in the job, or `image` under `scheduler.options` of the cluster for all jobs"
        yield Problem("HW422", JOB, IMAGE, message, hint)


def _check_mounts(options: KubernetesOptions) -> Iterator[Problem]:
    path = (*_OPTIONS, "mounts")
    yield from check_unique(CLUSTER, path, "path", [mount.path for mount in options.mounts])
    for index, mount in enumerate(options.mounts):
        if (mount.claim is None) == (mount.host_path is None):
            found, hint = "both `claim` and `host_path`", "keep one of them"
            if mount.claim is None:
                found = "neither `claim` nor `host_path`"
                hint = (
                    f"add `host_path: {mount.path}` if every node has that directory, else `claim` with a PersistentVolumeClaim"
                )
            yield Problem("HW210", CLUSTER, (*path, index), f"the mount of `{mount.path}` has {found}", hint)
        for taken in hidden(mount.path, CONFIG_PATH, SHM_PATH):
            message = f"a mount of `{mount.path}` would hide `{taken}`, which every pod has"
            yield Problem("HW210", CLUSTER, (*path, index, "path"), message, "mount it elsewhere")


def _check_job_mounts(options: KubernetesOptions, plan: JobPlan) -> Iterator[Problem]:
    for index, mount in enumerate(plan.mounts):
        path = ("mounts", index)
        yield from _check_form((*path, "source"), mount.source)
        if mount.target != mount.source:
            yield from _check_form((*path, "target"), mount.target)
        if PurePosixPath(mount.target) in [PurePosixPath(own.path) for own in options.mounts]:
            message = f"`{mount.target}` is already a mount of all pods on `{plan.cluster}`"
            yield Problem("HW423", JOB, (*path, "target"), message, "leave this one out, or mount it elsewhere with `target`")
            continue
        yield from check_hidden(plan, index, CONFIG_PATH, SHM_PATH, plan.runs)


def _check_form(path: Path, place: str) -> Iterator[Problem]:
    """Report paths that Kubernetes refuses (validatePathNoBacksteps in pkg/apis/core/validation; VolumeMount.mountPath
    in its API)."""
    yield from check_steps(path, place)
    if ":" in place:
        yield Problem("HW423", JOB, path, f"`{place}` has a `:`, which is not allowed in a pod's mount", "use a path without it")


def _check_request(options: KubernetesOptions, plan: JobPlan) -> Iterator[Problem]:
    """Check what has the same form in the cluster's options and in the job's request."""
    asked, variables = request_of(plan), tuple(variable.name for variable in plan.env)
    yield from check_overlay(CLUSTER, _OPTIONS, options.pod, options.container, variables)
    yield from check_overlay(JOB, place_of(plan), asked.get("pod", {}), asked.get("container", {}), variables)
    yield from _check_labels(JOB, place_of(plan), asked.get("labels", {}))
    tolerations = tuple(Toleration(**each) for each in asked.get("tolerations", ()))
    yield from _check_tolerations(JOB, place_of(plan), tolerations)


def _check_labels(document: str, place: Path, labels: Mapping[str, str]) -> Iterator[Problem]:
    for key in labels:
        if key in _OWN_LABELS or key.startswith(_OWN_PREFIXES):
            message = f"the label `{key}` is set by headway or by a controller"
            hint = "set `local_queue`" if key == _QUEUE_LABEL else "use another key"
            yield Problem("HW210", document, (*place, "labels", key), message, hint, at_key=True)


def _check_tolerations(document: str, place: Path, tolerations: tuple[Toleration, ...]) -> Iterator[Problem]:
    for index, toleration in enumerate(tolerations):
        if toleration.seconds is not None and toleration.effect != "NoExecute":
            path = (*place, "tolerations", index, "seconds")
            message = f"`seconds` for the taint `{toleration.key}` has no effect: only `NoExecute` evicts a pod"
            yield Problem("HW210", document, path, message, "add `effect: NoExecute`, or leave `seconds` out")


def _check_restricted(options: KubernetesOptions) -> Iterator[Problem]:
    """Check that no other option contradicts the Pod Security level `restricted`."""
    if not options.restricted:
        return
    against = {
        "`host_network`": options.host_network,
        "a `host_path`": any(mount.host_path for mount in options.mounts),
        "`user: 0`": options.user == 0,
    }
    if found := [name for name, is_set in against.items() if is_set]:
        message = f"the Pod Security level `restricted` does not permit {joined_or(found)}"
        if found == ["`user: 0`"]:
            hint = "write the number of another user than root, for example `user: 1000`, or leave `restricted` out"
            yield Problem("HW210", CLUSTER, (*_OPTIONS, "user"), message, hint)
            return
        yield Problem("HW210", CLUSTER, (*_OPTIONS, "restricted"), message, "leave them out, or `restricted`", at_key=True)


def _check_restricted_job(options: KubernetesOptions, plan: JobPlan) -> Iterator[Problem]:
    if options.restricted and plan.mounts:
        message = "the Pod Security level `restricted` does not permit `mounts` of the job, which are directories of the node"
        yield Problem("HW210", CLUSTER, (*_OPTIONS, "restricted"), message, "leave them out, or `restricted`", at_key=True)


def _check_runs(options: KubernetesOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    place = ("storage", [storage.path for storage in cluster.storage].index(plan.runs), "path")
    runs = PurePosixPath(plan.runs)
    if not runs.is_absolute():
        message = f"`{plan.runs}` is relative, but a pod does not start in your directory"
        yield Problem("HW406", CLUSTER, place, message, f"set the path at which the pods see it{_below(options)}")
        return
    if USER in plan.runs:
        message = f"`{USER}` in `{plan.runs}` has no value, since a pod has no user of the cluster"
        yield Problem("HW406", CLUSTER, place, message, "write the path out")
        return
    mount = _holder(runs, options.mounts)
    if mount is None:
        message = f"`{plan.runs}` is not on any mount of the pods, so the runs would be lost with them"
        hint = "add it to `scheduler.options.mounts`, with a `claim` or a `host_path`"
        yield Problem("HW406", CLUSTER, place, message, f"{hint}{_or_below(options)}")
    elif mount.read_only:
        message = f"`{plan.runs}` is on the mount of `{mount.path}`, which is read-only"
        yield Problem("HW406", CLUSTER, place, message, f"remove `read_only` there{_or_below(options)}")


def _below(options: KubernetesOptions) -> str:
    """Return an example on a mount of the pods."""
    below = [PurePosixPath(mount.path) / "runs" for mount in options.mounts if not mount.read_only]
    writable = [path for path in below if (mount := _holder(path, options.mounts)) is not None and not mount.read_only]
    return f", for example `path: {writable[0]}`" if writable else ""


def _or_below(options: KubernetesOptions) -> str:
    example = _below(options)
    return f", or set a path on a writable mount{example}" if example else ""


def _holder(path: PurePosixPath, mounts: tuple[Mount, ...]) -> Mount | None:
    """Return the innermost mount that contains `path`."""
    around = [mount for mount in mounts if path.is_relative_to(mount.path)]
    return max(around, key=lambda mount: len(PurePosixPath(mount.path).parts), default=None)


def _check_rdma(options: KubernetesOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    if needs_rdma(plan, cluster) and options.rdma is None:
        fabric = cluster.scale_out
        name = fabric.name if fabric else ""
        message = f"the pods get no RDMA device, but the scale-out fabric `{name}` is RDMA"
        hint = "set the resource of the device plugin, for example `rdma: {resource: rdma/hca_shared_devices_a}`"
        yield Problem("HW408", CLUSTER, _OPTIONS, message, hint, Severity.WARNING)
    scale_out, own_network = cluster.scale_out, _own_network(options)
    if options.rdma and scale_out and scale_out.transport == "roce" and not options.host_network and not own_network:
        message = f"the pods have a network of their own, and the RoCE adapters of `{scale_out.name}` are on their node's"
        hint = (
            "set `host_network: true` under `scheduler.options`, or the `annotations` by which a CNI plugin gives pods the adapters, "
            f"for example `{ATTACHED_NETWORKS[0]}`"
        )
        yield Problem("HW408", CLUSTER, _OPTIONS, message, hint, Severity.WARNING)
    adapters = len(cluster.group(plan.group).nics)
    if options.rdma is not None and options.rdma.resource in _GPUS:
        message = f"`{options.rdma.resource}` is the nodes' GPUs, which the pods get anyway, and no RDMA device"
        hint = "write the resource of the adapters' device plugin, for example `rdma/hca_shared_devices_a`"
        yield Problem("HW210", CLUSTER, (*_OPTIONS, "rdma", "resource"), message, hint)
    if options.rdma is not None and options.rdma.resource == _EFA and options.rdma.count != adapters > 0 and plan.has_whole_nodes:
        message = (
            f"a pod asks for {options.rdma.count} of the {counted(adapters, 'adapter')} of its node: `{_EFA}` counts adapters"
        )
        at = (*_OPTIONS, "rdma", "count" if "count" in options.rdma.model_fields_set else "resource")
        yield Problem("HW408", CLUSTER, at, message, f"set `count: {adapters}`", Severity.WARNING)


def _own_network(options: KubernetesOptions) -> bool:
    """Return whether pods have adapters of their own: a network that a CNI plugin attaches, or devices that they claim. `hostNetwork` in
    `pod` is meant as `host_network`, and is a problem itself."""
    in_pod = any(key in options.pod for key in ("resourceClaims", "hostNetwork"))
    return in_pod or any(key in options.annotations for key in ATTACHED_NETWORKS)


def _check_user(options: KubernetesOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    if options.user and locks_memory(options, plan, cluster):
        message = f"the user {options.user} may not lock memory, which RDMA requires: in a container, only root gets IPC_LOCK"
        hint = "start the nodes' container runtime with `LimitMEMLOCK=infinity`, or leave `user` out if the image's user is root"
        yield Problem("HW410", CLUSTER, (*_OPTIONS, "user"), message, hint, Severity.WARNING)


def _check_interfaces(options: KubernetesOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    # `hostNetwork` in `pod` is meant as `host_network`, and is a problem itself.
    if options.host_network or options.pod.get("hostNetwork") is True:
        return
    scale_out = cluster.scale_out
    if options.rdma and scale_out and scale_out.transport == "roce" and not _own_network(options):
        # They need the network of their node anyway (`_check_rdma`).
        return
    used = {variable.value.removeprefix("=") for variable in plan.env if variable.name.endswith("_SOCKET_IFNAME")}
    for index, fabric in enumerate(cluster.fabrics):
        if fabric.interface in used - {_POD_INTERFACE}:
            message = f"pods have no interface `{fabric.interface}`: their interface to the pod network is `{_POD_INTERFACE}`"
            hint = f"write `{_POD_INTERFACE}`, or set `host_network: true` under `scheduler.options`"
            yield Problem("HW409", CLUSTER, ("fabrics", index, "interface"), message, hint, Severity.WARNING)
