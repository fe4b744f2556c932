"""Another program uses `headway.compile`: documents in, plans and problems out."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.compile import PlannedCluster, Sources, compile_documents

STORY = Path(__file__).parents[2] / "examples" / "two-node-slurm"
CLUSTERS = ["cpu-cluster.yaml", "gpu-cluster.yaml"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a job and its two clusters."""
    for file in STORY.glob("*.yaml"):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_job_is_planned_on_each_of_its_clusters(folder: Path) -> None:
    compiled = compile_documents([folder / "job.yaml"])
    assert compiled.problems.errors == 0
    assert len(compiled.jobs) == 2
    assert compiled.clusters == ()
    assert {path.parts[1] for job in compiled.jobs for path in job.files()} == {job.plan.cluster for job in compiled.jobs}
    assert compile_documents([folder / "job.yaml"], first_only=True).jobs == compiled.jobs[:1]


def test_given_cluster_replaces_the_clusters_of_the_job(folder: Path) -> None:
    both = compile_documents([folder / "job.yaml"]).jobs
    for file in CLUSTERS:
        (job,) = compile_documents([folder / "job.yaml"], folder / file).jobs
        assert job in both


def test_plans_are_in_the_order_of_the_files(folder: Path) -> None:
    files = [folder / CLUSTERS[0], folder / "job.yaml", folder / CLUSTERS[1]]
    compiled = compile_documents(files)
    assert [document.document.name for document in compiled.documents] == list(map(str, files))
    assert [isinstance(plan, PlannedCluster) for plan in compiled.plans] == [True, False, False, True]


def test_document_with_an_error_has_no_plan(folder: Path) -> None:
    text = (folder / "job.yaml").read_text()
    (folder / "job.yaml").write_text(text.replace("\nnodes:", "\nnods:"))
    compiled = compile_documents([folder / "job.yaml"])
    assert compiled.plans == ()
    assert {problem.code for problem in compiled.problems} == {"HW201"}
    assert all(problem.document == str(folder / "job.yaml") for problem in compiled.problems)


def test_file_of_another_kind_is_an_error_if_kinds_are_given(folder: Path) -> None:
    (found,) = compile_documents([folder / CLUSTERS[0]], kinds=("TrainingJob",)).problems
    assert (found.code, found.message) == ("HW211", "this is a Cluster; expected a TrainingJob")


def test_missing_file_is_a_problem(tmp_path: Path) -> None:
    compiled = compile_documents([tmp_path / "absent.yaml"])
    assert compiled.documents == ()
    assert [problem.code for problem in compiled.problems] == ["HW101"]


def test_compiling_again_with_the_same_sources_gives_the_same_result(folder: Path) -> None:
    sources, files = Sources(), sorted(folder.glob("*.yaml"))
    first = compile_documents(files, sources=sources)
    problems = list(first.problems)
    assert compile_documents(files, sources=sources) == first
    (job,) = compile_documents([folder / "job.yaml"], folder / CLUSTERS[0], sources=sources).jobs
    assert job in first.jobs
    assert list(first.problems) == problems


def test_adding_problems_does_not_change_the_first_ones(folder: Path) -> None:
    good = compile_documents([folder / "job.yaml"]).problems
    bad = compile_documents([folder / CLUSTERS[0]], kinds=("TrainingJob",)).problems
    both = good.plus(bad, bad.documents)
    assert (good.errors, bad.errors, both.errors) == (0, 1, 1)
    assert both.plus(bad).errors == 1


@pytest.mark.slow
def test_compiling_prints_nothing_and_imports_no_large_library(folder: Path) -> None:
    program = (
        "import json, sys\nfrom pathlib import Path\nfrom headway.compile import compile_documents\n"
        "compile_documents(map(Path, sys.argv[1:]))\nprint(json.dumps(sorted(sys.modules)))"
    )
    command = [sys.executable, "-c", program, *map(str, folder.glob("*.yaml"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert modules & {"jinja2", "numpy", "paramiko", "pulumi", "rich", "torch"} == set()
    assert done.stderr == ""


def test_incomplete_base_is_one_problem(folder: Path) -> None:
    job = folder / "job.yaml"
    (folder / "base.yaml").write_text("apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: base\nenvironment: {A: b}\n")
    job.write_text(f"{job.read_text()}extends: base.yaml\n")
    (found,) = compile_documents([folder / "base.yaml", job]).problems
    assert (found.code, found.document) == ("HW202", str(folder / "base.yaml"))
    assert "extends this document, which is incomplete by itself" in found.message
    assert (found.hint or "").startswith("write `partial: true` in it")


def test_document_that_has_the_name_of_a_cluster_and_is_none_is_explained(folder: Path) -> None:
    base = folder / CLUSTERS[0]
    text = base.read_text()
    base.write_text(text + "partial: true\n")
    (found,) = compile_documents([folder / "job.yaml"]).problems
    assert (found.code, found.path) == ("HW401", ("cluster", 0))
    assert found.message == f"`two-cpu-nodes` in {base} is `partial`: a base for other documents, on which no job is planned"
    # A document that can be read under the cluster's name, and means to be one.
    base.write_text(text.replace("kind: Cluster", "kind: Clustr"))
    found, *_ = compile_documents([folder / "job.yaml"]).problems
    assert (found.document, found.fix) == (str(base), "Cluster")


def test_inventory_of_two_clusters_of_one_name_is_an_error(folder: Path) -> None:
    text = (folder / CLUSTERS[0]).read_text()
    (folder / "twin.yaml").write_text(text)
    (name,) = {line.partition(": ")[2] for line in text.splitlines() if line.startswith("name: ")}
    inventory = folder / "unit.yaml"
    inventory.write_text(f"apiVersion: headway/v1alpha1\nkind: Inventory\nname: unit\ncluster: {name}\n")
    (found,) = compile_documents([inventory], of_inventories=True).problems
    assert (found.code, found.hint) == ("HW402", "rename all but one")


def test_clusters_without_the_name_in_their_text_are_not_parsed(folder: Path) -> None:
    job, (cluster, other) = folder / "job.yaml", [folder / name for name in CLUSTERS]
    (folder / "cpu-cluster-with-a-spare.yaml").unlink()
    job.write_text(job.read_text().replace("cluster: [two-cpu-nodes, two-h100-nodes]", "cluster: two-cpu-nodes"))
    for index in range(20):
        (folder / f"{index}.yaml").write_text(other.read_text().replace("name: two-h100-nodes", f"name: other-{index}"))
    compiled = compile_documents([job])
    assert compiled.problems.errors == 0
    assert set(compiled.problems.documents) == {str(job), str(cluster)}


@pytest.mark.parametrize("name", ["two-cpu\\x2dnodes", "two-\\\n  cpu-nodes"])
def test_cluster_is_found_whose_name_is_written_with_escapes(name: str, folder: Path) -> None:
    cluster = folder / CLUSTERS[0]
    cluster.write_text(cluster.read_text().replace("name: two-cpu-nodes", f'name: "{name}"'))
    assert "two-cpu-nodes" in {job.plan.cluster for job in compile_documents([folder / "job.yaml"]).jobs}
