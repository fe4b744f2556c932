"""torchrun's command line -> a run of one node under our agents: `python -m headway.runner.torchrun ARGS...`.

Flags are torchrun's own, parsed by torch's own parser. What we do not carry out is refused by name; nothing is ignored silently but what
only tunes how torchrun itself polls and meets.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.run import determine_local_world_size, get_args_parser, parse_min_max_nnodes

from headway.runner.contract import Mesh, Restart, RunConfig, Trainer
from headway.runner.rundir import RunDirectory, open_run

# Flags that do what torchrun's do, and those that only tune torchrun's own rendezvous and polling, of which a single node has none.
CARRIED = frozenset(
    {"nnodes", "nproc_per_node", "max_restarts", "module", "rdzv_id", "standalone", "training_script", "training_script_args"}
)
TUNING = frozenset(
    {
        "monitor_interval",
        "rdzv_backend",
        "rdzv_conf",
        "rdzv_endpoint",
        "node_rank",
        "master_addr",
        "master_port",
        "start_method",
        "local_addr",
    }
)


EPILOG = """
These are torchrun's flags, with headway's agents behind them: a worker that dies is named, and all start again for the script to
resume from its own checkpoint. Without --max-restarts the budget is 3 restarts, refilled by progress. The run's journal and report
lie in $HEADWAY_RUNS/<run> (default: ./runs). Not carried out yet, and refused: --nnodes above 1, --no-python, --run-path, log flags.
"""


class UsageError(Exception):
    """The command line asks for something that is not carried out."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """torchrun's arguments. Exits with 2, as torchrun does, on an unknown flag; raises UsageError for one that is not carried out."""
    parser = get_args_parser()
    parser.prog = "headway torchrun"
    parser.epilog = EPILOG
    arguments = parser.parse_args(list(argv))
    for action in parser._actions:
        if action.dest in CARRIED | TUNING | {"help"} or not action.option_strings:
            continue
        if getattr(arguments, action.dest) != action.default:
            raise UsageError(f"{max(action.option_strings, key=len)} is not carried out by headway torchrun yet")
    if not (arguments.module or Path(arguments.training_script).is_file()):
        raise UsageError(f"there is no file `{arguments.training_script}`")
    if parse_min_max_nnodes(arguments.nnodes) != (1, 1):
        raise UsageError(f"--nnodes {arguments.nnodes}: headway torchrun runs one node so far; for several, write a job spec")
    return arguments


def configure(arguments: argparse.Namespace, argv: Sequence[str]) -> RunConfig:
    """The run that the command line describes. --max-restarts, when given, is the whole budget; else it is refilled by progress."""
    procs = determine_local_world_size(arguments.nproc_per_node)
    if procs < 1:
        raise UsageError(f"--nproc-per-node {arguments.nproc_per_node}: there is nothing to run")
    command = [arguments.training_script, *arguments.training_script_args]
    if arguments.module:
        command.insert(0, "-m")
    given = any(re.match(r"--max[-_]restarts\b", word) for word in argv)
    restart = (
        Restart(arguments.max_restarts, refill_steps=sys.maxsize, no_progress=arguments.max_restarts + 1) if given else Restart()
    )
    return RunConfig(
        slots=1,
        procs_per_slot=procs,
        mesh=Mesh(dp_shard=procs),
        trainer=Trainer("script", {"argv": command, "logs": False}),
        spec_hash="",
        restart=restart,
    )


def open_directory(arguments: argparse.Namespace, config: RunConfig) -> RunDirectory:
    """Run id: --rdzv-id, else the scheduler's job id, else the script's name and a number. An id seen before is a further attempt."""
    runs = Path(os.environ.get("HEADWAY_RUNS", "runs"))
    name = arguments.rdzv_id if arguments.rdzv_id not in ("", "none") else os.environ.get("SLURM_JOB_ID", "")
    if not name:
        stem, number = re.sub(r"[^\w.-]", "-", Path(arguments.training_script).stem), 1
        while (runs / f"{stem}-{number}").exists():
            number += 1
        name = f"{stem}-{number}"
    attempt = sum(1 for _ in (runs / name / "attempts").glob("*"))
    try:
        return open_run(runs, name, config, attempt, job=Path(arguments.training_script).name)
    except FileExistsError:  # another launcher took it in this moment: look again
        return open_directory(arguments, config)


def main() -> None:
    argv = sys.argv[1:]
    try:
        arguments = parse(argv)
        config = configure(arguments, argv)
    except (UsageError, ValueError) as error:
        print(f"headway torchrun: {error}", file=sys.stderr)
        sys.exit(2)
    if config.procs_per_slot > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    directory = open_directory(arguments, config)
    if (descriptor := os.environ.pop("HEADWAY_RUN_PATH_FD", None)) is not None:
        os.write(int(descriptor), str(directory.root).encode())
        os.close(int(descriptor))
    # In place of this process: the supervisor is small and single-threaded, and this one has imported torch.
    command = [
        sys.executable,
        "-m",
        "headway.runner",
        str(directory.run_json),
        "--attempt",
        str(directory.attempt),
        "--node",
        "0",
    ]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
