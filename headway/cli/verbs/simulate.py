"""`headway simulate`: simulates a job's run under failures many times and prints its goodput."""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headway.cli.documents import load_job_plan
from headway.cli.simulation import Simulation, SimulationError, simulate_job
from headway.cli.terminal import fail
from headway.cli.views.simulate_json import simulation_json
from headway.jobspec.units import parse_bytes, parse_seconds
from headway.planner.goodput.tiers import KINDS

# Beyond these an option is a slip: GPUs, nodes that stand by, seeds, days, and a Weibull shape, for which all nodes fail at one age.
_MOST, _MOST_STANDBY, _MOST_SEEDS, _MOST_DAYS, _MOST_SHAPE = 100_000_000, 1_000_000, 100_000, 100_000, 100

T = TypeVar("T")


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
    except SimulationError as error:
        return fail(str(error), 2)
    if args.json:
        sys.stdout.write(simulation_json(simulation))
    else:
        from headway.cli.views.simulate_text import print_simulation  # noqa: PLC0415 (only people need rich)

        print_simulation(simulation)
    return 0 if args.svg is None else _write_picture(simulation, args.svg)


def _write_picture(simulation: Simulation, file: Path) -> int:
    from headway.cli.views.simulate_svg import picture  # noqa: PLC0415 (few want a picture)

    try:
        file.write_text(picture(simulation.run, simulation.intervals), encoding="utf-8")
    except OSError as error:
        return fail(f"`{file}` cannot be written: {error.strerror}; choose another file with `--svg`", 3)
    print(f"picture: {file}", file=sys.stderr)
    return 0


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
    """Return the value that `parse` reads, above 0 and at most `most`."""

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
_tier = _option(_kind_and_time, f"expected a tier ({', '.join(KINDS)}) and a time, such as `shared=15m`")
_length = _option(_above_zero(parse_seconds, math.inf), "expected a time above 0 such as `30s`, `15m` or `1h30m`")
_count = _whole(1, _MOST)
_natural = _whole(0, _MOST)
_standby = _whole(0, _MOST_STANDBY)
_seeds = _whole(1, _MOST_SEEDS)
_days = _option(_above_zero(float, _MOST_DAYS), f"expected a number above 0, up to {_MOST_DAYS:,}")
_positive = _option(_above_zero(float, _MOST_SHAPE), f"expected a number above 0, up to {_MOST_SHAPE}")
