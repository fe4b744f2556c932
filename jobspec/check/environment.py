"""A job's own variables against those that the plan, the runner and the scheduler set: each is set in one place."""

from collections.abc import Iterable, Iterator

from headway.jobspec.plan import EnvVar, JobPlan
from headway.jobspec.problem import JOB, Problem

# What the agent tells every rank (runner/agent/main.py), as torchrun does (docs.pytorch.org elastic/run, "Environment Variables"), and
# what schedulers tell every process (Slurm: sbatch(1); Kubernetes: an indexed Job's completion index).
_PER_RANK = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JOB_COMPLETION_INDEX",
)
_PREFIXES = ("TORCHELASTIC_", "HEADWAY_", "SLURM_")

# Variables that a planned one stands in for, or that turn off what it chooses.
_RIVALS = {
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp and FlightRecorder.hpp: older names of one setting.
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE",
    # torch: c10/core/AllocatorConfig.h.
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_ALLOC_CONF",
    # NVIDIA/nccl src/transport/net_ib: the adapters are not used; the GID index is not looked for.
    "NCCL_IB_DISABLE": "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX": "NCCL_IB_ROCE_VERSION_NUM",
}


def check_names(names: Iterable[str]) -> Iterator[Problem]:
    """What every rank gets a value of its own for."""
    for name in names:
        if name in _PER_RANK or name.startswith(_PREFIXES):
            message = f"`{name}` is set for each rank when it starts, and one value for all would be wrong"
            yield Problem("HW418", JOB, ("environment", name), message, "leave it out", at_key=True)


def check_environment(plan: JobPlan) -> Iterator[Problem]:
    """The job's variables beside those that follow from the cluster."""
    own = plan.spec["environment"]
    planned = {variable.name: variable for variable in plan.env[: len(plan.env) - len(own)]}
    for name in own:
        if name in planned:
            yield _taken(name, planned[name], f"the plan for `{plan.cluster}` sets `{name}`")
        elif (rival := _RIVALS.get(name)) in planned:
            yield _taken(name, planned[rival], f"`{name}` goes against `{rival}`, which the plan for `{plan.cluster}` sets")


def _taken(name: str, planned: EnvVar, message: str) -> Problem:
    why = f"to `{planned.value}`: {planned.reason} ({planned.source})"
    hint = "leave it out: the value follows from the cluster file"
    return Problem("HW418", JOB, ("environment", name), f"{message} {why}", hint, at_key=True)
