"""Reports what Megatron-LM requires of a job besides its arguments."""

from collections.abc import Iterator

from headway.jobspec.flow import flow
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem
from headway.templates.trainers.megatron.options import MegatronOptions
from headway.templates.trainers.table import Known

_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
# megatron/training/arguments.py (`validate_args`): from compute capability 10 on it asks for no variable.
_ASKS = ("Ampere", "Hopper")


def check(options: MegatronOptions, plan: JobPlan, cluster: ClusterPlan, known: Known) -> Iterator[Problem]:
    """Check that each rank has a GPU, and the job the variable without which Megatron stops at its start."""
    if plan.backend != "nccl":
        message = "Megatron-LM trains on GPUs, and the job's nodes have none"
        yield Problem("HW306", JOB, ("trainer", "kind"), message, "use the trainer `builtin` or `hf`, or a cluster with GPUs")
        return
    gpu = cluster.group(plan.group).known_gpu
    value = next((variable.value for variable in plan.env if variable.name == _VARIABLE), None)
    if known["layout.sharding"] in ("gradients", "parameters") and value == "1":
        message = f"Megatron-FSDP stops at its start if `{_VARIABLE}` is 1"
        path = ("environment", _VARIABLE) if _VARIABLE in plan.spec["environment"] else ("layout", "sharding")
        yield Problem("HW306", JOB, path, message, f"remove `{_VARIABLE}`, or set `sharding: optimizer`")
    is_free = known["layout.sharding"] in ("gradients", "parameters") or known["overlap.experts"]
    yield from _check_paths(plan)
    split = [axis for axis in ("tp", "cp") if getattr(plan.mesh, axis) > 1]
    if split and value != "1" and gpu is not None and gpu.arch in _ASKS and not is_free:
        message = f"with `{split[0]}` Megatron-LM stops at its start unless `{_VARIABLE}` is 1"
        hint = f'set it in the job: `environment: {{{_VARIABLE}: "1"}}`'
        yield Problem("HW306", JOB, ("layout", split[0]), message, hint)


def _check_paths(plan: JobPlan) -> Iterator[Problem]:
    """Check that each path is a prefix: Megatron adds `.bin` and `.idx` itself (megatron/core/datasets/indexed_dataset.py)."""
    paths = [] if plan.run.data is None else plan.run.data.options["paths"]
    for index, path in enumerate(paths):
        stem, dot, suffix = path.rpartition(".")
        if dot and suffix in ("bin", "idx"):
            message = f"`{path}` is a file, and Megatron-LM adds `.bin` and `.idx` to the prefix of both"
            yield Problem("HW307", JOB, ("data", "options", "paths", index), message, f"write `{stem}`", fix=flow(stem))
