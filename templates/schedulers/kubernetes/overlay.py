"""Adds fields of Kubernetes that have no option to a pod, and reports those that headway sets itself."""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.jobspec.document import Path
from headway.jobspec.flow import flow
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.spec.scheduling import KubernetesRequest
from headway.jobspec.suggest import nearest
from headway.templates.schedulers.kubernetes.options import KubernetesOptions

# The field of a job for its GPUs of each node.
_GPUS = "gpus"
# Fields that the manifest sets, and the option that sets each of them, if there is one.
_OF_POD: Mapping[str, str | None] = {
    "automountServiceAccountToken": None,
    "dnsPolicy": "host_network",
    "enableServiceLinks": None,
    "hostNetwork": "host_network",
    "hostname": None,
    "imagePullSecrets": "image_pull_secrets",
    "nodeSelector": "node_selector",
    "priorityClassName": "priority_class",
    "restartPolicy": None,
    "runtimeClassName": "runtime_class",
    "securityContext.fsGroup": "fs_group",
    "securityContext.runAsGroup": "group",
    "securityContext.runAsNonRoot": "restricted",
    "securityContext.runAsUser": "user",
    "securityContext.seccompProfile": "restricted",
    "serviceAccountName": "service_account",
    "setHostnameAsFQDN": None,
    "subdomain": None,
    "terminationGracePeriodSeconds": None,
    "tolerations": "tolerations",
    "affinity.podAntiAffinity": None,
}
_OF_CONTAINER: Mapping[str, str | None] = {
    "args": None,
    "command": None,
    "image": "image",
    "imagePullPolicy": "image_pull_policy",
    "name": None,
    "resources.limits.amd.com/gpu": _GPUS,
    "resources.limits.memory": "memory",
    "resources.limits.nvidia.com/gpu": _GPUS,
    "resources.requests.amd.com/gpu": _GPUS,
    "resources.requests.cpu": None,
    "resources.requests.memory": "memory",
    "resources.requests.nvidia.com/gpu": _GPUS,
    "securityContext.allowPrivilegeEscalation": None,
    "securityContext.capabilities.drop": None,
    "terminationMessagePolicy": None,
}
# Lists to which an overlay adds, and the names in them that headway uses.
_LISTS_OF_POD: Mapping[str, tuple[str, ...]] = {"containers": ("runner",), "initContainers": (), "volumes": ("headway", "shm")}
_LISTS_OF_CONTAINER: Mapping[str, tuple[str, ...]] = {"env": (), "envFrom": (), "volumeMounts": ()}
_NUMBERED_VOLUMES = "mount-"


# Fields of a PodSpec and of a Container (kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1, v1.34).
_FIELDS: Mapping[str, frozenset[str]] = {
    "pod": frozenset(
        [
            "activeDeadlineSeconds",
            "affinity",
            "automountServiceAccountToken",
            "containers",
            "dnsConfig",
            "dnsPolicy",
            "enableServiceLinks",
            "ephemeralContainers",
            "hostAliases",
            "hostIPC",
            "hostNetwork",
            "hostPID",
            "hostUsers",
            "hostname",
            "hostnameOverride",
            "imagePullSecrets",
            "initContainers",
            "nodeName",
            "nodeSelector",
            "os",
            "overhead",
            "preemptionPolicy",
            "priority",
            "priorityClassName",
            "readinessGates",
            "resourceClaims",
            "resources",
            "restartPolicy",
            "runtimeClassName",
            "schedulerName",
            "schedulingGates",
            "securityContext",
            "serviceAccount",
            "serviceAccountName",
            "setHostnameAsFQDN",
            "shareProcessNamespace",
            "subdomain",
            "terminationGracePeriodSeconds",
            "tolerations",
            "topologySpreadConstraints",
            "volumes",
            "workloadRef",
        ]
    ),
    "container": frozenset(
        [
            "args",
            "command",
            "env",
            "envFrom",
            "image",
            "imagePullPolicy",
            "lifecycle",
            "livenessProbe",
            "name",
            "ports",
            "readinessProbe",
            "resizePolicy",
            "resources",
            "restartPolicy",
            "restartPolicyRules",
            "securityContext",
            "startupProbe",
            "stdin",
            "stdinOnce",
            "terminationMessagePath",
            "terminationMessagePolicy",
            "tty",
            "volumeDevices",
            "volumeMounts",
            "workingDir",
        ]
    ),
}


def check_overlay(
    document: str, place: Path, pod: Mapping[str, Any], container: Mapping[str, Any], variables: tuple[str, ...]
) -> Iterator[Problem]:
    """Report fields below `pod` and `container` at `place` that headway sets, and names that it uses; `variables` are those of
    the plan."""
    for name, given, own in (("pod", pod, _OF_POD), ("container", container, _OF_CONTAINER)):
        yield from _check_names(document, (*place, name), given, _FIELDS[name], own)
    yield from _check_fields(document, (*place, "pod"), pod, _OF_POD)
    yield from _check_fields(document, (*place, "container"), container, _OF_CONTAINER)
    for field, names in _LISTS_OF_POD.items():
        yield from _check_list(document, (*place, "pod", field), pod.get(field, []), names)
    for field in _LISTS_OF_CONTAINER:
        names = variables if field == "env" else ()
        yield from _check_list(document, (*place, "container", field), container.get(field, []), names)


def _check_fields(document: str, place: Path, given: Mapping[str, Any], own: Mapping[str, str | None]) -> Iterator[Problem]:
    for path, value in _leaves(given):
        for length in range(1, len(path) + 1):
            name = ".".join(path[:length])
            if name in own:
                hint = _in_place_of(document, own[name], value if length == len(path) else None)
                message = f"`{name}` is set by headway in every manifest"
                yield Problem("HW210", document, (*place, *path[:length]), message, hint, at_key=True)
                break


def _in_place_of(document: str, option: str | None, value: Any) -> str:
    """Return the hint to set the option in place of a field of Kubernetes, with the field's value if the option takes it."""
    if option is None:
        return "leave it out"
    if option == _GPUS:
        return "leave it out; `gpus` of the job is the number of GPUs of each pod, all of a node's when left out"
    if option == "image" and document == JOB:
        return "leave it out: `code.image` of the job is its image"
    from headway.jobspec.fitting import accepts  # noqa: PLC0415 (few overlays have such a field)

    info = KubernetesOptions.model_fields[option]
    written = f"{option}: {flow(value)}" if value is not None and accepts(info, value) else option
    of_job = document == JOB and option in KubernetesRequest.model_fields
    return (
        f"leave it out, and set `{written}` under {'`scheduler.kubernetes`' if of_job else '`scheduler.options` of the cluster'}"
    )


def _check_names(
    document: str, place: Path, given: Mapping[str, Any], fields: frozenset[str], own: Mapping[str, str | None]
) -> Iterator[Problem]:
    """Warn about fields that Kubernetes does not have; a newer one may. `own` are those that headway sets, with their options."""
    for key in given:
        if key not in fields:
            same = next((each for each in fields if each.lower() == key.replace("_", "").lower()), None) or nearest(
                key, sorted(fields)
            )
            message = f"`{key}` is not a field of a {place[-1]} of Kubernetes, whose API server would drop or refuse it"
            hint = f"did you mean `{same}`?" if same else "correct its name, as `kubectl explain pod.spec` prints it"
            if same is not None and same in own:
                # The right name would be refused next.
                hint, same = _in_place_of(document, own[same], given[key]), None
            yield Problem("HW210", document, (*place, key), message, hint, Severity.WARNING, at_key=True, fix=same)


def _check_list(document: str, place: Path, given: Any, names: tuple[str, ...]) -> Iterator[Problem]:
    if not isinstance(given, list) or not all(isinstance(item, Mapping) for item in given):
        message = f"`{place[-1]}` is not a list of mappings, as Kubernetes has it"
        yield Problem("HW210", document, place, message, f"write `{place[-1]}: [{{name: ...}}]`", at_key=True)
        return
    for index, item in enumerate(given):
        name = str(item.get("name", ""))
        if name in names or (place[-1] == "volumes" and name.startswith(_NUMBERED_VOLUMES)):
            message = f"the name `{name}` is used by headway in `{place[-1]}`"
            yield Problem("HW210", document, (*place, index), message, "use another name")


def _leaves(given: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value that is no mapping, with its path."""
    for key, value in given.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value
