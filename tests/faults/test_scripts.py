"""Scripts of three kinds, unchanged, with `headway torchrun` in place of `torchrun`: what is done to them leaves no trace in the result."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from .kills import AGENT, COORDINATOR
from .processes import companions, processes_of, worker
from .runs import LIMIT_S, Run, going, headway, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HASH = "parameters ([0-9a-f]{16})"


@dataclass(frozen=True)
class Script:
    """A script, what it takes its folder by, and where the state lies in which a bit is flipped: the newest of its last save.

    A save makes `files` lines; `steps` are enough for all that is done to the first attempt, and the second one goes on to `more`.
    """

    path: str
    folder: str
    newest: str
    files: int
    steps: int
    more: int
    exact: bool = True  # its own resume goes on exactly; Lightning's does not within an epoch, under plain torchrun either

    def words(self, folder: Path, steps: int) -> tuple[str | Path, ...]:
        own = (self.folder, folder / "saved", "--steps", str(steps), "--save-every", str(self.steps // 20))
        return ("--nproc-per-node", "2", ROOT / self.path, *own)

    def flip(self, folder: Path) -> Path:
        """Flips a bit of the newest checkpoint."""
        path = max((folder / "saved").glob(self.newest), key=lambda found: found.stat().st_mtime_ns)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        return path


SCRIPTS = {
    "torch DCP": Script("examples/one-word/train.py", "--checkpoints", "step-*/data-0-*.bin", 1, 2000, 2100),
    "Hugging Face Trainer": Script("tests/scripts/trainer.py", "--output", "checkpoint-*/optimizer.pt", 6, 200, 220),
    "Lightning": Script("tests/scripts/fit.py", "--output", "last.ckpt", 2, 400, 440, exact=False),
}


@pytest.fixture(params=SCRIPTS)
def script(request: pytest.FixtureRequest) -> Script:
    return SCRIPTS[request.param]


def parameters(output: str) -> str:
    """The hash that the script prints last."""
    return str(re.findall(HASH, output)[-1])


def undisturbed(script: Script, folder: Path) -> str:
    """The control: torch's own launcher, and nothing done to it."""
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, script.words(folder, script.more))]
    output = folder / "output"
    with output.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        try:
            # A script that has finished may not end there (pytorch/pytorch#56297).
            wait_until(lambda: re.search(HASH, output.read_text()) is not None or process.poll() is not None, "the control")
        finally:
            for left in processes_of(folder):
                left.kill()
            process.kill()
    return parameters(output.read_text())


def saves(run: Run) -> int:
    """How many checkpoints have been noted."""
    noted = run.directory / "shared/saved.jsonl"
    return len(noted.read_text().splitlines()) if noted.exists() else 0


def another_save(script: Script, run: Run, running: subprocess.Popen[bytes], start: int) -> None:
    """Waits for a save of the generation that is the run's `start`th, behind all that there are now."""
    wait_until(lambda: len(run.journal("start")) >= start or running.poll() is not None, f"start {start}")
    before = saves(run)
    wait_until(lambda: saves(run) >= before + script.files or running.poll() is not None, "a save")
    assert running.poll() is None, f"it ended before the fault: {run.journal('failure', 'end')}"


def test_a_script_survives_what_is_done_to_its_processes_and_to_its_checkpoint(script: Script, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    expected = undisturbed(script, tmp_path / "plain") if script.exact else None
    ours, run = tmp_path / "ours", Run(tmp_path / "runs/mine")
    with going("torchrun", "--rdzv-id", "mine", *script.words(ours, script.steps), runs=tmp_path / "runs") as running:
        another_save(script, run, running, 1)
        worker(run.directory, 1).kill()
        another_save(script, run, running, 2)
        for companion in companions(run.directory, AGENT) + companions(run.directory, COORDINATOR):
            companion.kill()
        another_save(script, run, running, 2)
        os.kill(worker(run.directory, 1).pid, signal.SIGSTOP)
        assert running.wait(LIMIT_S) == 0
    failures = [(failure["cause_kind"], failure["rank"]) for failure in run.journal("failure")]
    assert failures == [("crash", 1), ("hang", 1)]
    flipped = script.flip(ours)
    done = headway("torchrun", "--rdzv-id", "mine", *script.words(ours, script.more), runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    (note,) = run.journal("refused file")
    assert note["path"] in str(flipped)
    assert f"finished step {script.more} " in done.stdout
    if script.exact:
        assert parameters(done.stdout) == expected
