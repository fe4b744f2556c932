"""A sweep: a run for each point, named after the point's values, as if each had a separate job document."""

from pathlib import Path

from headway.cli.main import main
from headway.compile import PlannedJob, compile_documents

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups: [{name: cpu, count: 4, cpus: 4, procs: 2}]
storage: [{name: runs, kind: posix, path: /runs, shared: true}]
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: NAME
cluster: lab
run: [train.py, "--lr={optimizer.lr}", "--seed={seed}"]
"""
SWEEP = "sweep: {grid: {optimizer.lr: [1.0e-4, 3e-4], seed: [1, 2]}, points: [{optimizer.lr: 1.5, seed: 3, nodes: {min: 1, max: 2}}]}\n"


def compiled(folder: Path, more: str, name: str = "case") -> tuple[PlannedJob, ...]:
    (folder / "lab.yaml").write_text(CLUSTER)
    (folder / "job.yaml").write_text(JOB.replace("NAME", name) + more)
    found = compile_documents([folder / "job.yaml"])
    assert found.problems.errors == 0
    return found.jobs


def test_each_point_is_a_run_with_its_values(tmp_path: Path) -> None:
    jobs = compiled(tmp_path, SWEEP)
    assert {job.plan.name: job.plan.run.trainer.options["argv"][1:] for job in jobs} == {
        "case-lr-0p0001-seed-1": ["--lr=0.0001", "--seed=1"],
        "case-lr-0p0001-seed-2": ["--lr=0.0001", "--seed=2"],
        "case-lr-0p0003-seed-1": ["--lr=0.0003", "--seed=1"],
        "case-lr-0p0003-seed-2": ["--lr=0.0003", "--seed=2"],
        # A mapping cannot be part of a name.
        "case-f097ae74": ["--lr=1.5", "--seed=3"],
    }
    assert jobs[-1].plan.node_range == "1-2"


def test_run_of_a_point_equals_that_of_a_job_with_its_values(tmp_path: Path) -> None:
    point = compiled(tmp_path, SWEEP)[1].plan
    alone = compiled(tmp_path, "optimizer: {lr: 1.0e-4}\nseed: 2\n", "case-lr-0p0001-seed-2")[0].plan
    assert point == alone


def test_name_of_a_point_stays_when_others_are_added(tmp_path: Path) -> None:
    first = {job.plan.run_stem for job in compiled(tmp_path, "sweep: {grid: {optimizer.lr: [1e-5], seed: [1]}}\n")}
    assert first < {
        job.plan.run_stem for job in compiled(tmp_path, "sweep: {grid: {optimizer.lr: [3e-5, 1e-5], seed: [2, 1]}}\n")
    }


def test_sweep_renders_a_tree_for_each_run(tmp_path: Path) -> None:
    compiled(tmp_path, SWEEP)
    assert main(["render", str(tmp_path / "job.yaml"), "-o", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out").glob("case-*/lab/slurm/job.sbatch"))) == 5
