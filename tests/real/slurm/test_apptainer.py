"""Tests a job in an image of the real Apptainer, without headway, on hosts without Python; it runs the committed files."""

from pathlib import Path

import pytest

from headway.cli.main import main
from tests.faults.processes import processes_of
from tests.faults.runs import LIMIT_S, only_run, wait_until

from .apptainer import PLACES, make_apptainer, make_image
from .cluster import SlurmCluster
from .images import make_tools, without_pythons
from .test_images import CLUSTER, ENDED, git

pytestmark = pytest.mark.slow

JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: in-sif
cluster: images
nodes: 2
code: {{image: {image}}}
mounts: [{mounts}]
secrets: [A_SECRET]
environment: {{OF_BOTH: it's "the job's"}}
setup: ['echo "$SLURMD_NODENAME: $OF_IMAGE, $OF_BOTH, $A_SECRET, home ${{HOME##*/}} in $APPTAINER_CONTAINER"']
run: [train.py, "{{run_directory}}"]
"""

# It saves when asked to stop, and ends in the next attempt. Only then, and on one rank, it imports the image's torch, which takes seconds.
PROGRAM = """\
import os, signal, sys, time
from pathlib import Path

rank, saved = os.environ["RANK"], Path(sys.argv[1]) / f"saved-{os.environ['RANK']}"

def save(*_):
    saved.touch()
    sys.exit()

signal.signal(signal.SIGTERM, save)
if not saved.exists():
    Path(sys.argv[1], f"started-{rank}").touch()
    time.sleep(600)
elif rank == "0":
    import torch
"""


def test_a_job_in_a_sif_file_is_preempted_and_completes_when_resumed(
    current_slurm: SlurmCluster, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository, runs, cache = tmp_path / "repository", tmp_path / "runs", tmp_path / "cache"
    tools = make_tools(tmp_path, current_slurm.programs.clients)
    image = make_image(make_apptainer(tools), current_slurm, tmp_path)
    repository.mkdir()
    (repository / "train.py").write_text(PROGRAM)
    (repository / "cluster.yaml").write_text(CLUSTER.format(containers="apptainer", bundle=bundle, cache=cache, runs=runs))
    mounts = ", ".join(f"{{source: {each}}}" for each in PLACES)
    (repository / "job.yaml").write_text(JOB.format(image=image, mounts=mounts))
    monkeypatch.chdir(repository)
    git(repository, "init", "-q")
    assert main(["render", "job.yaml"]) == 0
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "a job")
    capsys.readouterr()
    assert main(["snapshot", "job.yaml"]) == 0
    variables = f"PATH={tools},A_SECRET=of-the-user,HEADWAY_CODE={capsys.readouterr().out.strip()}"
    with without_pythons(current_slurm):
        script = repository / "rendered/in-sif/images/slurm/job.sbatch"
        job = current_slurm.submit(script, f"--export=ALL,{variables}", cwd=repository)
        # An edit after the submission.
        (repository / "train.py").unlink()
        try:
            wait_until(lambda: len([*runs.glob("*/started-*")]) == 2, "both ranks")
            run = only_run(runs)
            current_slurm.run("scontrol", "requeue", str(job))
            wait_until(lambda: not processes_of(run.directory), "the end of the first attempt")
            state = current_slurm.wait(job, ENDED, LIMIT_S)["JobState"]
        finally:
            current_slurm.run("scancel", str(job), check=False)
    printed = "".join(path.read_text() for path in repository.glob("*.out"))
    assert state == "COMPLETED", printed
    assert [run.verdict(attempt)["verdict"] for attempt in (0, 1)] == ["preempted", "completed"]
    (kept,) = cache.glob("headway-*.sif")
    told = "image, it's \"the job's\", of-the-user, home home in "
    assert {line for line in printed.splitlines() if told in line} == {f"{node}: {told}{kept}" for node in ("n1", "n2")}
    assert "of-the-user" not in (tools / "calls").read_text()
