"""Many documents in one call: each file is read once, whatever number of jobs and clusters want it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STORY = Path(__file__).parents[2] / "examples" / "two-node-slurm"

# Prints how often each YAML file was opened, by sys.audit's event of every open().
PROGRAM = """
import collections, json, os, sys
opened = collections.Counter()
def hook(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".yaml"):
        opened[os.path.basename(os.fspath(arguments[0]))] += 1
sys.addaudithook(hook)
from headway.cli.main import main
code = main(sys.argv[1:])
print(json.dumps(opened))
sys.exit(code)
"""


def repository(folder: Path, jobs: int) -> None:
    """Jobs of one folder on clusters in the folder above, all of them from one base."""
    (folder / ".git").mkdir()
    (folder / "jobs").mkdir()
    for cluster in STORY.glob("*cluster.yaml"):
        (folder / cluster.name).write_text(cluster.read_text())
    text = (STORY / "job.yaml").read_text()
    (folder / "base.yaml").write_text(text.replace("\nname:", "\npartial: true\nname:", 1))
    for index in range(jobs):
        document = f"apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: job-{index}\nextends: ../base.yaml\n"
        (folder / "jobs" / f"{index}.yaml").write_text(document)


@pytest.mark.parametrize("words", [["check", "."], ["check", "jobs"], ["check", "jobs/3.yaml", "jobs/4.yaml"]])
def test_each_file_is_read_once(words: list[str], tmp_path: Path) -> None:
    repository(tmp_path, 12)
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    opened = json.loads(done.stdout.splitlines()[-1])
    assert {"base.yaml", "cpu-cluster.yaml", "gpu-cluster.yaml", "3.yaml", "4.yaml"} <= opened.keys()
    assert set(opened.values()) == {1}
