"""Checks the software versions on the nodes against each other, the GPUs, and the NCCL settings of the plan."""

from collections.abc import Iterator, Mapping, Sequence

from headway.jobspec.catalog.versions import Compatibility, compatibility, is_older, major_minor, ordering_key
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.resolve.environment import nccl_environment
from headway.jobspec.resolve.fabric import resolve_fabric
from headway.jobspec.resolve.nodes import gpu_of, resolve_group
from headway.jobspec.resolve.sizes import SizeError
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.operation import Versions
from headway.jobspec.suggest import joined_or, listed

# RCCL replaces NCCL on AMD's GPUs and has its own versions.
_NVIDIA: Mapping[str, str] = {"driver": "NVIDIA's driver", "cuda": "CUDA", "nccl": "NCCL"}


def check_versions(cluster: Cluster) -> Iterator[Problem]:
    """Check driver, CUDA, NCCL and PyTorch against each other."""
    versions = cluster.versions
    if versions.driver is not None and versions.cuda is not None:
        oldest = _oldest_drivers(cluster, compatibility())
        # One driver is too old for both: the problem is the GPU's, if that needs the newer one.
        of_family = compatibility().family_drivers.get(versions.cuda.split(".", maxsplit=1)[0], "0")
        if not any(is_older(versions.driver, each) and not is_older(each, of_family) for each in oldest.values()):
            yield from _check_driver(versions.driver, versions.cuda, compatibility(), list(oldest.values()))
    if versions.nccl is not None:
        yield from _check_faults(versions.nccl, compatibility())
    if versions.torch is not None and versions.cuda is not None:
        yield from _check_torch(versions.torch, versions.cuda, compatibility())


def check_gpu_versions(cluster: Cluster) -> Iterator[Problem]:
    """Check that driver and CUDA support the GPUs, and that there are GPUs that use them."""
    versions = cluster.versions
    models = _models(cluster)
    if versions.driver is not None:
        of_family = compatibility().family_drivers.get((versions.cuda or "0").split(".", maxsplit=1)[0], "0")
        oldest = {gpu: each for gpu, each in _oldest_drivers(cluster, compatibility()).items() if not is_older(each, of_family)}
        own = compatibility().toolkit_drivers.get(major_minor(versions.cuda)) if versions.cuda is not None else None
        yield from _check_gpu_driver(versions.driver, oldest, own)
    if versions.cuda is not None:
        yield from _check_gpu_cuda(versions.cuda, models, compatibility())
    if _all_from_amd(cluster):
        yield from _check_unused(versions)


def check_nccl_version(cluster: Cluster) -> Iterator[Problem]:
    """Check that NCCL reads every variable that the plan sets; its default version is the one in PyTorch."""
    stated, torch = cluster.versions.nccl, cluster.versions.torch
    nccl = stated or _nccl_of_torch(cluster)
    if nccl is None:
        return
    ignored = [name for name in _nccl_variables(cluster) if is_older(nccl, compatibility().nccl_since.get(name, "0"))]
    if not ignored:
        return
    wanted = max((compatibility().nccl_since[name] for name in ignored), key=ordering_key)
    names = listed(ignored)
    if stated is not None:
        message = f"NCCL {nccl} silently ignores {names}, which the plan sets"
        yield Problem("HW216", CLUSTER, ("versions", "nccl"), message, f"use NCCL {wanted} or newer")
    else:
        message = f"the wheels of torch {torch} bring NCCL {nccl}, which ignores {names} of the plan"
        hint = f"use a torch with NCCL {wanted} or newer, or set `nccl` to the version that the jobs load"
        yield Problem("HW230", CLUSTER, ("versions", "torch"), message, hint, Severity.WARNING)


def _nccl_of_torch(cluster: Cluster) -> str | None:
    """Return the NCCL in the wheels of the cluster's PyTorch; those for AMD's GPUs have RCCL, whose versions are not in
    the tables."""
    torch = cluster.versions.torch
    release = compatibility().torch.get(major_minor(torch)) if torch is not None and not _all_from_amd(cluster) else None
    return release.nccl if release is not None else None


def _nccl_variables(cluster: Cluster) -> list[str]:
    """Return names of the variables that ranks of any group get, each once."""
    try:
        fabrics = [resolve_fabric(fabric, cluster.node_groups) for fabric in cluster.fabrics]
    except SizeError:
        # Switches that cannot be counted have a problem of their own.
        return []
    scale_out = next((fabric.name for fabric in fabrics if fabric.role == "scale-out"), None)
    groups = [resolve_group(nodes, scale_out) for nodes in cluster.node_groups if nodes.gpus]
    return list(dict.fromkeys(variable.name for group in groups for variable in nccl_environment(fabrics, group)))


def _check_driver(driver: str, cuda: str, known: Compatibility, of_gpus: Sequence[str]) -> Iterator[Problem]:
    path = ("versions", "driver")
    oldest, own = known.family_drivers.get(cuda.split(".", maxsplit=1)[0]), known.toolkit_drivers.get(major_minor(cuda))
    if oldest is not None and is_older(driver, oldest):
        message = f"CUDA {cuda} needs a driver of the branch {oldest} or newer, but the nodes have {driver}"
        older = [family for family, minimum in known.family_drivers.items() if not is_older(driver, minimum)]
        runs_gpus = not any(is_older(driver, each) for each in of_gpus)
        build = f", or build with CUDA {older[-1]}" if older and runs_gpus else ""
        wanted = max([oldest, *([own] if own else []), *of_gpus], key=ordering_key)
        hint = f'write `"{wanted}"`, or a newer version{build}; leave `cuda` out if the image brings `cuda-compat` of NVIDIA'
        yield Problem("HW216", CLUSTER, path, message, hint)
    elif own is not None and is_older(driver, own):
        message = f"the driver {driver} runs binaries built with CUDA {cuda}, but cannot compile its PTX"
        hint = f"if kernels are compiled at run time, use the driver {own} or newer, which came with that CUDA"
        yield Problem("HW230", CLUSTER, path, message, hint, Severity.WARNING)


def _oldest_drivers(cluster: Cluster, known: Compatibility) -> dict[str, str]:
    """Return the oldest driver of each model of the cluster's GPUs."""
    return {gpu: oldest for gpu in _models(cluster) if (oldest := known.oldest_driver(gpu)) is not None}


def _models(cluster: Cluster) -> list[str]:
    # Groups that have problems are none yet.
    groups = getattr(cluster, "node_groups", ())
    described = [nodes.gpu if nodes.gpu_model is None else nodes.gpu_model.like for nodes in groups]
    return [gpu for gpu in described if gpu is not None]


def _check_gpu_driver(driver: str, oldest: Mapping[str, str], of_toolkit: str | None) -> Iterator[Problem]:
    gpu = max(oldest, key=lambda gpu: ordering_key(oldest[gpu]), default=None)
    if gpu is not None and is_older(driver, oldest[gpu]):
        message = f"the GPU `{gpu}` needs the driver {oldest[gpu]} or newer, but the nodes have {driver}"
        # The driver that came with the CUDA, where that is newer: an older one would be the next problem.
        wanted = max((oldest[gpu], *([of_toolkit] if of_toolkit else [])), key=ordering_key)
        yield Problem("HW216", CLUSTER, ("versions", "driver"), message, f'write `"{wanted}"`, or a newer version')


def _check_gpu_cuda(cuda: str, models: Sequence[str], known: Compatibility) -> Iterator[Problem]:
    built = {gpu: architecture for gpu in models if (architecture := known.architecture_of(gpu)) is not None}
    gpu = max(built, key=lambda gpu: ordering_key(built[gpu].cuda), default=None)
    if gpu is not None and is_older(cuda, built[gpu].cuda):
        message = f"the GPU `{gpu}` ({built[gpu].name}) needs CUDA {built[gpu].cuda} or newer, but `cuda` is {cuda}"
        hint = f"build with CUDA {built[gpu].cuda} or newer"
        yield Problem("HW216", CLUSTER, ("versions", "cuda"), message, hint)


def _all_from_amd(cluster: Cluster) -> bool:
    """Return whether there are GPUs, and each is a model of AMD's."""
    models = [gpu_of(nodes) for nodes in cluster.node_groups if nodes.gpu is not None]
    return bool(models) and all(model is not None and model.vendor == "AMD" for model in models)


def _check_unused(versions: Versions) -> Iterator[Problem]:
    for field, software in _NVIDIA.items():
        version = getattr(versions, field)
        if version is not None:
            message = f"`{field}` is {software} {version}, but all GPUs of the cluster are AMD's, which do not use it"
            hint = "leave it out: a cluster file has no ROCm version to check against"
            yield Problem("HW237", CLUSTER, ("versions", field), message, hint, Severity.WARNING)


def _check_faults(nccl: str, known: Compatibility) -> Iterator[Problem]:
    for fault in known.nccl_faults:
        if not is_older(nccl, fault.first) and not is_older(fault.last, nccl):
            message = f"NCCL {nccl} has a known fault: {fault.what}"
            hint = f"use NCCL {fault.fixed} or newer; {fault.first} to {fault.last} have it"
            yield Problem("HW230", CLUSTER, ("versions", "nccl"), message, hint, Severity.WARNING)


def _check_torch(torch: str, cuda: str, known: Compatibility) -> Iterator[Problem]:
    release, oldest = known.torch.get(major_minor(torch)), min(known.torch, key=ordering_key)
    if is_older(torch, oldest) and is_older(newest := known.torch[oldest].cuda[-1], major_minor(cuda)):
        message = f"PyTorch has no wheels of {torch} for CUDA {cuda}, which is newer: those of {oldest} end with CUDA {newest}"
        fitting = sorted((each for each, its in known.torch.items() if major_minor(cuda) in its.cuda), key=ordering_key)
        hint = f"use torch {joined_or(fitting) if fitting else 'of a newer release'}; any other requires building PyTorch from source"
        yield Problem("HW230", CLUSTER, ("versions", "torch"), message, hint, Severity.WARNING)
    if release is not None and release.cuda and major_minor(cuda) not in release.cuda:
        message = f"PyTorch has no wheels of {torch} for CUDA {cuda}"
        hint = f"it has them for {', '.join(release.cuda)}; any other requires building PyTorch from source"
        yield Problem("HW230", CLUSTER, ("versions", "cuda"), message, hint, Severity.WARNING)
