"""Tests the builtin trainer with compiled blocks: it has the losses of eager ones, and the same state after a kill."""

import json
from pathlib import Path

import pytest

from tests.faults.runs import JOB, Run, headway, only_run

# Compilation takes more than a minute.
pytestmark = [pytest.mark.slow, pytest.mark.variant]
# As between layouts, tests/runner/train/test_parallel.py; measured: 5e-8 to 9e-8 over 5 steps.
TOLERANCE = 1e-6
STEPS = 12


def job(folder: Path, *, compiled: bool) -> Path:
    """The job of this folder without dropout, whose random numbers a compiled block draws differently."""
    folder.mkdir()
    text = (
        JOB.read_text()
        .replace("dropout: 0.1", "dropout: 0")
        .replace("steps: 60", f"steps: {STEPS}")
        .replace("10 steps", "5 steps")
    )
    (folder / "job.yaml").write_text(f"{text}compile: {str(compiled).lower()}\n")
    (folder / "cluster.yaml").write_text((JOB.parent / "cluster.yaml").read_text())
    return folder / "job.yaml"


def losses(run: Run) -> dict[int, float]:
    """The loss of each step, from the last generation that executed it."""
    lines = map(json.loads, (run.directory / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines}


@pytest.fixture(autouse=True)
def _with_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Light ranks have no compiler of torch."""
    monkeypatch.setenv("PYTHONPATH", "")


def test_compiled_blocks_have_eager_losses_also_after_a_kill(tmp_path: Path) -> None:
    assert headway("run", job(tmp_path / "eager", compiled=False), runs=tmp_path / "runs-eager").returncode == 0
    compiled = job(tmp_path / "compiled", compiled=True)
    done = headway("run", compiled, runs=tmp_path / "runs-compiled")
    assert done.returncode == 0, done.stdout + done.stderr
    killed = headway("run", compiled, "--kill", "1@7", runs=tmp_path / "runs-killed")
    assert killed.returncode == 0, killed.stdout + killed.stderr
    eager, straight, again = (only_run(tmp_path / f"runs-{name}") for name in ("eager", "compiled", "killed"))
    expected = losses(eager)
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert losses(straight) == pytest.approx(expected, rel=TOLERANCE)
    assert len(again.journal("start")) == 2
    assert again.hashes() == straight.hashes()
