"""A job in its short form: `run` instead of a trainer, and this machine without a Cluster document."""

from pathlib import Path

import pytest

from headway.cli.main import main
from headway.compile import compile_documents
from headway.jobspec.problem import Problem

HEAD = "apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: case\ncluster: local\n"


def written(folder: Path, **files: str) -> Path:
    (folder / "train.py").touch()
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(HEAD + text)
    return folder / f"{next(reversed(files))}.yaml"


def argv(job: Path) -> list[str]:
    (plan,) = compile_documents([job]).jobs
    assert plan.plan.spec["trainer"]["kind"] == "script"
    assert "run" not in plan.plan.spec
    found: list[str] = plan.plan.spec["trainer"]["options"]["argv"]
    return found


def problems(job: Path) -> list[Problem]:
    return list(compile_documents([job]).problems)


def test_job_of_five_lines_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = written(tmp_path, job="run: [train.py, --seed=1]\n")
    assert argv(job) == ["train.py", "--seed=1"]
    assert main(["render", str(job)]) == 0
    assert (tmp_path / "rendered" / "case" / "local" / "plan.json").is_file()


def test_short_and_long_form_have_the_same_plan(tmp_path: Path) -> None:
    short = written(tmp_path, job="run: [train.py]\n")
    (plan,) = compile_documents([short]).jobs
    long = written(tmp_path, job="trainer: {kind: script, options: {argv: [train.py]}}\n")
    assert compile_documents([long]).jobs[0].plan == plan.plan


def test_mistake_is_reported_in_the_field_run(tmp_path: Path) -> None:
    (problem,) = problems(written(tmp_path, job='run: [train.py, "--tp={layout.tpp}"]\n'))
    assert (problem.code, problem.fix) == ("HW312", '"--tp={layout.tp}"')
    (document,) = (each for each in compile_documents([tmp_path / "job.yaml"]).documents)
    span = document.document.span(problem.path)
    assert span is not None
    assert document.document.lines()[span.line][span.column : span.end_column] == '"--tp={layout.tpp}"'


@pytest.mark.parametrize("text", ["run: train.py --x\n", "run: [train.py, 3]\n", "run: []\n"])
def test_a_run_of_the_wrong_form_is_one_problem(tmp_path: Path, text: str) -> None:
    (problem,) = problems(written(tmp_path, job=text))
    assert problem.path[:1] == ("run",)


def test_text_instead_of_a_list_gets_its_words_as_fix(tmp_path: Path) -> None:
    (problem,) = problems(written(tmp_path, job="run: train.py --x\n"))
    assert problem.fix == "[train.py, --x]"


def test_run_and_trainer_exclude_each_other_in_one_document(tmp_path: Path) -> None:
    (problem,) = problems(written(tmp_path, job="run: [train.py]\ntrainer: {kind: script, options: {argv: [train.py]}}\n"))
    assert (problem.code, problem.path) == ("HW210", ("run",))


@pytest.mark.parametrize(
    ("base", "heir", "expected"),
    [
        ("run: [a.py]\n", "", ["a.py"]),
        ("run: [a.py]\n", "run: [b.py]\n", ["b.py"]),
        ("run: [a.py]\n", "trainer: {kind: script, options: {argv: [b.py]}}\n", ["b.py"]),
        ("trainer: {kind: script, options: {argv: [a.py], module: false}}\n", "run: [b.py]\n", ["b.py"]),
    ],
)
def test_run_of_an_heir_overrides_that_of_its_base(tmp_path: Path, base: str, heir: str, expected: list[str]) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    job = written(tmp_path, base=f"partial: true\n{base}", job=f"extends: base.yaml\n{heir}")
    assert argv(job) == expected


def test_job_that_runs_nothing_is_rejected(tmp_path: Path) -> None:
    (problem,) = problems(written(tmp_path, job="steps: 3\n"))
    assert (problem.code, problem.hint) == (
        "HW202",
        "write `run: [train.py]` for a training script; for the builtin trainer, what it reads: `data: {kind: python-stdlib}`",
    )


def test_cluster_of_the_repository_overrides_the_builtin_one(tmp_path: Path) -> None:
    job = written(tmp_path, job="run: [train.py]\n")
    text = "apiVersion: headway/v1alpha1\nkind: Cluster\nname: local\nscheduler: {kind: local}\n"
    text += "node_groups: [{name: two, count: 1, cpus: 2, procs: 2}]\nstorage: [{name: runs, kind: posix, path: runs, shared: true}]\n"
    (tmp_path / "here.yaml").write_text(text)
    assert compile_documents([job]).jobs[0].plan.world_size == 2
