"""Defines how an attempt ends: exit codes, and verdict.json (`Verdict`)."""

import types
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """The exit code of the runner, which decides what the scheduler does next (docs/records.md)."""

    COMPLETED = 0
    RETRY_HERE = 80
    RETRY_ELSEWHERE = 81
    PREEMPTED = 82
    STOP = 83
    UNVERIFIED = 84
    SUPERSEDED = 85


VERDICTS: Mapping[Exit, str] = types.MappingProxyType(
    {
        Exit.COMPLETED: "completed",
        Exit.RETRY_HERE: "retry here",
        Exit.RETRY_ELSEWHERE: "retry elsewhere",
        Exit.PREEMPTED: "preempted or time limit; resumes from the last commit",
        Exit.STOP: "stop: the user's error, or no progress",
        Exit.UNVERIFIED: "stop: checkpoints exist and none verifies",
        Exit.SUPERSEDED: "superseded by a newer generation",
    }
)


# The exit code of `rundir open` if another launcher has opened the attempt.
ATTEMPT_TAKEN = 75


def settled(code: int) -> int:
    """Return the exit code of an attempt without a verdict: a code of the runner unchanged; any other means a lost node or store."""
    return code if code in set(Exit) else int(Exit.RETRY_ELSEWHERE)


@dataclass(frozen=True)
class Verdict:
    """verdict.json of an attempt. The file overrides the exit code."""

    run: str
    attempt: int
    generation: int
    verdict: str
    cause: str
    exit_code: int
    rank: int | None = None
    node: int | None = None
    suspects: tuple[int, ...] = ()
    step: int = 0
    committed_step: int | None = None
    evidence: tuple[str, ...] = ()
    schema: str = "headway.verdict/1"
