"""Builds the command of one rank: argv, torchrun's environment variables, and the files of its output."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from headway.runner.agent.protocol import RankOrder
from headway.runner.contract import RunConfig, RunDirectory, node_of, partner_of
from headway.runner.contract.orders import StartRanks
from headway.runner.goodput.tracking import tracker_environment
from headway.runner.start import MODULE, START

# Bits of `redirects`, as in torch.distributed.elastic.multiprocessing.Std.
STDOUT, STDERR = 1, 2
STANDBY_MODULES = frozenset({"headway.runner.boot", "headway.runner.train.main"})


@dataclass(frozen=True)
class Torchrun:
    """The flags of torchrun that decide how a worker is started (option `torchrun` of the trainer `script`).

    `redirects` and `shown` go by local rank: which of stdout (1) and stderr (2) go to a file, and whose output the terminal shows, of
    the output that does not go to a file. `shown` None: that of all. `run_id` is the rendezvous id that the script gets; None: the run's.
    `master_addr` is the address that was given for the rendezvous store; None: that of the node with rank 0.
    """

    python: bool = True
    role: str = "default"
    max_restarts: int = 0
    redirects: Mapping[str, int] = field(default_factory=dict)
    shown: tuple[int, ...] | None = None
    virtual_local_rank: bool = False
    run_id: str | None = None
    master_addr: str | None = None

    @classmethod
    def of(cls, config: RunConfig) -> "Torchrun | None":
        """None for what was not started by `headway torchrun`."""
        given = config.trainer.options.get("torchrun")
        return None if given is None else cls(**{**given, "shown": None if given["shown"] is None else tuple(given["shown"])})


def command(
    config: RunConfig,
    directory: RunDirectory,
    slot: int,
    local_rank: int,
    generation: int,
    start: StartRanks,
    environment: Mapping[str, str],
) -> RankOrder:
    """Return one rank's order to the supervisor, whose own variables are `environment`."""
    given = Torchrun.of(config)
    rank = slot * config.procs_per_slot + local_rank
    known = {
        **_torchrun_environment(config, slot, local_rank, start, given),
        **_own_environment(config, directory, local_rank, slot, generation, start),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1),
        **tracker_environment(directory, rank, environment),
    }
    if given is None:
        logged = config.trainer.options.get("logs", config.trainer.kind != "script")
        stdout = stderr = str(directory.log(slot, rank)) if logged else None
    else:
        known |= _device(local_rank, environment) if given.virtual_local_rank else {}
        folder = log_folder(environment, start.restarts, local_rank)
        known["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(config.trainer.options.get("signals", ("SIGTERM", "SIGINT")))
        known["TORCHELASTIC_ERROR_FILE"] = "" if folder is None else folder / "error.json"
        stdout, stderr = (_stream(bit, given, local_rank, folder) for bit in (STDOUT, STDERR))
    return RankOrder(
        rank=rank,
        local_rank=local_rank,
        argv=worker_argv(config, local_rank, environment),
        environment={name: str(value) for name, value in known.items()},
        stdout=stdout,
        stderr=stderr,
        hosts_store=rank == 0,
        cpus=json.loads(environment.get("HEADWAY_CPUS", "{}")).get(str(local_rank)),
    )


def _torchrun_environment(
    config: RunConfig, slot: int, local_rank: int, start: StartRanks, given: Torchrun | None
) -> dict[str, Any]:
    """torchrun's own contract: docs.pytorch.org elastic/run, "Environment Variables"."""
    procs, slots = config.procs_per_slot, start.slots
    rank = slot * procs + local_rank
    return {
        "RANK": rank,
        "LOCAL_RANK": 0 if given is not None and given.virtual_local_rank else local_rank,
        "WORLD_SIZE": slots * procs,
        "LOCAL_WORLD_SIZE": procs,
        "GROUP_RANK": slot,
        "GROUP_WORLD_SIZE": slots,
        "ROLE_NAME": "default" if given is None else given.role,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": slots * procs,
        "MASTER_ADDR": start.master_addr if given is None or given.master_addr is None else given.master_addr,
        "MASTER_PORT": start.master_port,
        "TORCHELASTIC_RESTART_COUNT": start.restarts,
        "TORCHELASTIC_MAX_RESTARTS": config.restart.budget if given is None else given.max_restarts,
        "TORCHELASTIC_RUN_ID": config.run if given is None or given.run_id is None else given.run_id,
        # Served by a separate process (agent/store.py), as torchrun's agent does.
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }


def _own_environment(
    config: RunConfig, directory: RunDirectory, local_rank: int, slot: int, generation: int, start: StartRanks
) -> dict[str, Any]:
    own = {
        "HEADWAY_RUN_JSON": directory.run_json,
        "HEADWAY_ATTEMPT": directory.attempt,
        "HEADWAY_GENERATION": generation,
        "HEADWAY_LOCAL_RANK": local_rank,
        "HEADWAY_BASE": json.dumps(asdict(start.base) if start.base else None),
    }
    partner = partner_node(config, slot, start)
    return own if partner is None else {**own, "HEADWAY_PARTNER": directory.keeper(partner)}


def partner_node(config: RunConfig, slot: int, start: StartRanks) -> int | None:
    """The node whose keeper holds copies of this slot's captures; null where the job keeps none."""
    partner = partner_of(slot, start.slots, config.partner_segment) if config.checkpoint.has("peer") else None
    return None if partner is None else node_of(partner, dict(start.moved))


def _device(local_rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """--virtual-local-rank: each rank sees its own device as number 0."""
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is None:
        return {"CUDA_VISIBLE_DEVICES": str(local_rank)}
    devices = visible.split(",")
    if local_rank >= len(devices):
        raise ValueError(f"CUDA_VISIBLE_DEVICES={visible} has no device for local rank {local_rank} (--virtual-local-rank)")
    return {"CUDA_VISIBLE_DEVICES": devices[local_rank].strip()}


def log_folder(environment: Mapping[str, str], restarts: int, local_rank: int) -> Path | None:
    """Where torchrun's default logs specs put a rank's files; None with --log-dir /dev/null, or without logs."""
    logs = environment.get("HEADWAY_LOGS")
    return Path(logs) / f"attempt_{restarts}" / str(local_rank) if logs else None


def _stream(bit: int, given: Torchrun, local_rank: int, folder: Path | None) -> str | None:
    if given.redirects.get(str(local_rank), 0) & bit:
        return "/dev/null" if folder is None else str(folder / ("stdout.log" if bit == STDOUT else "stderr.log"))
    return None if given.shown is None or local_rank in given.shown else "/dev/null"


def worker_argv(config: RunConfig, local_rank: int, environment: Mapping[str, str]) -> list[str]:
    """The command of a rank, by the supervisor's environment."""
    if config.trainer.kind != "script":
        return [sys.executable, "-u", START, "headway.runner.train.main"]
    words: list[str] = config.trainer.options["argv"]
    given = Torchrun.of(config)
    if given is None and config.trainer.options.get("python") is False:
        return words
    if given is None:
        return [sys.executable, "-u", START, "headway.runner.boot", *words]
    # torchrun puts the local rank into arguments (torch/distributed/elastic/utils/api.py, `macros`).
    words = [Template(word).safe_substitute(local_rank=local_rank) for word in words]
    if not given.python:
        return words
    return [environment.get("PYTHON_EXEC", sys.executable), "-u", START, "headway.runner.boot", *words]


def is_ours(argv: Sequence[str]) -> bool:
    """Return whether a worker is one of headway's modules in this Python, which a standby can become."""
    return list(argv[:MODULE]) == [sys.executable, "-u", START] and argv[MODULE] in STANDBY_MODULES


def make_folders(order: RankOrder) -> None:
    """Make the folders of an order's files; for torchrun's, note the rank in the run's own, for programs that show them."""
    for path in (order.stdout, order.stderr):
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    if path := order.environment.get("TORCHELASTIC_ERROR_FILE"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        note = rank_note(Path(order.environment["HEADWAY_RUN_JSON"]).parent, Path(path).parent)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(order.environment["RANK"])


def rank_note(attempt_directory: Path, folder: Path) -> Path:
    """Return the file that notes the rank whose output is in `folder`, `LOGS/attempt_<k>/<local rank>`: LOGS differs by node."""
    return attempt_directory / "teed" / "-".join(folder.parts[-3:])
