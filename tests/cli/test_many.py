"""Many documents in one call: each file is read once, whatever number of jobs and clusters want it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headway.compile import Sources

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


FOREIGN = {
    "manifest.yaml": "apiVersion: v1\nkind: ConfigMap\ndata:\n  job.yaml: |\n    apiVersion: headway/v1alpha1\n    kind: TrainingJob\n",
    "manifest.json.yaml": '{"apiVersion": "v1", "kind": "Cluster", "metadata": {"name": "x"}}',
    "bom.yaml": "\ufeffapiVersion: v1\nkind: Cluster\n",
    "list.yaml": "- headway\n",
}
OURS = {
    "braces.yaml": '# written by a tool\n\n{"kind": "TrainingJob",\n "apiVersion": "headway/v1alpha1"}',
    "bom.yaml": "\ufeffkind: TrainingJob\napiVersion: headway/v1alpha1\n",
    "indented.yaml": '{\n  "apiVersion": "headway/v1alpha1"\n}',
    "heir.yaml": "extends: base.yaml\nname: no-header\n",
    "misspelt.yaml": "apiversion: headway/v1alpha1\n",
}


@pytest.mark.parametrize("name", OURS)
def test_a_document_is_found_in_its_folder_however_it_is_written(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(OURS[name])
    assert list(Sources().documents_below(tmp_path)) == [tmp_path / name]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_somebody_else_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FOREIGN[name])
    assert list(Sources().documents_below(tmp_path)) == []
