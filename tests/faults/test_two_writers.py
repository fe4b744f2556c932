"""Tests writers of one run in separate processes, one stopped and continued, one with a shifted clock: the chain stays consistent.

Each claims, commits for a while, and claims again when it has been superseded. Its acknowledged records are compared with the chain.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from headway.runner.checkpoint.chain import Chain, Claim, Commit, Record, lineage
from headway.runner.checkpoint.stores import open_store
from headway.runner.contract import CheckpointId

pytestmark = pytest.mark.slow

RUN = "run-1"
# The number of fights; `make soak` sets more.
SEEDS = max(int(os.environ.get("HEADWAY_EXAMPLES", "100")) // 50, 1)
# How often a writer is stopped and continued.
ROUNDS = 12
# Lines that the others must have printed before a stopped one continues.
QUIET = 3
WAIT_S = 60.0

# argv: store, name, seed, seconds that its clock is ahead. Prints one line for each acknowledged record.
WRITER = """
import json, random, sys, time
store, name, seed, ahead = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
right = time.time
time.time = lambda: right() + ahead
from headway.runner.checkpoint.chain import Chain, Commit, MovedError, Retire, SupersededError, lineage, newest_base
from headway.runner.checkpoint.stores import open_store

chance, chain = random.Random(seed), Chain(open_store(store), "run-1")
said = lambda **what: print(json.dumps(what), flush=True)
while True:
    base = newest_base(chain.read())
    try:
        record = chain.claim(base, 0, name)
    except (MovedError, SupersededError):
        continue
    said(seq=record.seq, claimed=record.generation)
    step = base.step if base else 0
    try:
        for _ in range(chance.randint(2, 20)):
            step += chance.randint(1, 3)
            record = chain.append(Commit(step, f"{step}.{record.generation}"), record.generation, 0, name)
            said(seq=record.seq, step=step, generation=record.generation)
            old = [c.checkpoint for c in lineage(chain.read())[3:] if c.tiers]
            if old and chance.random() < 0.2:
                said(seq=chain.append(Retire((old[-1],)), record.generation, 0, name).seq)
    except SupersededError:
        said(superseded=record.generation)
    except ValueError as refused:  # the base of its claim
        said(refused=str(refused))
"""


@dataclass
class Writer:
    """A process, and its printed lines."""

    process: "subprocess.Popen[str]"
    said: list[dict[str, Any]] = field(default_factory=list)
    heard: threading.Condition = field(default_factory=threading.Condition)

    def listen(self, lines: IO[str]) -> None:
        for line in lines:
            with self.heard:
                self.said.append(json.loads(line))
                self.heard.notify_all()

    def wait_for_more(self, count: int) -> None:
        with self.heard:
            wanted = len(self.said) + count
            assert self.heard.wait_for(lambda: len(self.said) >= wanted, WAIT_S)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def writers(store: str, seed: int, ahead: tuple[float, ...]) -> Iterator[list[Writer]]:
    started: list[Writer] = []
    listeners: list[threading.Thread] = []
    try:
        for number, seconds in enumerate(ahead):
            command = [sys.executable, "-c", WRITER, store, f"writer {number}", str(seed * 10 + number), str(seconds)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            started.append(Writer(process))
            listeners.append(threading.Thread(target=started[-1].listen, args=(process.stdout,)))
            listeners[-1].start()
        yield started
    finally:
        for writer in started:
            writer.process.kill()
            writer.process.wait()
        for listener in listeners:
            listener.join(WAIT_S)
        for writer in started:
            assert writer.process.stdout is not None
            writer.process.stdout.close()


def fight(store: str, seed: int) -> tuple[list[Writer], list[Record]]:
    """Three writers; repeatedly one is stopped anywhere until the others have progressed without it."""
    chance = random.Random(seed)
    with writers(store, seed, ahead=(0.0, -86_400.0, 3_600.0)) as fighting:
        for writer in fighting:
            writer.wait_for_more(1)
        for _ in range(ROUNDS):
            stopped = chance.choice(fighting)
            stopped.wait_for_more(chance.randint(1, 3))
            stopped.stop()
            for other in fighting:
                if other is not stopped:
                    other.wait_for_more(QUIET)
            stopped.resume()
    return fighting, Chain(open_store(store), RUN).read()


def judge(fighting: list[Writer], records: list[Record]) -> None:
    """Acknowledged records exist; every writer was in charge; nothing counts twice; the valid commits are those that claims took over."""
    for number, writer in enumerate(fighting):
        for line in writer.said:
            if (seq := line.get("seq")) is not None:
                assert records[seq - 1].holder == f"writer {number}"
            if "step" in line:
                entry = records[line["seq"] - 1].entry
                assert isinstance(entry, Commit)
                assert (entry.step, records[line["seq"] - 1].generation) == (line["step"], line["generation"])
    claims = [r for r in records if isinstance(r.entry, Claim)]
    assert {claim.holder for claim in claims} == {f"writer {number}" for number in range(len(fighting))}
    assert [claim.generation for claim in claims] == list(range(1, len(claims) + 1))
    commits = [CheckpointId(r.entry.step, r.generation) for r in records if isinstance(r.entry, Commit)]
    assert len(commits) == len(set(commits))
    # no base was refused, so every claim took over all earlier commits
    assert sorted((c.checkpoint.generation, c.step) for c in lineage(records)) == sorted((c.generation, c.step) for c in commits)
    assert any("superseded" in line for writer in fighting for line in writer.said)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_stopped_writer_and_a_shifted_clock_corrupt_no_other_writer(seed: int, tmp_path: Path) -> None:
    judge(*fight(str(tmp_path), seed))
    # a record that a killed writer was about to create does not count
    assert all(path.name.startswith(".tmp-") or path.suffix == ".json" for path in tmp_path.iterdir())
