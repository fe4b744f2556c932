"""Records the command that `headway torchrun` ran with each attempt, so that a later command is recognized as the same or another."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.runner.alive import Process
from headway.runner.contract import RecordError, RunDirectory, from_json


@dataclass(frozen=True)
class LaunchCommand:
    """`words`: the script, module or program (`kind`) and its arguments, as given. `code` is the hash of what is run, null where no file
    was found for it. `task`: which of a job's tasks it is. `variables`: those that the script or its arguments name, hashed."""

    kind: str
    words: tuple[str, ...]
    folder: str
    procs: int
    code: str | None = None
    task: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.words[0]).name

    def differs(self, before: "LaunchCommand") -> str | None:
        """In what it differs from an earlier one: "code", "variable NAME", or "command"; None where it is the same again."""
        if (self.kind, self.words, self.folder, self.procs, self.task) != (
            before.kind,
            before.words,
            before.folder,
            before.procs,
            before.task,
        ):
            return "command"
        if self.code != before.code:
            return "code"
        return next(
            (
                f"variable {name}"
                for name in sorted({*self.variables, *before.variables})
                if self.variables.get(name) != before.variables.get(name)
            ),
            None,
        )

    def entry(self) -> dict[str, str]:
        """Return the part of a node's command that must be equal on all nodes of a run, in few bytes.

        The script's path and the variables may differ by node, and an edited script is no reason to keep a lost node's successor out.
        """
        return {"script": _hash(self.kind, self.name), "arguments": _hash(*self.words[1:])}


def _hash(*words: str) -> str:
    return hashlib.sha256("\0".join([*words, ""]).encode(errors="surrogateescape")).hexdigest()


@dataclass(frozen=True)
class Launch:
    """launch.json of an attempt: what was launched, and the process that became its supervisor. `meets`: where its nodes meet, null for
    a single node. `job` and `requeues`: Slurm's, empty and 0 elsewhere."""

    command: LaunchCommand
    process: Process
    meets: str | None = None
    job: str = ""
    requeues: int = 0
    schema: str = "headway.launch/1"

    @classmethod
    def own(cls, command: LaunchCommand, meets: str | None, environment: Mapping[str, str]) -> "Launch":
        return cls(command, Process.own(), meets, *_requeues(environment))

    @classmethod
    def of(cls, directory: RunDirectory) -> "Launch | None":
        """None for an attempt that `headway torchrun` has not begun, or has not yet."""
        try:
            return from_json(cls, directory.launch.read_text())
        except (OSError, RecordError, UnicodeDecodeError):
            return None

    def was_requeued(self, environment: Mapping[str, str]) -> bool:
        """Whether Slurm has ended its job since, and started it again as ours (sbatch(1), SLURM_RESTART_COUNT)."""
        job, requeues = _requeues(environment)
        return bool(job) and job == self.job and requeues > self.requeues


def _requeues(environment: Mapping[str, str]) -> tuple[str, int]:
    said = environment.get("SLURM_RESTART_COUNT", "")
    return environment.get("SLURM_JOB_ID", ""), int(said) if said.isdecimal() else 0
