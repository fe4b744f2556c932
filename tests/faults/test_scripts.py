"""Tests three unmodified scripts with `headway torchrun` in place of `torchrun`: faults leave no trace in the result.

Two nodes compute and a third one waits. Plain torchrun is the control for the result.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.runner.contract import HeartbeatPage
from headway.runner.lines import read_lines
from tests.soak import record

from .kills import AGENT, COORDINATOR
from .nodes import SHARED, Nodes, why_not
from .processes import Process, companions, processes_of, worker
from .runs import LIMIT_S, Run, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.variant, pytest.mark.skipif(bool(why_not()), reason=why_not() or "nodes can be had")]

ROOT = Path(__file__).parents[2]
HASH = "parameters ([0-9a-f]{16})"
HEADWAY = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29400")


@dataclass(frozen=True)
class Script:
    """A script, its argument for the folder, and which file of a save has the state in which a bit is flipped.

    A save makes `files` records in the run's directory; `steps` suffice for all faults, with 20 saves.
    """

    path: str
    folder: str
    state: str
    files: int
    steps: int
    # Its own resume is exact; Lightning's is not within an epoch, under plain torchrun either.
    exact: bool = True

    @property
    def every(self) -> int:
        return self.steps // 20

    def words(self, folder: Path, steps: int) -> tuple[str, ...]:
        own = (self.folder, str(folder / "saved"), "--steps", str(steps), "--save-every", str(self.every))
        return (str(ROOT / self.path), *own)


SCRIPTS = {
    "torch DCP": Script("examples/one-word/train.py", "--checkpoints", "step-*/__0_0.distcp", 3, 600),
    "Hugging Face Trainer": Script("tests/scripts/trainer.py", "--output", "checkpoint-*/optimizer.pt", 6, 100),
    "Lightning": Script("tests/scripts/fit.py", "--output", "last.ckpt", 2, 200, exact=False),
}


@pytest.fixture(params=SCRIPTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def script(name: str) -> Script:
    return SCRIPTS[name]


def plainly(script: Script, folder: Path, steps: int) -> str:
    """The control: the script's output under torch's own launcher."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *script.words(folder, steps)]
    output = folder / "output"
    with output.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        try:
            # A script that has finished may hang here (pytorch/pytorch#56297).
            wait_until(lambda: re.search(HASH, output.read_text()) is not None or process.poll() is not None, "the control")
        finally:
            for left in processes_of(folder):
                left.kill()
            process.kill()
    return output.read_text()


def parameters(output: str) -> str:
    """The hash that the script prints last."""
    return str(re.findall(HASH, output)[-1])


def newest(saved: Path, state: str) -> Path:
    return max(saved.glob(state), key=lambda path: path.stat().st_mtime_ns)


def flip(path: Path, at: int) -> None:
    """Flip the lowest bit of the byte at this offset, as a disk does: the file's time is unchanged."""
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


class Story:
    """A script on the first two of three nodes, and its state."""

    def __init__(self, script: Script, nodes: Nodes) -> None:
        self.script, self.nodes, self.name = script, nodes, f"story-{os.getpid()}"
        self.run = Run(nodes.folder / "runs" / self.name)
        # The run's directory as its processes name it.
        self.inside = SHARED / "runs" / self.name
        self.launchers: list[subprocess.Popen[bytes]] = []

    def start(self, *numbers: int) -> None:
        """Start the command on these nodes; return when they have joined."""
        words = (*HEADWAY, "--rdzv-id", self.name, *self.script.words(SHARED, self.script.steps))
        self.launchers += [self.nodes[number].torchrun(*words, runs=SHARED / "runs") for number in numbers]
        entered = [self.run.directory / f"attempts/0/nodes/{number}.json" for number in numbers]
        self.wait(lambda: all(path.exists() for path in entered), f"nodes {numbers}")

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until `ready()`. Raises AssertionError with the output once that is impossible."""
        try:
            wait_until(lambda: ready() or all(launcher.poll() is not None for launcher in self.launchers), what)
            assert ready()
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{what}; {self.report()}") from error

    def report(self) -> str:
        printed = "\n".join(f"{node.name}: {node.output[-2000:]}" for node in self.nodes.nodes)
        return f"{self.run.journal('failure', 'end')}\n{printed}"

    def worker(self, rank: int) -> Process:
        return worker(self.inside, rank)

    def saved(self) -> list[Path]:
        """The files that have their checksums, in order, as this machine names them."""
        files = (self.run.directory / "shared/saved").glob("*.jsonl")
        lines = sorted((line for file in files for line, _ in read_lines(file)), key=lambda line: line["wall"])
        done = [line["path"] for line in lines if line["kind"] in ("file", "part")]
        return [self.nodes.folder / Path(path).relative_to(SHARED) for path in done]

    def another_save(self, start: int) -> None:
        """Wait for a save in the run's `start`th generation that is newer than all existing ones, and for a step after it."""
        self.wait(lambda: len(self.run.journal("start")) >= start, f"start {start}")
        before = len(self.saved())
        self.wait(lambda: len(self.saved()) >= before + self.script.files, "a save")
        step = self.step()
        self.wait(lambda: self.step() > step, f"a step after {step}")

    def step(self) -> int:
        """The number of steps of rank 0 since its start."""
        record = json.loads((self.run.directory / "attempts/0/nodes/0.json").read_text())
        page = self.nodes[0].own(record["heartbeat"]).read_bytes()
        return HeartbeatPage(memoryview(page)).read(0)["step"]

    def stop_between_saves(self) -> None:
        """Stop both workers while neither is in the middle of a save."""
        workers = [self.worker(rank) for rank in (0, 1)]
        while True:
            for each in workers:
                os.kill(each.pid, signal.SIGSTOP)
            wait_until(lambda: all(each.state == "T" for each in workers), "workers that stand still")
            saved = self.saved()
            newest = max((self.nodes.folder / "saved").glob("[!.]*"), key=lambda path: path.stat().st_mtime_ns)
            if len(saved) % self.script.files == 0 and any(path.is_relative_to(newest) for path in saved):
                return
            for each in workers:
                os.kill(each.pid, signal.SIGCONT)
            self.another_save(1)


@pytest.fixture
def story(script: Script, tmp_path: Path) -> Iterator[Story]:
    (tmp_path / "shared").mkdir()
    with Nodes(tmp_path / "shared", 3) as nodes:
        yield Story(script, nodes)


def test_a_script_survives_faults_of_its_processes_nodes_and_checkpoint(
    name: str, script: Script, story: Story, tmp_path: Path
) -> None:
    run = story.run
    story.start(0, 1)
    story.start(2)
    story.another_save(1)
    story.stop_between_saves()
    flipped = newest(story.nodes.folder / "saved", script.state)
    flip(flipped, flipped.stat().st_size // 2)
    story.worker(1).kill()
    os.kill(story.worker(0).pid, signal.SIGCONT)
    story.another_save(2)
    for companion in companions(story.inside, AGENT) + companions(story.inside, COORDINATOR):
        companion.kill()
    story.another_save(2)
    os.kill(story.worker(0).pid, signal.SIGSTOP)
    story.another_save(3)
    story.nodes[1].lose_power()
    assert [story.launchers[number].wait(LIMIT_S) for number in (0, 2)] == [0, 0], story.report()
    failures = [(failure["cause_kind"], failure["rank"]) for failure in run.journal("failure")]
    assert failures == [("crash", 1), ("hang", 0), ("node lost", 1)]
    assert run.journal("adopted"), "agents and coordinator cost no restart"
    (note,) = run.journal("refused file")
    assert Path(note["path"]).name in flipped.parts
    assert [(line["slot"], line["from"], line["to"]) for line in run.journal("rebound")] == [(1, 1, 2)]
    output = story.nodes[0].output
    assert f"finished step {script.steps} " in output
    if script.exact:
        assert parameters(output) == parameters(plainly(script, tmp_path, script.steps))
    done = ["flipped bit", "SIGKILL of a worker", "SIGKILL of every agent and the coordinator", "SIGSTOP", "loss of a node"]
    end = "parameters as under plain torchrun" if script.exact else "last step, by a resume of its own that is not exact"
    record(f"{name} script", {"done to it": done, "restarts": [kind for kind, _ in failures], "ended with": end})
