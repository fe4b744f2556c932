"""Sets the environment variables by which experiment trackers recognize the attempts of a run as one."""

import json
from collections.abc import Mapping
from hashlib import sha256

from headway.runner.contract import RunDirectory


def tracker_environment(directory: RunDirectory, rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the additions to a rank's environment: HEADWAY_RUN_ID, and if the user has set no run for Weights &
    Biases, an id that each attempt and each generation of this rank shares.

    One id for each rank, since two processes must not log to one run there
    (https://docs.wandb.ai/guides/track/log/distributed-training). It contains the time of submission, since run names
    repeat in another directory. MLflow's server assigns its ids, so none is set.
    """
    run, mark = _known_as(directory)
    found = {"HEADWAY_RUN_ID": run}
    if "WANDB_RUN_ID" not in environment:
        of_rank = f"-rank{rank}" if rank else ""
        found["WANDB_RUN_ID"] = f"{run}-{mark}{of_rank}"
        found["WANDB_RESUME"] = "allow"
    return {name: value for name, value in found.items() if name not in environment}


def _known_as(directory: RunDirectory) -> tuple[str, str]:
    """Return the run's name, and eight digits that only this run has. A node-local folder may have another name; its
    handle has the run's."""
    try:
        handle = json.loads(directory.handle.read_text())
        run, submitted = handle["run"], handle["submitted_at"]
    except (OSError, ValueError, KeyError):
        run, submitted = directory.root.name, None
    return run, sha256(f"{run} {submitted}".encode()).hexdigest()[:8]
