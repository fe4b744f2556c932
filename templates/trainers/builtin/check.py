"""What the builtin trainer cannot do with a plan."""

from collections.abc import Iterator

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem
from headway.templates.trainers.builtin.options import BuiltinOptions

_AXES = ("pp", "dp_replicate", "cp", "tp")
_BYTE_TOKENS = 256


def check(options: BuiltinOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """It shards over `dp_shard` only, and its tokens are bytes."""
    for axis in _AXES:
        degree = getattr(plan.mesh, axis)
        if degree > 1:
            message = f"the trainer `builtin` does not split over `{axis}`, and the layout has {degree}"
            yield Problem("HW306", JOB, ("layout", axis), message, f"leave `{axis}` out: all ranks then go to `dp_shard`")
    model = plan.run.model
    if model is not None and model.vocab_size < _BYTE_TOKENS:
        message = f"a vocabulary of {model.vocab_size} cannot hold the data's tokens, which are bytes"
        yield Problem("HW307", JOB, ("model", "vocab_size"), message, f"use at least {_BYTE_TOKENS}")
