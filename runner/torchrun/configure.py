"""Turns torchrun's arguments into run.json."""

import argparse
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config
from torch.distributed.run import determine_local_world_size

from headway.runner.agent.launch import Torchrun
from headway.runner.contract import DEFAULT_TIMEOUTS, Mesh, Ports, Restart, RunConfig, Timeout, Trainer
from headway.runner.coordinator.state import GRACE_SHARE
from headway.runner.torchrun import bounds
from headway.runner.torchrun.arguments import (
    UsageError,
    check_devices,
    given_master,
    max_nodes,
    min_nodes,
    shown,
    streams,
    with_python,
)

# Seconds, as torch waits: dynamic_rendezvous.py (RendezvousTimeout) and launcher/api.py (LaunchConfig, for static).
JOIN_S, STATIC_JOIN_S = 600.0, 900.0
RUN = "HEADWAY_RUN"


def configure(arguments: argparse.Namespace, port: int = 0) -> RunConfig:
    """Return the run that the command line describes; its coordinator listens on `port`.

    --max-restarts, when given, is the whole budget; else it is refilled by progress.
    """
    procs, slots = determine_local_world_size(arguments.nproc_per_node), max_nodes(arguments)
    if procs < 1:
        raise UsageError(f"--nproc-per-node {arguments.nproc_per_node}: nothing to run")
    check_devices(arguments, procs)
    restart = _restart(arguments.max_restarts)
    grace_s = _grace_s(arguments.shutdown_timeout, os.environ)
    said, master = bounds.given(os.environ), given_master(arguments)
    return RunConfig(
        slots=slots,
        procs_per_slot=procs,
        min_slots=min_nodes(arguments),
        mesh=Mesh(dp_shard=slots * procs),
        trainer=Trainer("script", {"argv": _argv(arguments), "logs": False, **_flags(arguments, procs, restart)}),
        spec_hash="",
        restart=restart,
        timeouts={**DEFAULT_TIMEOUTS, **said, **(_meeting_timeouts(arguments, said) if slots > 1 else {})},
        grace_s=RunConfig.grace_s if grace_s is None else grace_s,
        ports=Ports(coordinator=port, store=master[1] if master is not None else 0),
    )


def _restart(given: int | None) -> Restart:
    return Restart() if given is None else Restart(given, refill_steps=sys.maxsize, no_progress=given + 1)


def _argv(arguments: argparse.Namespace) -> list[str]:
    module = ["-m"] if arguments.module and not arguments.run_path else []
    return [*module, arguments.training_script, *arguments.training_script_args]


def _flags(arguments: argparse.Namespace, procs: int, restart: Restart) -> dict[str, object]:
    redirects, _ = streams(arguments, procs)
    launch = Torchrun(
        python=with_python(arguments),
        role=arguments.role,
        max_restarts=restart.budget,
        redirects={str(rank): bits for rank, bits in redirects.items() if bits},
        shown=shown(arguments),
        virtual_local_rank=arguments.virtual_local_rank,
        run_id=None if arguments.standalone else arguments.rdzv_id,
        master_addr=master[0] if (master := given_master(arguments)) is not None else None,
    )
    signals = [name.strip() for name in arguments.signals_to_handle.split(",")]
    return {"torchrun": asdict(launch), "signals": signals}


def _grace_s(given: int | None, environment: Mapping[str, str]) -> float | None:
    """Return the run's grace. --shutdown-timeout is the time between the signal and SIGKILL, which is a share of it."""
    if given is None and (said_s := bounds.grace_s(environment)) is not None:
        return said_s
    if given is None:
        given = int(environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) if "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" in environment else None
    if given is not None and given < 0:
        raise UsageError(f"--shutdown-timeout {given}: expected 0 or more")
    return None if given is None else given / GRACE_SHARE


def _meeting_timeouts(arguments: argparse.Namespace, said: Mapping[str, Timeout]) -> dict[str, Timeout]:
    """Return the timeouts: until all nodes have joined, until no more than MIN are awaited, and until a lost node is replaced."""
    conf, is_static = _parse_rendezvous_config(arguments.rdzv_conf), arguments.rdzv_backend == "static"
    otherwise = {"join": Timeout(STATIC_JOIN_S if is_static else JOIN_S), "last_call": DEFAULT_TIMEOUTS["last_call"], **said}
    join = Timeout(_seconds(conf, "timeout" if is_static else "join_timeout", otherwise["join"].floor_s))
    last_call = Timeout(_seconds(conf, "last_call_timeout", otherwise["last_call"].floor_s))
    return {"join": join, "replace": said.get("replace", join), "last_call": last_call}


def _seconds(given: Mapping[str, str], key: str, default: float) -> float:
    value = given.get(key)
    if value is not None and not re.fullmatch(r"[1-9]\d*", value):
        raise UsageError(f"--rdzv-conf {key}={value}: expected whole seconds above 0")
    return default if value is None else float(value)


def run_name(arguments: argparse.Namespace) -> str:
    """Return the run's name, the same on all of its nodes: --rdzv-id, else the scheduler's job id; empty without both."""
    given = "" if arguments.rdzv_id == "none" or arguments.standalone else arguments.rdzv_id
    return _as_name(given or os.environ.get("SLURM_JOB_ID", ""))


def insisted_name(environment: Mapping[str, str]) -> str:
    """Return the run of HEADWAY_RUN, whatever has changed; empty if it is not set. Raises UsageError for an invalid name."""
    name = environment.get(RUN, "")
    if name != _as_name(name):
        raise UsageError(f"{RUN}={name}: expected a run's name: letters, digits, `_`, `.`, `:` and `-`")
    return name


def script_name(arguments: argparse.Namespace) -> str:
    """Return the name for a run that was given none."""
    return _as_name(Path(arguments.training_script).stem)


def _as_name(text: str) -> str:
    """Return the text as a directory name."""
    return re.sub(r"[^\w.:-]", "-", text).lstrip(".")
