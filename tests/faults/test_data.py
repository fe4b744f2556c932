"""Tests a run on corpora of tokens: a kill does not change its samples, and a changed shard stops it before step 0."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from headway.runner.lines import read_lines
from tests.faults.processes import worker
from tests.faults.runs import LIMIT_S, going, headway, only_run, wait_for_step, wait_until
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


def save_to(url: str, job: Path) -> None:
    """Have the job save to a bucket alone."""
    assert job.read_text().count("kind: shared") == 1
    job.write_text(job.read_text().replace("kind: shared", f"kind: remote, url: {url}"))
    cluster = job.with_name("cluster.yaml")
    cluster.write_text(f"{cluster.read_text()}  - name: bucket\n    kind: object\n    url: {url}\n")


def test_a_killed_run_on_corpora_repeats_the_same_steps_from_a_remote_save(
    job: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_to(bucket, job)
    monkeypatch.setenv("LIGHT_STEP_S", "0.2")
    with going("run", job, runs=tmp_path / "runs") as launcher:
        run = wait_for_step(tmp_path / "runs", 5)
        wait_until(lambda: bool(run.journal("committed")), "the first save")
        wait_for_step(tmp_path / "runs", max(run.steps()) + 1)
        worker(run.directory, rank=0).kill()
        assert launcher.wait(LIMIT_S) == 0
    first, base = (claim["base"] for claim in run.journal("claim"))
    assert (first, base["tier"]) == (None, "remote")
    computed = defaultdict(list)
    for line, _ in read_lines(run.directory / "metrics.jsonl"):
        computed[line["step"]].append((line["tokens"], line["loss"]))
    assert sorted(computed) == list(range(1, 13))
    repeated = {step: found for step, found in computed.items() if len(found) > 1}
    assert base["step"] + 1 in repeated
    assert all(one == other for one, other in repeated.values())


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
