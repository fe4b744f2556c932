"""What a job comes to on its GPUs: its step, and when asked, other layouts and other numbers of GPUs."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.documents import PlannedJob, load_job_plan
from headway.cli.estimates import estimate_json, print_estimate
from headway.cli.plan_scaling import print_scaling, scaling_json
from headway.cli.plan_search import print_search, search_json
from headway.jobspec.estimate.calibrate import Calibration, MeasurementError, calibrate, measured_step
from headway.jobspec.estimate.decide import request_of
from headway.jobspec.estimate.estimate import Estimate, estimate
from headway.jobspec.estimate.from_plan import EstimateError, training_of
from headway.jobspec.estimate.goodput.of_plan import run_of
from headway.jobspec.estimate.goodput.run import Run
from headway.jobspec.estimate.scaling import Growth, Scaling, gpu_counts, scaling
from headway.jobspec.estimate.search import Request, SearchResult, in_order, search
from headway.jobspec.estimate.training import Training
from headway.jobspec.units import parse_seconds
from headway.templates.trainers import TRAINERS

if TYPE_CHECKING:
    from rich.console import Console

_GROWTHS: tuple[Growth, ...] = ("strong", "weak")


@dataclass(frozen=True)
class Outlook:
    """`estimate` is None where the plan lacks what one is made from: `lacks` says what. The others are there when asked for."""

    estimate: Estimate | None
    lacks: str = ""
    calibrated: bool = False
    search: SearchResult | None = None
    scaling: tuple[Scaling, ...] = ()


class OutlookError(Exception):
    """What was asked cannot be answered; the text says why."""


def configure_outlook(parser: argparse.ArgumentParser) -> None:
    """The options of `headway plan` that ask for more than the plan."""
    parser.add_argument("--estimate", action="store_true", help="for a job: only what a step takes, in memory and time")
    parser.add_argument(
        "--search", action="store_true", help="for a job: rank all layouts of its GPUs, and say why others are not among them"
    )
    parser.add_argument(
        "--top", type=_count, default=10, metavar="N", help="how many layouts --search shows (default: %(default)s)"
    )
    parser.add_argument(
        "--scaling",
        type=_range,
        metavar="FROM..TO",
        help="for a job: strong and weak scaling over numbers of GPUs, as `1k..100k`",
    )
    parser.add_argument(
        "--calibrate",
        type=_measured,
        action="append",
        default=[],
        metavar="[JOB=]STEP",
        help="a measured step, as `8.2s` or the metrics.jsonl of a run, of this job or of JOB; may be given several times",
    )


def asks(args: argparse.Namespace) -> bool:
    """Whether an option was given that only a job can answer."""
    return bool(args.estimate or args.search or args.scaling or args.calibrate)


def look(planned: PlannedJob, args: argparse.Namespace) -> Outlook:
    """What was asked of the job. Raises OutlookError where an option asks for what cannot be said."""
    try:
        training = training_of(planned.plan, planned.cluster)
        calibration = _calibration(training, args.calibrate, args.cluster)
        request = request_of(
            planned.job.spec, planned.plan, planned.cluster, TRAINERS[planned.job.spec.trainer.kind].only, args.top
        )
    except EstimateError as error:
        if asks(args):
            raise OutlookError(f"{error}; {error.hint}") from error
        return Outlook(None, f"{error}; {error.hint}")
    known = _calibrated(estimate(training), calibration)
    return Outlook(
        estimate=known,
        calibrated=calibration is not None,
        search=_ranked(search(request), calibration) if args.search else None,
        scaling=_scalings(request, args.scaling, _run(planned, known)) if args.scaling else (),
    )


def print_outlook(console: "Console", outlook: Outlook, planned: PlannedJob) -> None:
    """The answers, one below the other."""
    if outlook.estimate is None:
        console.print(f"\n[bold]estimate[/]: none: {outlook.lacks}", soft_wrap=True)
        return
    hourly_cost = planned.cluster.group(planned.plan.group).hourly_cost
    print_estimate(console, outlook.estimate, planned.plan, hourly_cost, outlook.calibrated)
    if outlook.search is not None:
        print_search(console, outlook.search)
    if outlook.scaling:
        print_scaling(console, outlook.scaling)


def outlook_json(outlook: Outlook) -> Mapping[str, Any]:
    """The answers as JSON."""
    return {
        "estimate": None if outlook.estimate is None else estimate_json(outlook.estimate),
        "calibrated": outlook.calibrated,
        **({} if outlook.search is None else {"search": search_json(outlook.search)}),
        **({} if not outlook.scaling else {"scaling": scaling_json(outlook.scaling)}),
    }


def _calibration(training: Training, measured: Sequence[str], cluster: Path | None) -> Calibration | None:
    if not measured:
        return None
    try:
        return calibrate([_measurement(training, text, cluster) for text in measured])
    except (MeasurementError, OSError) as error:
        raise OutlookError(str(error)) from error


def _measurement(training: Training, text: str, cluster: Path | None) -> tuple[Training, float]:
    """The training that was measured, and the seconds of its step."""
    job, separator, step = text.rpartition("=")
    if separator:
        planned = load_job_plan(Path(job), cluster)
        if planned is None:
            raise OutlookError(f"`{job}` has errors: nothing can be measured against it")
        training = training_of(planned.plan, planned.cluster)
    try:
        return training, parse_seconds(step)
    except ValueError:
        return training, measured_step(Path(step))


def _calibrated(found: Estimate, calibration: Calibration | None) -> Estimate:
    return found if calibration is None else replace(found, step=calibration.step_time(found.training))


def _ranked(found: SearchResult, calibration: Calibration | None) -> SearchResult:
    """The search's layouts in the order that the measurements give them."""
    if calibration is None:
        return found
    ranked = tuple(in_order(_calibrated(each, calibration) for each in found.ranked))
    fastest = {each.training: each for each in ranked}
    return replace(found, ranked=ranked, pareto=tuple(fastest[each.training] for each in found.pareto))


def _scalings(request: Request, gpus: Sequence[int], run: Run | None) -> tuple[Scaling, ...]:
    found = []
    for growth in _GROWTHS:
        _progress(f"{growth} scaling from {gpus[0]:,} to {gpus[-1]:,} GPUs ...")
        found.append(scaling(request, gpus, growth, run))
    return tuple(found)


def _run(planned: PlannedJob, known: Estimate) -> Run | None:
    """The job as a run that fails now and then; None where it does not say how long it is, or is not saved."""
    if not planned.plan.run.checkpoint.tiers:
        return None
    try:
        return run_of(planned.plan, planned.cluster, known.step.seconds, known.checkpoint_bytes)
    except EstimateError:
        return None


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"`{text}` is no number from 1 to 1000")
    return int(text)


def _range(text: str) -> tuple[int, ...]:
    try:
        return gpu_counts(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _measured(text: str) -> str:
    if not text.rpartition("=")[2]:
        raise argparse.ArgumentTypeError(f"`{text}` names no step: write `8.2s`, a metrics.jsonl, or JOB=8.2s")
    return text
