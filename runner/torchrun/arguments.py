"""Parses torchrun's command line with torch's own parser, including PET_ variables."""

import argparse
import os
import shutil
import signal
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.elastic.multiprocessing.api import to_map
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.run import get_args_parser, parse_min_max_nnodes

from headway.runner.torchrun import bounds

# Every flag of torch 2.13. Newer flags are refused by name until they are supported here. An older torch has fewer
# flags, and so does its command line here.
CARRIED = frozenset(
    {
        *("nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "standalone"),
        *("max_restarts", "monitor_interval", "start_method", "event_log_handler", "role", "module", "no_python", "run_path"),
        *("log_dir", "redirects", "tee", "local_ranks_filter", "duplicate_stdout_filters", "duplicate_stderr_filters"),
        *("node_rank", "master_addr", "master_port", "local_addr", "logs_specs", "numa_binding", "signals_to_handle"),
        *("shutdown_timeout", "virtual_local_rank", "training_script", "training_script_args"),
    }
)
# Defaults of the flags that torch added in 2.7 to 2.13, for older versions.
LATER: dict[str, object] = {
    "event_log_handler": "null",
    "numa_binding": None,
    "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "shutdown_timeout": None,
    "virtual_local_rank": False,
    "duplicate_stdout_filters": [],
    "duplicate_stderr_filters": [],
}
# Without a registered handler of its own, a script gets nothing from these
# (torch/distributed/elastic/events/handlers.py).
SILENT_HANDLERS = ("null", "dynamic_rendezvous")
MEETING_BACKENDS = ("c10d", "static")
EPILOG = """
The flags are torchrun's, the agents are headway's: a worker that dies or hangs is named, and all workers restart so that the script resumes
from its own checkpoint; a lost node is replaced by a spare, or by running the same command again. Differences from torchrun: without
--max-restarts the budget is 3 restarts, refilled by progress, where torchrun's is 0; the exit code is the runner's (80 to 85) where
torchrun's is 1; --monitor-interval and --start-method have no effect, since nothing polls and no worker is a function. Several nodes meet
at the endpoint of --rdzv-backend c10d or static; etcd, --event-log-handler and --logs-specs other than torch's default are rejected. The
run's journal and report are in $HEADWAY_RUNS/<run> (default: $XDG_STATE_HOME/headway/runs, else ~/.local/state/headway/runs). The same
command under the same --rdzv-id or scheduler job id resumes its run if that did not complete; any other command starts a new run.
HEADWAY_RUN=<run> resumes that run whatever has changed. Timeouts are variables, in seconds or as 90s, 30m, 2h: {bounds}.
Example: headway torchrun --nproc-per-node 8 train.py
""".format(bounds=", ".join(f"{variable} ({default})" for variable, default in bounds.defaults().items()))


class UsageError(Exception):
    """The command line asks for something unsupported."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return torchrun's arguments, as `torch.distributed.run` resolves them before it starts; `max_restarts` None if it
    was not given.

    Exits with 2, as torchrun does, on an unknown flag. Raises UsageError for unsupported arguments, ValueError for
    those that torch refuses.
    """
    parser = get_args_parser()
    parser.prog, parser.epilog = "headway torchrun", EPILOG
    there = {action.dest for action in parser._actions}
    parser.set_defaults(**{name: value for name, value in LATER.items() if name not in there})
    if "PET_MAX_RESTARTS" not in os.environ:
        parser.set_defaults(max_restarts=None)
    arguments = parser.parse_args(list(argv))
    for action in parser._actions:
        if action.option_strings and action.dest not in CARRIED | {"help"} and getattr(arguments, action.dest) != action.default:
            raise UsageError(f"{max(action.option_strings, key=len)} is not supported by headway torchrun yet")
    _check(arguments)
    minimum, maximum = parse_min_max_nnodes(arguments.nnodes)
    if not 0 < minimum <= maximum:
        raise UsageError(f"--nnodes {arguments.nnodes}: expected MIN:MAX with 0 < MIN <= MAX")
    if arguments.standalone:
        arguments.nnodes = "1:1"
    if maximum > 1 and arguments.rdzv_backend not in MEETING_BACKENDS and not arguments.standalone:
        raise UsageError(
            f"--rdzv-backend {arguments.rdzv_backend}: headway's nodes meet at one of the nodes; use --rdzv-backend "
            f"c10d and --rdzv-endpoint HOST:PORT, or static"
        )
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.max_restarts or 0) < 0:
        raise UsageError(f"--max-restarts {arguments.max_restarts}: expected 0 or more")
    if arguments.event_log_handler not in SILENT_HANDLERS:
        raise UsageError(
            f"--event-log-handler {arguments.event_log_handler}: headway writes its events to the run's journal; leave it out"
        )
    if arguments.logs_specs not in (None, "default"):
        raise UsageError(f"--logs-specs {arguments.logs_specs}: only torch's default is supported")
    if arguments.no_python and arguments.module and not arguments.run_path:
        raise UsageError("--no-python and --module exclude each other")
    if arguments.numa_binding is not None and shutil.which("numactl") is None:
        raise UsageError(f"--numa-binding {arguments.numa_binding}: as with torchrun, numactl must be on PATH")
    for name in arguments.signals_to_handle.split(","):
        if not hasattr(signal, name.strip()):
            raise UsageError(f"--signals-to-handle {arguments.signals_to_handle}: {name.strip()!r} is not a signal")
    _check_script(arguments)


def _check_script(arguments: argparse.Namespace) -> None:
    script = arguments.training_script
    if arguments.run_path:
        found = Path(script).is_absolute() and Path(script).is_file()
        if not found:
            raise UsageError(f"--run-path: there is no file `{script}` (an absolute path is expected)")
    elif arguments.no_python:
        if shutil.which(script) is None:
            raise UsageError(f"--no-python: `{script}` is not an executable program")
    elif not arguments.module and not Path(script).is_file():
        raise UsageError(f"there is no file `{script}`")


def with_python(arguments: argparse.Namespace) -> bool:
    """Return whether workers run the script by Python; --run-path takes precedence over --no-python."""
    return arguments.run_path or not arguments.no_python


def max_nodes(arguments: argparse.Namespace) -> int:
    """Return the number of nodes that compute when all are available."""
    return int(parse_min_max_nnodes(arguments.nnodes)[1])


def min_nodes(arguments: argparse.Namespace) -> int | None:
    """Return the minimum of nodes to continue with when others are lost; None: all. Static rendezvous has no other
    number than MAX."""
    minimum, maximum = parse_min_max_nnodes(arguments.nnodes)
    return int(minimum) if minimum < maximum and arguments.rdzv_backend != "static" else None


def given_master(arguments: argparse.Namespace) -> tuple[str, int] | None:
    """Return the address and port of a single node's rendezvous store on the command line.

    None if there is none, and on several nodes, where they are the coordinator's. Raises ValueError for what torch
    refuses.
    """
    if max_nodes(arguments) > 1 or arguments.standalone or arguments.rdzv_backend != "static":
        return None
    if not arguments.rdzv_endpoint and arguments.master_port is None:
        return None
    host, port = parse_rendezvous_endpoint(arguments.rdzv_endpoint or f"{arguments.master_addr}:{arguments.master_port}", -1)
    return (host, port) if port > 0 else None


def streams(arguments: argparse.Namespace, procs: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return by local rank which of stdout (1) and stderr (2) go to files, and which of those to the terminal too. Teed
    streams are redirected."""
    teed = {rank: int(std) for rank, std in to_map(Std.from_str(arguments.tee), procs).items()}
    redirected = {rank: int(std) for rank, std in to_map(Std.from_str(arguments.redirects), procs).items()}
    return {rank: redirected[rank] | teed[rank] for rank in range(procs)}, teed


def shown(arguments: argparse.Namespace) -> tuple[int, ...] | None:
    """Return the local ranks whose output the terminal shows; None: all."""
    if not arguments.local_ranks_filter:
        return None
    try:
        return tuple(sorted({int(rank) for rank in arguments.local_ranks_filter.split(",")}))
    except ValueError:
        raise UsageError(f"--local-ranks-filter {arguments.local_ranks_filter}: expected comma-separated numbers") from None


def bound_cpus(arguments: argparse.Namespace, procs: int) -> dict[int, list[int]]:
    """Return by local rank the CPUs that --numa-binding assigns, by torch's own rule. Empty without the flag."""
    if arguments.numa_binding is None:
        return {}
    from torch.numa import binding  # noqa: PLC0415  rarely used, and torch has it since 2.9

    if not hasattr(binding, "_get_validated_logical_cpus_to_bind_to"):
        raise UsageError(f"--numa-binding: the rule of torch {version('torch')} is not supported; use torch 2.10 or newer")
    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(arguments.numa_binding))
    return {
        rank: sorted(binding._get_validated_logical_cpus_to_bind_to(gpu_index=rank, numa_options=options))
        for rank in range(procs)
    }


def check_devices(arguments: argparse.Namespace, procs: int) -> None:
    """Raise UsageError if CUDA_VISIBLE_DEVICES has fewer devices than --virtual-local-rank assigns."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if arguments.virtual_local_rank and visible is not None and len(visible.split(",")) < procs:
        raise UsageError(f"--virtual-local-rank: {procs} ranks, but CUDA_VISIBLE_DEVICES={visible}")


def unserved(environment: dict[str, str]) -> list[str]:
    """Return variables that request features of torchrun's agent that headway's does not have."""
    names = ("TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_HEALTH_CHECK_PORT", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT")
    return [name for name in names if environment.get(name)]
