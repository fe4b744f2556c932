"""`headway simulate`: simulates a job's run under failures many times and prints its goodput."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from headway.cli.documents import PlannedJob, load_job_plan
from headway.cli.terminal import progress
from headway.jobspec.estimate.estimate import estimate
from headway.jobspec.estimate.from_plan import EstimateError, training_of
from headway.jobspec.estimate.goodput.defaults import defaults
from headway.jobspec.estimate.goodput.interval import best_interval
from headway.jobspec.estimate.goodput.of_plan import run_of, transfer_of, with_latent_corruption, with_replicas
from headway.jobspec.estimate.goodput.run import Run, Tier
from headway.jobspec.estimate.goodput.simulate import simulate_each
from headway.jobspec.estimate.goodput.spares import best_spares
from headway.jobspec.estimate.goodput.summary import IntervalRow, Summary, over_interval, summarize
from headway.jobspec.estimate.goodput.tiers import KINDS, Transfer, tier_of
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.units import parse_bytes, parse_seconds
from headway.report import units
from headway.runner import contract

SCHEMA = "headway.simulation/1"

_DAY_S = 86400
# Beyond these an option is a slip: GPUs, nodes that stand by, seeds, days, and a Weibull shape, for which all nodes fail at one age.
_MOST, _MOST_STANDBY, _MOST_SEEDS, _MOST_DAYS, _MOST_SHAPE = 100_000_000, 1_000_000, 100_000, 100_000, 100

T = TypeVar("T")


@dataclass(frozen=True)
class Simulation:
    """What is told of a job: its run, what became of it, and for each tier goodput over the interval and the best one."""

    job: str
    cluster: str
    run: Run
    summary: Summary
    intervals: Mapping[str, tuple[IntervalRow, ...]]
    best_interval_s: Mapping[str, float]
    best_spares: int


class _UsageError(Exception):
    """Options that do not go together, or that the job wants and were not given."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Write times as in the documents: 30s, 15m, 300d. docs/simulate.md describes the model and the source of every default."
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="a TrainingJob document")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="a Cluster document (default: the first that the job names)")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also plot goodput over the checkpoint interval into this file")
    parser.add_argument("--seeds", type=_seeds, default=16, metavar="N", help="number of simulated runs (default: %(default)s)")
    parser.add_argument(
        "--first-seed", type=_natural, default=0, metavar="N", help="seed of the first simulated run (default: %(default)s)"
    )
    _add_run(parser.add_argument_group("run (override the job's values and the estimates)"))
    _add_failures(parser.add_argument_group("failures (override the cluster's values and published ones)"))
    _add_recovery(parser.add_argument_group("recovery (override the job's values and published ones)"))


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--step-time", type=_length, metavar="TIME", help="time of one optimizer step, without saves (default: estimated)"
    )
    group.add_argument("--checkpoint-bytes", type=_size, metavar="SIZE", help="size of one checkpoint (default: estimated)")
    group.add_argument("--days", type=_days, metavar="N", help="length of the run in days, in place of the job's steps")
    group.add_argument("--gpus", type=_count, metavar="N", help="number of GPUs; the step time stays the same")


def _add_failures(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--node-mtbf", type=_length, metavar="TIME", help="mean time between failures of one node")
    group.add_argument(
        "--job-mtbf", type=_length, metavar="TIME", help="mean time between failures of the whole job, whatever its size"
    )
    group.add_argument(
        "--rack-mtbf", type=_length, metavar="TIME", help="mean time between failures of one rack, which take down all its nodes"
    )
    group.add_argument("--rack-nodes", type=_count, metavar="N", help="nodes per rack")
    group.add_argument("--repair", type=_time, metavar="TIME", help="mean time until a replaced node is repaired")
    group.add_argument(
        "--shape", type=_positive, metavar="K", help="Weibull shape of a node's time to failure; below 1, new nodes fail most"
    )
    group.add_argument("--node-age", type=_time, metavar="TIME", help="age of the nodes at the start, with `--shape`")
    group.add_argument(
        "--corruption-latency",
        type=_time,
        metavar="TIME",
        help="time that training continues on silently corrupted values until that is detected",
    )


def _add_recovery(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--every",
        type=_tier,
        action="append",
        default=[],
        metavar="TIER=TIME",
        help="checkpoint interval of a tier; adds the tier if needed",
    )
    group.add_argument(
        "--block",
        type=_tier,
        action="append",
        default=[],
        metavar="TIER=TIME",
        help="how long a save to the tier blocks training",
    )
    group.add_argument("--spares", type=_standby, metavar="N", help="spare nodes that the job holds")
    group.add_argument("--pool", type=_standby, metavar="N", help="nodes of the cluster that can replace lost ones")
    group.add_argument("--warm-restart", type=_time, metavar="TIME", help="time of a restart on nodes that the job holds")
    group.add_argument("--cold-restart", type=_time, metavar="TIME", help="time of a restart with a node from outside the job")
    group.add_argument("--provision", type=_time, metavar="TIME", help="time until a node from outside the job has joined")
    group.add_argument("--detect", type=_time, metavar="TIME", help="time until a failure of any cause is detected")
    group.add_argument(
        "--drop-replicas",
        action="store_true",
        help="continue with the remaining dp_replicate replicas when one is lost (fault-tolerant HSDP)",
    )
    group.add_argument("--unlimited-restarts", action="store_true", help="ignore the job's restart budget")


def run(args: argparse.Namespace) -> int:
    """Prints what became of the run. 1 when the documents have errors, 2 for wrong usage, 3 when the picture cannot be written."""
    planned = load_job_plan(args.job, args.cluster)
    if planned is None:
        return 1
    try:
        simulation = simulate_job(planned, args)
    except _UsageError as error:
        return _fail(str(error), 2)
    _print(simulation, args.json)
    return 0 if args.svg is None else _write_picture(simulation, args.svg)


def simulate_job(planned: PlannedJob, args: argparse.Namespace) -> Simulation:
    """The job's run with the options' values. Raises _UsageError."""
    plan = _resized(planned.plan, args.gpus)
    simulated = _run(plan, planned.cluster, args)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    kinds = [tier.kind for tier in simulated.tiers]
    progress(
        f"simulating {units.count(plan.slots, 'node')} {units.count(len(seeds), 'time')}, and other intervals of checkpoints"
    )
    return Simulation(
        job=plan.name,
        cluster=plan.cluster,
        run=simulated,
        summary=summarize(simulated, simulate_each(simulated, seeds)),
        intervals={kind: over_interval(simulated, kind, seeds) for kind in kinds},
        best_interval_s={kind: best_interval(simulated, kind) for kind in kinds},
        best_spares=best_spares(simulated),
    )


def as_json(simulation: Simulation) -> str:
    """Every figure as JSON; a time without end is null."""
    return json.dumps(_plain({"schema": SCHEMA} | asdict(simulation)), indent=2) + "\n"


def _run(plan: JobPlan, cluster: ClusterPlan, args: argparse.Namespace) -> Run:
    wall_s = None if args.days is None else args.days * _DAY_S
    step_s, checkpoint_bytes = _step(plan, cluster, args)
    try:
        found = run_of(plan, cluster, step_s, checkpoint_bytes, wall_s)
        found = _with_tiers(found, transfer_of(plan, cluster, checkpoint_bytes), _kept(plan), args)
        return _with_replicas(_with_recovery(_with_failures(found, args), args), plan, args)
    except EstimateError as error:
        raise _UsageError(f"{error}; {error.hint}: `--days 30`") from error
    except ValueError as error:
        raise _UsageError(str(error)) from error


def _kept(plan: JobPlan) -> int:
    """How many checkpoints stay on a tier that an option adds."""
    return contract.Tier.keep if plan.spec["checkpoint"] is None else int(plan.spec["checkpoint"]["keep"])


def _step(plan: JobPlan, cluster: ClusterPlan, args: argparse.Namespace) -> tuple[float, int]:
    """Seconds of a step and bytes of a checkpoint: as given, else as estimated."""
    step_s, checkpoint_bytes = args.step_time, args.checkpoint_bytes
    if step_s is None or checkpoint_bytes is None:
        try:
            estimated = estimate(training_of(plan, cluster))
        except EstimateError as error:
            if step_s is None:
                raise _UsageError(f"the time of a step is unknown: {error}; set `--step-time 5s`") from error
            return step_s, _bytes_of_model(plan) if checkpoint_bytes is None else checkpoint_bytes
        step_s = estimated.step.seconds if step_s is None else step_s
        checkpoint_bytes = estimated.checkpoint_bytes if checkpoint_bytes is None else checkpoint_bytes
    return step_s, checkpoint_bytes


def _bytes_of_model(plan: JobPlan) -> int:
    if plan.model is None:
        raise _UsageError("the job has no `model`, so the size of a checkpoint is unknown; set `--checkpoint-bytes 1TB`")
    return plan.model.parameters * int(defaults().checkpoints["bytes_per_parameter"])


def _resized(plan: JobPlan, gpus: int | None) -> JobPlan:
    """The plan on so many GPUs. Its ranks and mesh stay: only how many nodes there are to fail is asked."""
    if gpus is None:
        return plan
    if not plan.gpus_per_slot or gpus % plan.gpus_per_slot:
        raise _UsageError(f"`--gpus {gpus}`: the job's nodes have {plan.gpus_per_slot} GPUs each; use a multiple of that")
    return replace(plan, slots=gpus // plan.gpus_per_slot)


def _with_tiers(run: Run, transfer: Transfer, keep: int, args: argparse.Namespace) -> Run:
    tiers: dict[str, Tier] = {tier.kind: tier for tier in run.tiers}
    for kind, interval_s in args.every:
        if not interval_s:
            raise _UsageError(f"`--every {kind}=0s`: the interval must be above 0")
        tiers[kind] = replace(tiers.get(kind) or tier_of(kind, interval_s, transfer, keep), interval_s=interval_s)
    for kind, block_s in args.block:
        if kind not in tiers:
            raise _UsageError(f"`--block {kind}=...`: the job has no such tier; add it with `--every {kind}=15m`")
        tiers[kind] = replace(tiers[kind], block_s=block_s)
    return replace(run, tiers=tuple(tiers.values()))


def _with_failures(run: Run, args: argparse.Namespace) -> Run:
    given = _given(
        node_mtbf_s=args.node_mtbf,
        job_mtbf_s=args.job_mtbf,
        rack_mtbf_s=args.rack_mtbf,
        rack_nodes=args.rack_nodes,
        repair_s=args.repair,
        shape=args.shape,
        age_s=args.node_age,
        detect_s=args.detect,
    )
    failures = replace(run.failures, **given)
    if args.detect is not None:
        failures = replace(failures, causes=tuple(replace(cause, detect_s=args.detect) for cause in failures.causes))
    found = replace(run, failures=failures)
    return found if args.corruption_latency is None else with_latent_corruption(found, args.corruption_latency)


def _with_recovery(run: Run, args: argparse.Namespace) -> Run:
    given = _given(warm_s=args.warm_restart, cold_s=args.cold_restart, provision_s=args.provision)
    budget = None if args.unlimited_restarts else run.budget
    return replace(run, recovery=replace(run.recovery, **given), budget=budget, **_given(spares=args.spares, pool=args.pool))


def _with_replicas(run: Run, plan: JobPlan, args: argparse.Namespace) -> Run:
    if not args.drop_replicas:
        return run
    count = plan.run.mesh.dp_replicate
    if count < 2:
        raise _UsageError("`--drop-replicas`: the job has one replica; its layout needs `dp_replicate: 2` or more")
    return with_replicas(run, count)


def _given(**values: T | None) -> dict[str, T]:
    return {name: value for name, value in values.items() if value is not None}


def _print(simulation: Simulation, machine: bool) -> None:
    if machine:
        sys.stdout.write(as_json(simulation))
        return
    from headway.cli.simulate_text import print_simulation  # noqa: PLC0415 (only people need rich)

    print_simulation(simulation)


def _write_picture(simulation: Simulation, file: Path) -> int:
    from headway.cli.simulate_svg import picture  # noqa: PLC0415 (few want a picture)

    try:
        file.write_text(picture(simulation.run, simulation.intervals), encoding="utf-8")
    except OSError as error:
        return _fail(f"`{file}` cannot be written: {error.strerror}; choose another file with `--svg`", 3)
    print(f"picture: {file}", file=sys.stderr)
    return 0


def _plain(value: object) -> object:
    """Sets as sorted lists, numbers that JSON does not have as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(str(each) for each in value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def _option(parse: Callable[[str], T], wanted: str) -> Callable[[str], T]:
    """An option's value; what does not parse is refused with what was wanted."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"`{text}`: {wanted}") from None

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number from `low` to `high`."""

    def read(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise ValueError(text)
        return number

    return _option(read, f"expected a whole number from {low} to {high:,}")


def _above_zero(parse: Callable[[str], float], most: float) -> Callable[[str], float]:
    """What `parse` reads, above 0 and at most `most`."""

    def read(text: str) -> float:
        number = parse(text)
        if not 0 < number <= most:
            raise ValueError(text)
        return number

    return read


def _kind_and_time(text: str) -> tuple[str, float]:
    kind, _, time = text.partition("=")
    if kind not in KINDS:
        raise ValueError(text)
    return kind, parse_seconds(time)


_time = _option(parse_seconds, "expected a time such as `30s`, `15m` or `1h30m`")
_size = _option(parse_bytes, "expected a size such as `80GiB` or `1.5TB`")
_tier = _option(_kind_and_time, f"expected a tier ({', '.join(KINDS)}) and a time, such as `disk=15m`")
_length = _option(_above_zero(parse_seconds, math.inf), "expected a time above 0 such as `30s`, `15m` or `1h30m`")
_count = _whole(1, _MOST)
_natural = _whole(0, _MOST)
_standby = _whole(0, _MOST_STANDBY)
_seeds = _whole(1, _MOST_SEEDS)
_days = _option(_above_zero(float, _MOST_DAYS), f"expected a number above 0, up to {_MOST_DAYS:,}")
_positive = _option(_above_zero(float, _MOST_SHAPE), f"expected a number above 0, up to {_MOST_SHAPE}")
