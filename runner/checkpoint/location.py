"""Describes where a run's checkpoints are stored, and under which generation they are committed."""

from dataclasses import dataclass
from pathlib import Path

from headway.runner.contract import CheckpointId, Mesh


@dataclass(frozen=True)
class CheckpointLocation:
    """One generation of one attempt of a run. `root` is the directory that all nodes see; `remote` the URL of an object
    store, if any."""

    root: Path
    run: str
    generation: int
    attempt: int
    procs_per_slot: int
    mesh: Mesh
    remote: str | None = None

    def checkpoint(self, step: int) -> CheckpointId:
        return CheckpointId(step, self.generation)
