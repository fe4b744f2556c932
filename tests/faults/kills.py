"""Runs a job whose processes are killed at random instants until it has ended, and checks the restarts on its chain."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.runner.checkpoint.chain import Chain, Claim, Commit, Record, lineage
from headway.runner.checkpoint.stores import open_store

from .processes import Process, companions, processes_of
from .runs import JOB, LIMIT_S, Run, going, only_run, wait_until

# Steps from one kill to the next, including repeated ones.
BETWEEN = (3, 9)
# The duration of a save here: copy, hash, write, commit.
SPREAD_S = 0.15

SUPERVISOR, KEEPER = "headway.runner", "headway.runner.checkpoint.keeper"
AGENT, COORDINATOR = "headway.runner.agent.main", "headway.runner.coordinator.main"


@dataclass(frozen=True)
class Job:
    """Where two ranks run, and how often each tier is written."""

    nodes: int
    every: Mapping[str, int]
    steps: int
    url: str | None = None

    def write(self, folder: Path) -> Path:
        """Write the job, with its cluster next to it."""
        cluster = (JOB.parent / "cluster.yaml").read_text()
        cluster = cluster.replace("count: 1", f"count: {self.nodes}").replace("procs: 2", f"procs: {2 // self.nodes}")
        if self.url is not None:
            cluster += f"  - name: bucket\n    kind: object\n    url: {self.url}\n"
        head, _, _ = JOB.read_text().partition("checkpoint:")
        job = head.replace("nodes: 1", f"nodes: {self.nodes}").replace("steps: 60\n", f"steps: {self.steps}\n")
        (folder / "cluster.yaml").write_text(cluster)
        path = folder / "job.yaml"
        path.write_text(f"{job}{_CHECKPOINT}{''.join(map(self._tier, self.every))}")
        return path

    def _tier(self, kind: str) -> str:
        url = f", url: {self.url}" if kind == "remote" else ""
        return f"    - {{kind: {kind}, every: {self.every[kind]} steps{url}}}\n"


_CHECKPOINT = """
resilience:
  restart: {budget: 10000, no_progress: 1000}
  timeouts: {agent: 5s}

checkpoint:
  keep: 3
  tiers:
"""


# --- choice of processes ----------------------------------------------------------------------------------------------


def _worker(draw: random.Random, run: Path) -> list[Process]:
    workers = [process for process in processes_of(run) if "RANK" in process.environment]
    return draw.sample(workers, min(1, len(workers)))


def _companion(module: str) -> Callable[[random.Random, Path], list[Process]]:
    def find(draw: random.Random, run: Path) -> list[Process]:
        found = companions(run, module)
        return draw.sample(found, min(1, len(found)))

    return find


def _memory_of_a_node(draw: random.Random, run: Path) -> list[Process]:
    """The keeper and the workers of one node, so that the contents of its memory are lost."""
    keepers = _companion(KEEPER)(draw, run)
    of = {parent(keeper.pid) for keeper in keepers}
    return [*keepers, *(p for p in processes_of(run) if "RANK" in p.environment and parent(p.pid) in of)]


def parent(pid: int) -> int:
    """The parent process, of a keeper or a worker its node's supervisor; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


VICTIMS: Mapping[str, Callable[[random.Random, Path], list[Process]]] = {
    "worker": _worker,
    "keeper": _companion(KEEPER),
    "keeper and workers of a node": _memory_of_a_node,
    "agent": _companion(AGENT),
    "coordinator": _companion(COORDINATOR),
    "node": _companion(SUPERVISOR),
}
# An attempt ends with a node, since no other node takes its place here.
WEIGHTS = (4, 2, 2, 1, 1, 1)


# --- the run ----------------------------------------------------------------------------------------------------------


@dataclass
class Killed:
    """The kills of a run, and how often it had to be started."""

    run: Run
    code: int
    victims: Counter[str] = field(default_factory=Counter)
    attempts: int = 0


def kill_until_done(job: Path, runs: Path, kills: int, draw: random.Random) -> Killed:
    """Run the job to its end through this many kills, resuming it whenever an attempt ends."""
    words: tuple[str | Path, ...] = ("run", job)
    killed = Killed(Run(runs), -1)
    while killed.code != 0:
        with going(*words, runs=runs) as launcher:
            killed.attempts += 1
            wait_until(lambda: any(runs.glob("*/handle.json")) or launcher.poll() is not None, "the run's directory")
            killed.run = only_run(runs)
            while killed.victims.total() < kills and _progressed(killed.run, launcher.poll, draw):
                time.sleep(draw.uniform(0, SPREAD_S))
                _kill(killed, draw)
            killed.code = launcher.wait(LIMIT_S)
        wait_until(lambda: not processes_of(killed.run.directory), "the end of all processes of the attempt")
        assert killed.attempts <= kills + 1, f"attempt {killed.attempts} ended with {killed.code} after {killed.victims}"
        words = ("run", job, "--resume", killed.run.directory.name)
    return killed


def _progressed(run: Run, ended: Callable[[], int | None], draw: random.Random) -> bool:
    """Wait for some more steps. False if the attempt has ended."""
    wanted = len(run.steps()) + draw.randint(*BETWEEN)
    wait_until(
        lambda: len(run.steps()) >= wanted or ended() is not None, f"{wanted} steps, of which there are {len(run.steps())}"
    )
    return ended() is None


def _kill(killed: Killed, draw: random.Random) -> None:
    (kind,) = draw.choices(list(VICTIMS), WEIGHTS)
    victims = VICTIMS[kind](draw, killed.run.directory)
    for victim in victims:
        try:
            victim.kill()
        except ProcessLookupError:  # it has just ended
            continue
    killed.victims[kind] += bool(victims)


# --- checks of the chain ----------------------------------------------------------------------------------------------


def records_of(run: Run) -> list[Record]:
    return Chain(open_store(str(run.directory / "shared/chain")), run.directory.name).read()


def bases(records: list[Record]) -> Iterator[str]:
    """The tier that each restart began from. Raises AssertionError for one that was not the newest committed, or newer in memory."""
    for at, record in enumerate(records):
        if not isinstance(claim := record.entry, Claim):
            continue
        committed = lineage(records[:at])
        if claim.base is None:
            assert not committed, f"record {record.seq} starts from scratch, and {committed[0]} was committed"
            yield "the beginning"
            continue
        newest = committed[0].step if committed else 0
        assert claim.base.step >= newest, f"record {record.seq} goes back to {claim.base}, and step {newest} was committed"
        if claim.base.tier != "memory":
            assert (claim.base.step, claim.base.manifest_xxh3_128, claim.base.tier) in _commits(
                records[:at], claim.base.generation
            )
        yield claim.base.tier


def _commits(records: list[Record], generation: int) -> set[tuple[int, str, str]]:
    found = ((record.generation, record.entry) for record in records if isinstance(record.entry, Commit))
    return {(c.step, c.manifest_xxh3_128, tier) for of, c in found if of == generation for tier in c.tiers}
