"""Estimates a job's step on its GPUs, and on request other layouts and other numbers of GPUs."""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from headway.cli.documents import load_job_plan
from headway.cli.terminal import progress
from headway.cli.views.estimates import step_seconds
from headway.compile import PlannedJob
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.units import parse_seconds
from headway.planner.decide import on_any_nodes, request_of
from headway.planner.estimate import Estimate, estimate
from headway.planner.from_plan import EstimateError, network_of, training_of
from headway.planner.goodput.of_plan import run_of
from headway.planner.goodput.run import SimulatedRun
from headway.planner.memory.ledger import MemoryUse, peak
from headway.planner.scaling import Growth, Scaling, gpu_counts, scaling
from headway.planner.schedules.orders import ScheduleError
from headway.planner.search.search import Request, SearchResult, in_order, search
from headway.planner.speed.calibrate import Calibration, MeasurementError, calibrate, measured_step
from headway.planner.training import Training
from headway.report import units
from headway.report.directory import RunError, find_run
from headway.runner.contract import RunDirectory
from headway.runs import searched
from headway.templates.trainers import TRAINERS

# Layouts that a search shows.
_TOP = 10
_GROWTHS: tuple[Growth, ...] = ("strong", "weak")
# A step that is this much longer or shorter than its estimate is of another job, or in another unit.
_PLAUSIBLE = 100


class Forecast(Struct, frozen=True):
    """A forecast. `estimate` is None if the plan cannot be estimated, for the reason `lacks`; its `memory` may be known all the same. The
    others are set if they were asked for."""

    estimate: Estimate | None
    lacks: str = ""
    memory: MemoryUse | None = None
    calibrated: bool = False
    search: SearchResult | None = None
    scaling: tuple[Scaling, ...] = ()


class ForecastError(Exception):
    """The question cannot be answered; the text gives the reason."""


def configure_forecast(parser: argparse.ArgumentParser) -> None:
    """The options of `headway plan` that ask for more than the plan."""
    parser.add_argument("--estimate", action="store_true", help="for a job: show only the estimate of a step's time and memory")
    parser.add_argument(
        "--search", action="store_true", help="for a job: rank all layouts of its GPUs and explain why others were ruled out"
    )
    parser.add_argument("--top", type=_count, metavar="N", help=f"number of layouts that --search shows (default: {_TOP})")
    parser.add_argument(
        "--scaling",
        type=_range,
        metavar="FROM..TO",
        help="for a job: estimate strong and weak scaling over the powers of 2 in a range of GPUs, such as `1k..100k`",
    )
    parser.add_argument(
        "--calibrate",
        type=_measured,
        action="append",
        default=[],
        metavar="[JOB=]STEP",
        help="calibrate with a measured step of this job or of JOB: `8.2s`, a run, or its metrics.jsonl; repeatable",
    )


def asks(args: argparse.Namespace) -> bool:
    """Whether an option was given that only a job can answer."""
    return bool(args.estimate or args.search or args.scaling or args.calibrate)


def forecast(planned: PlannedJob, args: argparse.Namespace) -> Forecast:
    """Answer the options about a job. Raises ForecastError if one of them cannot be answered."""
    spec, plan, cluster = planned.job.spec, planned.plan, planned.cluster
    limits = {path: values for path, (values, _) in TRAINERS[spec.trainer.kind].only.items()}
    try:
        training = training_of(plan, cluster)
        found = estimate(training)
        calibration = _calibration(training, args.calibrate, args.cluster)
        request = request_of(spec, plan, cluster, limits, args.top or _TOP)
        grown = request
        if args.scaling:
            # More nodes than the job's may need what the cluster does not set: an EstimateError.
            group = cluster.group(plan.group)
            network = network_of(cluster, group, max(plan.slots, -(-max(args.scaling) // group.gpus)))
            grown = replace(on_any_nodes(request, limits), network=network)
    except EstimateError as error:
        memory = _memory(plan, cluster)
        if asks(args) and (memory is None or args.search or args.scaling or args.calibrate):
            raise ForecastError(f"{error}; {error.hint}") from error
        return Forecast(None, f"{error}; {error.hint}", memory)
    known = _calibrated(found, calibration)
    if not known.is_possible:
        raise ForecastError(
            f"by the measurements a step takes {step_seconds(known.step.seconds)}, {known.mfu_causal:.0%} of the peak of a "
            f"{training.gpu.name}: check that they are of this job, with this batch, and in this unit"
        )
    if args.search:
        progress(f"searching all layouts of {units.count(request.gpus, 'GPU')}")
    return Forecast(
        estimate=known,
        calibrated=calibration is not None,
        search=_ranked(search(request), calibration) if args.search else None,
        scaling=_scalings(grown, args.scaling, _run(planned, known), calibration) if args.scaling else (),
    )


def _memory(plan: JobPlan, cluster: ClusterPlan) -> MemoryUse | None:
    """Return the memory of a step whose time cannot be estimated; None where that is unknown too."""
    try:
        return peak(training_of(plan, cluster, for_memory=True))
    except (EstimateError, ScheduleError):
        return None


def _calibration(training: Training, measured: Sequence[str], cluster: Path | None) -> Calibration | None:
    if not measured:
        return None
    found = [_measurement(training, text, cluster) for text in measured]
    try:
        return calibrate(found)
    except MeasurementError as error:
        raise ForecastError(str(error)) from error


def _measurement(training: Training, text: str, cluster: Path | None) -> tuple[Training, float]:
    """The training that was measured, and the seconds of its step. Raises EstimateError, ForecastError."""
    job, separator, step = text.rpartition("=")
    if separator:
        planned = load_job_plan(Path(job), cluster)
        if planned is None:
            raise ForecastError(f"`{job}` has errors, so no measurement can be compared with it")
        training = training_of(planned.plan, planned.cluster)
    try:
        seconds = parse_seconds(step)
    except ValueError:
        seconds = _recorded(step)
    _refuse_implausible(seconds, estimate(training).step.seconds, step)
    return training, seconds


def _recorded(file: str) -> float:
    """The step that a metrics.jsonl has. Raises ForecastError."""
    try:
        return measured_step(_metrics_of(file))
    except MeasurementError as error:
        raise ForecastError(f"{error}; `{file}` should be the metrics.jsonl of a run") from error
    except FileNotFoundError as error:
        raise ForecastError(f"`{file}` is neither a time such as `8.2s`, nor a run, nor a file") from error
    except OSError as error:
        raise ForecastError(f"`{file}` cannot be read: {error.strerror}") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise ForecastError(f"`{file}` is not a metrics.jsonl of a run") from error


def _metrics_of(name: str) -> Path:
    """The file, or that of the run in the folder or of this name."""
    if Path(name).is_file():
        return Path(name)
    try:
        run = RunDirectory(find_run(name, searched(os.environ)))
    except RunError:
        return Path(name)
    return run.metrics if run.handle.is_file() else Path(name)


def _refuse_implausible(seconds: float, estimated: float, told: str) -> None:
    if seconds > 0 and not estimated / _PLAUSIBLE <= seconds <= estimated * _PLAUSIBLE:
        raise ForecastError(
            f"`{told}` is a step of {step_seconds(seconds)}, and the estimate is {step_seconds(estimated)}: more than {_PLAUSIBLE} "
            "times apart; check that it is of this job and in this unit"
        )


def _calibrated(found: Estimate, calibration: Calibration | None) -> Estimate:
    return found if calibration is None else replace(found, step=calibration.step_time(found.training))


def _ranked(found: SearchResult, calibration: Calibration | None) -> SearchResult:
    """The search's layouts in the order that the measurements give them."""
    if calibration is None:
        return found
    ranked = tuple(in_order(_calibrated(each, calibration) for each in found.ranked))
    fastest = {each.training: each for each in ranked}
    return replace(found, ranked=ranked, pareto=tuple(fastest[each.training] for each in found.pareto))


def _scalings(
    request: Request, gpus: Sequence[int], run: SimulatedRun | None, calibration: Calibration | None
) -> tuple[Scaling, ...]:
    found = []
    for growth in _GROWTHS:
        progress(f"{growth} scaling from {gpus[0]:,} to {gpus[-1]:,} GPUs")
        found.append(scaling(request, gpus, growth, run, lambda each: _calibrated(each, calibration)))
    return tuple(found)


def _run(planned: PlannedJob, known: Estimate) -> SimulatedRun | None:
    """The job as a run that fails now and then; None where it does not say how long it is, or is not saved."""
    if not planned.plan.run.checkpoint.tiers:
        return None
    try:
        return run_of(planned.plan, planned.cluster, known.step.seconds, known.checkpoint_bytes)
    except EstimateError:
        return None


def _count(text: str) -> int:
    if re.fullmatch("[1-9][0-9]{0,3}", text) is None or int(text) > 1000:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number from 1 to 1000")
    return int(text)


def _range(text: str) -> tuple[int, ...]:
    try:
        return gpu_counts(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _measured(text: str) -> str:
    job, separator, step = text.rpartition("=")
    if not step or (separator and not job):
        missing = "step" if not step else "job"
        raise argparse.ArgumentTypeError(f"`{text}` has no {missing}: write `8.2s`, a metrics.jsonl, or JOB=8.2s")
    return text
