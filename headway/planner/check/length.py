"""Checks the length of a run against its limits, by the planner's time of a step."""

from collections.abc import Iterator

from headway.jobspec.notation import counted, write_parts
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.planner.from_plan import EstimateError, states_framework, training_of

# The estimate's intervals are narrower: a run that ends within them may be meant.
_FAR_LESS = 2.0
_HOUR_S, _DAY_S = 3600, 86400


def check_length(plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Warn of a limit of the whole run that ends it before half of its steps; no error, since the time of a step is an estimate.

    Only of a framework that is stated: the time of another may be far from the assumed one's.
    """
    limits, steps = plan.spec["limits"]["run"], plan.run.steps
    time_s, gpu_hours = limits["time"], limits["gpu_hours"]
    if steps is None or (time_s is None and gpu_hours is None) or not states_framework(plan):
        return
    from headway.planner.schedules.orders import ScheduleError  # noqa: PLC0415 (few jobs limit the run)
    from headway.planner.speed.step import step_time  # noqa: PLC0415

    try:
        training = training_of(plan, cluster)
        needed_s = steps * step_time(training).seconds
    except (EstimateError, ScheduleError, ValueError):
        return
    about = write_parts(_rounded(needed_s))
    attempt_s = plan.spec["limits"]["attempt"]["time"] or 0
    # Where one attempt alone is beyond the limit, that is the problem.
    if time_s is not None and needed_s > _FAR_LESS * time_s and attempt_s <= time_s:
        message = f"{counted(steps, 'step')} take about {about} by the estimate, and the run ends after {write_parts(time_s)}"
        hint = f"set `time` to more than {about}, or fewer `steps`: at most {int(time_s / needed_s * steps)} in that time"
        yield Problem("HW708", JOB, ("limits", "run", "time"), message, f"{hint}; {_SHOWN}", Severity.WARNING)
        return
    hours = needed_s / 3600 * training.gpus
    if gpu_hours is not None and hours > _FAR_LESS * gpu_hours >= attempt_s / 3600 * training.gpus:
        message = f"{counted(steps, 'step')} take about {_figures(hours):,} GPU-hours by the estimate, "
        message += f"and the run ends after {gpu_hours:,.10g}"
        hint = f"set `gpu_hours` to more than {_figures(hours)}, or fewer `steps`: at most {int(gpu_hours / hours * steps)} with that"
        yield Problem("HW708", JOB, ("limits", "run", "gpu_hours"), message, f"{hint}; {_SHOWN}", Severity.WARNING)


_SHOWN = "`headway plan --estimate` shows the time of a step"


def _rounded(seconds: float) -> int:
    """Return the time in days, or in hours where it is short."""
    unit = _DAY_S if seconds > 2 * _DAY_S else _HOUR_S if seconds > 2 * _HOUR_S else 60
    return max(1, round(seconds / unit)) * unit


def _figures(number: float) -> int:
    """Return the number with two significant digits."""
    return int(float(f"{number:.1e}"))
