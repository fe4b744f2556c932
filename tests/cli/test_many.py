"""Many documents in one call: each file is read once, for any number of jobs and clusters that need it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.main import main
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
    """Write jobs of one folder on clusters in the folder above, all of them with one base."""
    (folder / ".git").mkdir()
    (folder / "jobs").mkdir()
    for cluster in STORY.glob("*cluster.yaml"):
        (folder / cluster.name).write_text(cluster.read_text())
    text = (STORY / "job.yaml").read_text()
    (folder / "base.yaml").write_text(text.replace("\nname:", "\npartial: true\nname:", 1))
    for index in range(jobs):
        document = f"apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: job-{index}\nextends: ../base.yaml\n"
        (folder / "jobs" / f"{index}.yaml").write_text(document)


@pytest.mark.slow
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
    "bom.yaml": "\ufeffapiVersion: cluster.x-k8s.io/v1beta1\nkind: Cluster\n",
    "empty.yaml": "",
    "lightning.yaml": "trainer: {max_steps: 10}\nmodel: {class_path: Net}\ndata: {batch_size: 2}\n",
    "config.json": '{"model_type": "llama"}',
    # A run records its spec like this (runner/rundir.py).
    "spec.json": '{"apiVersion": "headway/v1alpha1", "kind": "TrainingJob"}',
    "list.yaml": "- headway\n",
}
OURS = {
    "braces.yaml": '# written by a tool\n\n{"kind": "TrainingJob",\n "apiVersion": "headway/v1alpha1"}',
    "bom.yaml": "\ufeffkind: TrainingJob\napiVersion: headway/v1alpha1\n",
    "indented.yaml": '{\n  "apiVersion": "headway/v1alpha1"\n}',
    "heir.yaml": "extends: base.yaml\nname: no-header\n",
    "misspelt.yaml": "apiversion: headway/v1alpha1\n",
    "kubernetes.yaml": "apiVersion: v1\nkind: TrainingJob\n",
    "kind.yaml": "apiVersion: v1alpha1\nkind: TraningJob\n",
    "group.yaml": "apiVersion: headwy/v1alpha1\nkind: TrainingJob\n",
    "headless-job.yaml": "name: a\ncluster: iron\ntrainer: {kind: script}\n",
    "headless-cluster.yaml": "name: iron\nscheduler: {kind: slurm}\nnodes: []\nstorage: []\n",
    "capitals.YAML": "apiVersion: headway/v1alpha1\n",
}


@pytest.mark.parametrize("name", OURS)
def test_document_in_any_notation_is_found_in_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(OURS[name])
    assert Sources().below(tmp_path).documents == [tmp_path / name]


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_file_is_skipped(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FOREIGN[name])
    found = Sources().below(tmp_path)
    assert found.documents == []
    assert found.passed_over == ([tmp_path / name] if name.endswith(".yaml") else [])


def test_document_in_another_encoding_is_an_error_of_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(OURS["kubernetes.yaml"], encoding="utf-16")
    assert main(["check", str(tmp_path)]) == 1
    assert "the file is in UTF-16" in capsys.readouterr().out


def test_unreadable_file_is_an_error_of_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gone.yaml").symlink_to("absent.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.count("cannot read the file") == 2
    assert "2 documents: 2 errors" in out


def test_empty_file_is_an_error_next_to_documents_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "values").mkdir()
    (tmp_path / "values" / "none.yaml").touch()
    (tmp_path / "own.yaml").write_text(OURS["bom.yaml"])
    (tmp_path / "job.yaml").write_text("\n")
    (tmp_path / "notes.yaml").write_text("# none yet\n")
    assert main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.count("the document is empty") == 1
    assert f"--> {tmp_path / 'job.yaml'}" in out
    assert "none.yaml" in out.rpartition("passed over")[2]
    assert "notes.yaml" in out.rpartition("passed over")[2]


@pytest.mark.slow
def test_file_without_read_permission_is_an_error_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "own.yaml").write_text(OURS["bom.yaml"])
    (tmp_path / "own.yaml").chmod(0)
    (tmp_path / "jobs").chmod(0)
    # Root reads everything by two capabilities.
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    program = "import sys; from headway.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [*without, sys.executable, "-c", program, "check", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    (tmp_path / "jobs").chmod(0o755)
    assert done.returncode == 1, done.stderr
    assert f"error[HW101]: cannot read the folder: Permission denied\n  --> {tmp_path / 'jobs'}" in done.stdout
    assert "hint: check its permissions, or name the documents in it" in done.stdout
    assert "cannot read the file: Permission denied" in done.stdout


def test_skipped_files_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.yaml", "b.yml", "c.yaml", "d.yaml"):
        (tmp_path / name).write_text("- 1\n")
    assert main(["check", str(tmp_path)]) == 2
    assert (
        f"4 YAML files passed over: {tmp_path}/a.yaml, {tmp_path}/b.yml, {tmp_path}/c.yaml and 1 more" in capsys.readouterr().err
    )
    (tmp_path / "lab.yaml").write_text((STORY / "cpu-cluster.yaml").read_text())
    assert main(["check", str(tmp_path)]) == 0
    assert "1 document: no problems; 4 YAML files passed over: " in capsys.readouterr().out
    assert main(["check", str(tmp_path), "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["passed_over"]) == 4


def test_missing_path_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "absent.yaml")]) == 2
    assert "cannot read the file: No such file or directory" in capsys.readouterr().out


def test_strict_makes_a_warning_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(STORY.parents[1] / "tests" / "errors")
    assert main(["check", "no-scale-out.yaml"]) == 0
    assert main(["check", "no-scale-out.yaml", "--strict"]) == 1
    assert main(["check", "lab.yaml", "--strict"]) == 0
