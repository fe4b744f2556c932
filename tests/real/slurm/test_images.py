"""Tests an image without headway, on hosts without Python, under real Slurms; it runs the committed files."""

import shutil
import subprocess
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.runner.contract import RunDirectory
from tests.faults.processes import processes_of
from tests.faults.runs import LIMIT_S, only_run, wait_for_step, wait_until

from .cluster import SlurmCluster
from .images import make_tools, without_pythons

pytestmark = pytest.mark.slow

DIGEST = "0123456789abcdef" * 4
CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: images
scheduler: {{kind: slurm, options: {{partition: main, containers: {containers}, bundle: {bundle}, image_cache: {cache}}}}}
node_groups: [{{name: cpu, count: 2, cpus: 1, procs: 1}}]
storage: [{{name: runs, kind: posix, path: {runs}, shared: true}}]
"""
# The quickstart's model, on text of the repository.
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: quickstart
extends: base.yaml
cluster: images
nodes: 2
code: {{image: "registry.example.com/train@sha256:{digest}"}}
data: {{kind: files, options: {{paths: ["corpus/*.txt"], limit: null}}}}
batch: {{global: 16 sequences, micro: 8, sequence: 64}}
steps: 60
checkpoint: {{tiers: [{{kind: shared, every: 10 steps}}], keep: 3}}
"""
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}
QUICKSTART = Path(__file__).parents[3] / "examples/quickstart/job.yaml"


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


# The real Apptainer does the same in test_apptainer.py.
@pytest.mark.variant
def test_an_image_without_headway_trains_the_committed_script(
    each_slurm: SlurmCluster, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository, runs = tmp_path / "repository", tmp_path / "runs"
    (repository / "corpus").mkdir(parents=True)
    (repository / "corpus/a.txt").write_text("To be, or not to be, that is the question.\n" * 2000)
    shutil.copy(QUICKSTART, repository / "base.yaml")
    (repository / "cluster.yaml").write_text(
        CLUSTER.format(containers="pyxis", bundle=bundle, cache=tmp_path / "cache", runs=runs)
    )
    (repository / "job.yaml").write_text(JOB.format(digest=DIGEST))
    monkeypatch.chdir(repository)
    git(repository, "init", "-q")
    assert main(["render", "job.yaml"]) == 0
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "a job")
    capsys.readouterr()
    assert main(["snapshot", "job.yaml"]) == 0
    code = capsys.readouterr().out.strip()
    assert code == f"{runs}/code/{git(repository, 'rev-parse', 'HEAD')}.tar"

    tools = make_tools(tmp_path, each_slurm.programs.clients)
    script = repository / "rendered/quickstart/images/slurm/job.sbatch"
    with without_pythons(each_slurm):
        job = each_slurm.submit(script, f"--export=ALL,PATH={tools},HEADWAY_CODE={code}", cwd=repository)
        # An edit after the submission.
        shutil.rmtree(repository / "corpus")
        try:
            run = wait_for_step(runs, 14)
            each_slurm.run("scontrol", "requeue", str(job))
            wait_until(lambda: not processes_of(run.directory), "the end of the first attempt")
            state = each_slurm.wait(job, ENDED, LIMIT_S)["JobState"]
        finally:
            each_slurm.run("scancel", str(job), check=False)
    assert state == "COMPLETED", "".join(path.read_text() for path in repository.glob("*.out"))
    run = only_run(runs)
    assert [run.verdict(attempt)["verdict"] for attempt in (0, 1)] == ["preempted", "completed"]
    assert sorted(set(run.steps())) == list(range(1, 61))
    assert [(RunDirectory(run.directory, attempt).attempt_directory / "code").read_text().strip() for attempt in (0, 1)] == [
        code,
        code,
    ]
    # Both nodes have one file system here, and therefore one cache.
    (imported,) = (tools / "imports").read_text().splitlines()
    assert imported.endswith(f" docker://registry.example.com#train:sha256:{DIGEST}")
