"""Decides which run a command belongs to: another attempt of an ended run of the same command, or a new run.

Runs of one name are `<name>`, `<name>-2`, `<name>-3` and so on; each is one command's.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from headway.runner.alive import Process
from headway.runner.contract import Exit, RecordError, RunDirectory, from_json, read_verdict
from headway.runner.launches import Launch
from headway.runner.messages import ChannelError, connect
from headway.runner.torchrun.arguments import UsageError

# Another node replaces a lost coordinator within 2 s if steps continued, and publishes itself a second later.
SILENT_S, AGAIN_S = 10.0, 0.5


class Life(Enum):
    """The state of a run's newest attempt. UNKNOWN: this node cannot determine it."""

    COMPLETED = "completed"
    ENDED = "ended"
    LIVES = "lives"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Candidate:
    """A run of the name in question.

    `attempt` is its newest, -1 before the first; `differs`: how its command differs, None if it is the same. `lets_in`:
    its nodes meet at our endpoint, and a node with our command is one of them. `host`: the host that launched it.
    """

    name: str
    attempt: int
    differs: str | None
    life: Life
    lets_in: bool = False
    host: str = ""


@dataclass(frozen=True)
class RunChoice:
    """The attempt to open, of a `new` run or an existing one; or with `enters`, the running attempt to join. `line` is
    the reason, if there is anything to explain."""

    name: str
    attempt: int = 0
    line: str | None = None
    new: bool = False
    enters: bool = False


def choose(name: str, candidates: Sequence[Candidate], command: str) -> RunChoice:
    """Choose the run of a command, whose script is called `command`, under a name that `candidates` already have."""
    for each in candidates:
        if each.life is Life.LIVES and each.lets_in:
            return RunChoice(each.name, each.attempt, enters=True)
    for each in candidates:
        if each.differs is None and each.life is Life.ENDED:
            why = f"it is the same command, and attempt {each.attempt} did not complete"
            return RunChoice(each.name, each.attempt + 1, f"run `{each.name}` resumes as attempt {each.attempt + 1}: {why}")
    if not candidates:
        return RunChoice(name, new=True)
    own = f"{name}-{1 + max(_number(each.name, name) for each in candidates)}"
    return RunChoice(own, line=f"run `{own}`: {_why_not(candidates, command)}", new=True)


def choose_named(candidate: Candidate | None, name: str) -> RunChoice:
    """Choose the run that HEADWAY_RUN names, whatever it was before. Raises UsageError while it is running."""
    if candidate is None:
        return RunChoice(name, new=True)
    if candidate.life is not Life.LIVES:
        return RunChoice(name, candidate.attempt + 1)
    if candidate.lets_in:
        return RunChoice(name, candidate.attempt, enters=True)
    raise UsageError(
        f"HEADWAY_RUN={name}: attempt {candidate.attempt} of this run is still running (launched on {candidate.host}); stop it first"
    )


def _why_not(candidates: Sequence[Candidate], command: str) -> str:
    """Return why none of them continues with this command: the reason of the most similar one."""
    nearest = max(candidates, key=_nearness)
    name = f"`{nearest.name}`"
    anyway = f"; set HEADWAY_RUN={nearest.name} to resume it"
    match nearest.differs:
        case None if nearest.life is Life.LIVES:
            return f"{name} is the same command and is still running"
        case None if nearest.life is Life.COMPLETED:
            return f"{name} is the same command and has completed"
        case None:
            return f"{name} is the same command, but whether it has ended on {nearest.host} cannot be seen from here{anyway}"
        case "code":
            return f"{command} differs from the code that {name} ran{anyway}"
        case "command":
            return f"{name} belongs to another command"
        case what:
            return f"{what} differs from {name}{anyway}"


def _nearness(candidate: Candidate) -> int:
    if candidate.differs is None:
        return 3 if candidate.life is not Life.COMPLETED else 2
    return 0 if candidate.differs == "command" else 1


# --- existing runs ------------------------------------------------------------------------------------------------------


def _number(found: str, name: str) -> int:
    return 1 if found == name else int(found.rpartition("-")[2])


def runs_of(runs: Path, name: str) -> list[str]:
    """Return the existing runs of this name, the first one first."""
    pattern = re.compile(re.escape(name) + r"(-([2-9]|[1-9]\d+))?")
    try:
        found = [path.name for path in runs.iterdir() if pattern.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda each: _number(each, name))


def newest(run: Path) -> RunDirectory | None:
    """Return the run's newest attempt; None before the first."""
    directory = RunDirectory(run.resolve())
    numbers = directory.attempt_numbers()
    return directory.at(numbers[-1]) if numbers else None


def look_at(run: Path, ours: Launch, environment: Mapping[str, str], *, always: bool = False) -> Candidate:
    """Return a run as this launch finds it; its state is determined only if that matters, or `always`."""
    # Also a run that is being created now.
    if (directory := newest(run)) is None or (launch := Launch.of(directory)) is None:
        return Candidate(run.name, -1 if directory is None else directory.attempt, "command", Life.UNKNOWN)
    differs = ours.command.differs(launch.command)
    lets_in = ours.meets is not None and launch.meets == ours.meets and launch.command.entry() == ours.command.entry()
    life = life_of(directory, launch, environment) if always or lets_in or differs is None else Life.UNKNOWN
    return Candidate(run.name, directory.attempt, differs, life, lets_in, launch.process.host)


def life_by_verdict(directory: RunDirectory) -> Life | None:
    """Return the state by the attempt's verdict; None if it has left none."""
    verdict = read_verdict(directory)
    return None if verdict is None else Life.COMPLETED if verdict.exit_code == Exit.COMPLETED else Life.ENDED


def life_of(
    directory: RunDirectory,
    launch: Launch,
    environment: Mapping[str, str],
    answers: "Callable[[RunDirectory, Launch], bool | None] | None" = None,
) -> Life:
    """Return the state of an attempt: by its verdict, or else by its processes. Without proof it does not count as ended."""
    if (life := life_by_verdict(directory)) is not None:
        return life
    if launch.was_requeued(environment):
        return Life.ENDED
    known = {each.lives() for each in (launch.process, *_supervisors(directory))}
    lives = True if True in known else False if known == {False} else (answers or coordinator_answers)(directory, launch)
    if lives is None:
        return Life.UNKNOWN
    # An attempt that has ended meanwhile has written its verdict by now.
    return Life.LIVES if lives else life_by_verdict(directory) or Life.ENDED


def _supervisors(directory: RunDirectory) -> list[Process]:
    """Return the supervisors that have published themselves."""
    found = []
    for path in directory.nodes.glob("*.json"):
        try:
            found.append(from_json(Process, json.dumps(json.loads(path.read_text())["process"])))
        except (OSError, RecordError, ValueError, KeyError, TypeError):
            continue
    return found


def coordinator_answers(directory: RunDirectory, launch: Launch) -> bool | None:
    """Return whether the attempt's coordinator can be reached at its published address; False when nothing has listened
    there for SILENT_S, None when that proves nothing."""
    return asyncio.run(_coordinator_answers(directory, launch))


async def _coordinator_answers(directory: RunDirectory, launch: Launch) -> bool | None:
    until = time.monotonic() + SILENT_S
    while True:
        try:
            address = json.loads(directory.coordinator.read_text())
            host, port, secret = address["host"], address["port"], directory.secret()
        except (OSError, ValueError, KeyError):
            return None
        if host.startswith(("127.", "localhost", "::1")) and not launch.process.shares_network():
            return None
        try:
            (await connect(host, port, secret, None, 0, lambda *_: None, lambda *_: None)).close()
        except ConnectionRefusedError:
            if time.monotonic() > until:
                return False
        except (OSError, ChannelError):
            return None
        else:
            return True
        await asyncio.sleep(AGAIN_S)
