"""Checks a job's step against the memory of its GPUs, by the planner's ledger."""

from collections.abc import Iterator

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.planner.from_plan import EstimateError, states_framework, training_of
from headway.planner.memory.hints import hints
from headway.planner.memory.ledger import GIB, peak


def check_memory(plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Warn if the step does not fit; no error, since a profile may be less exact than a user's measurement.

    A script of an unknown framework is not checked.
    """
    if plan.model is None or plan.run.batch is None or not plan.gpus_per_slot or not states_framework(plan):
        return
    try:
        training = training_of(plan, cluster)
        use = peak(training)
    except (EstimateError, ValueError):
        return
    if use.verdict != "does not fit":
        return
    held = f"{use.needed / GIB:.1f} GiB of {use.capacity / GIB:.1f} GiB"
    message = (
        f"a step does not fit into the memory of its GPUs ({training.gpu.name}): {held}, by the profile `{training.framework}`"
    )
    hint = "; or ".join(hints(training, use)) or "use more GPUs, or GPUs with more memory"
    yield Problem(
        "HW427", JOB, ("batch", "micro"), message, f"{hint}; `headway plan --estimate` shows what uses it", Severity.WARNING
    )
