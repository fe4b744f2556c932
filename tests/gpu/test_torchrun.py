"""Tests `headway torchrun` in place of `torchrun` with NCCL on a GPU."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.runs import LIMIT_S, headway, only_run

SCRIPT = Path(__file__).parent / "scripts/train.py"


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last line under plain torchrun, without faults."""
    folder = tmp_path_factory.mktemp("plain")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return _last(done.stdout)


def test_output_is_unchanged_until_a_failure(ending: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    done = headway("torchrun", "--nproc-per-node", "1", SCRIPT, tmp_path / "own", runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _last(done.stdout) == ending
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["last.pt"]


def test_a_killed_rank_resumes_bit_for_bit(ending: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    words = ("torchrun", "--nproc-per-node", "1", SCRIPT, tmp_path / "own", "--crash-at", "25")
    done = headway(*words, runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed from step 20" in done.stdout
    assert _last(done.stdout) == ending
    (failure,) = only_run(tmp_path / "runs").journal("failure")
    assert failure["cause"] == "killed by SIGKILL"


def test_an_endless_kernel_is_a_hang_and_the_rank_is_restarted(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collective behind it never begins, and the process occupies a core while it waits for its GPU."""
    (tmp_path / "own").mkdir()
    for section in ("COMPUTE", "COLLECTIVE"):
        monkeypatch.setenv(f"HEADWAY_TIMEOUT_{section}", "15s")
    words = ("torchrun", "--nproc-per-node", "1", SCRIPT, tmp_path / "own", "--spin-at", "25")
    done = headway(*words, runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _last(done.stdout) == ending
    run = only_run(tmp_path / "runs")
    (hang,) = run.journal("hang")
    print(hang)
    assert (hang["ranks"], hang["section"]) == ([], "collective")
    assert "every rank has entered all_reduce" in hang["why"]
    evidence = [path.relative_to(run.directory) for path in run.directory.rglob("*") if "evidence" in path.parts]
    print(*evidence, sep="\n")
    assert any("flight-1-0" in path.name for path in evidence), "NCCL's flight recorder was dumped"


def _last(output: str) -> str:
    found = re.findall(r"finished step \d+ state \w+", output)
    assert found, output
    return str(found[-1])
