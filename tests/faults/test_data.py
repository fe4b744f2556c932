"""Tests a run on corpora of tokens: a kill does not change its state, and a changed shard stops it before step 0."""

import re
from pathlib import Path

import pytest

from tests.faults.runs import headway, only_run
from tests.support.corpora import documents, write_corpus

pytestmark = pytest.mark.slow
JOB = re.search(r"```yaml\n(# job\.yaml\n.*?)```", (Path(__file__).parents[2] / "docs/data.md").read_text(), re.DOTALL)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job of docs/data.md with fewer steps, on one rank, next to its corpora."""
    assert JOB is not None
    text = (
        JOB[1].replace("steps: 80", "steps: 12").replace("20 steps", "5 steps").replace("cluster: local", "cluster: this-machine")
    )
    text = text.replace("layers: 2", "layers: 1").replace("sequence: 128", "sequence: 32")
    (tmp_path / "job.yaml").write_text(text)
    cluster = (Path(__file__).parent / "cluster.yaml").read_text()
    (tmp_path / "cluster.yaml").write_text(cluster.replace("procs: 2", "procs: 1"))
    for seed, name in enumerate(("numbers", "rhyme")):
        write_corpus(tmp_path / "corpora" / name, [documents(2 * seed + number, 200, 200) for number in range(2)])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "job.yaml"


def test_a_run_on_corpora_ends_in_the_same_state_after_a_kill(job: Path) -> None:
    assert headway("run", job, runs=Path("straight")).returncode == 0
    done = headway("run", job, "--kill", "0@7", runs=Path("killed"))
    assert done.returncode == 0, done.stdout + done.stderr
    straight, killed = only_run(Path("straight")), only_run(Path("killed"))
    assert len(killed.journal("start")) == 2
    assert killed.hashes() == straight.hashes()


def test_a_changed_shard_stops_the_run_before_step_0_and_is_named(job: Path) -> None:
    file = Path("corpora/rhyme/00001.tokens")
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)
    done = headway("run", job, runs=Path("runs"))
    assert done.returncode == 83, done.stdout + done.stderr
    run = only_run(Path("runs"))
    assert len(run.journal("start")) == 1
    assert "`corpora/rhyme/00001.tokens`" in run.verdict()["cause"]
    assert "but not those of the index (on " in run.verdict()["cause"]
    assert "corpora/rhyme/00001.tokens" in done.stdout
    assert run.steps() == []
