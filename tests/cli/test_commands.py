"""The verbs: exit codes, output streams, the documents that they find, and the modules that they import."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from headway.cli.main import VERBS, main
from headway.cli.terminal import has_colour
from headway.jobspec.load import load_bytes
from headway.jobspec.plan import JobPlan
from headway.jobspec.problem import Problem, show
from headway.templates.schedulers import SCHEDULERS
from headway.templates.switches import SWITCHES
from tests.templates.test_slurm import CLUSTER, JOB

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a git repository with a cluster at its root and a job in a folder below."""
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "jobs" / "deep").mkdir(parents=True)
    (tmp_path / "repo" / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "repo" / "jobs" / "deep" / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path / "repo")
    return tmp_path / "repo"


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_cluster_is_found_up_to_the_root_of_the_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "jobs/deep/job.yaml"]) == 0
    (repository / "cluster.yaml").rename(repository.parent / "cluster.yaml")
    assert main(["check", "jobs/deep/job.yaml"]) == 1
    assert "error[HW401]" in capsys.readouterr().out


def test_cluster_in_a_folder_next_to_the_job_is_found(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "clusters" / "slurm").mkdir(parents=True)
    (repository / "cluster.yaml").rename(repository / "clusters" / "slurm" / "lab.yaml")
    assert main(["check", "jobs/deep/job.yaml"]) == 0
    (repository / "clusters" / "other.yaml").write_text(CLUSTER)
    assert main(["check", "jobs/deep/job.yaml"]) == 1
    assert "error[HW402]: several Cluster documents" in capsys.readouterr().out


def test_nearest_cluster_of_a_name_is_used(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "jobs" / "near.yaml").write_text(CLUSTER.replace("count: 2", "count: 1"))
    assert main(["check", "jobs/deep/job.yaml"]) == 1
    assert "has 1" in capsys.readouterr().out


def test_only_the_folder_of_the_job_is_searched_without_a_repository(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / ".git").rmdir()
    assert main(["check", "jobs/deep/job.yaml"]) == 1
    capsys.readouterr()
    (repository / "cluster.yaml").rename(repository / "jobs" / "deep" / "cluster.yaml")
    assert main(["check", "jobs/deep/job.yaml"]) == 0


def test_unreadable_cluster_is_reported_by_name(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "cluster.yaml").write_text(CLUSTER + "  - [\n")
    assert main(["plan", "jobs/deep/job.yaml"]) == 1
    found = capsys.readouterr()
    assert "error[HW105]" in found.err
    assert "HW401" not in found.err
    assert found.out == ""


def test_check_of_a_folder_reads_only_headway_documents(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "other.yaml").write_text("apiVersion: apps/v1\nkind: Deployment\n")
    (repository / "list.yaml").write_text("- a\n")
    (repository / ".github").mkdir()
    (repository / ".github" / "cluster.yaml").write_text(CLUSTER)
    assert main(["check", "."]) == 0
    assert capsys.readouterr().out == "2 documents: no problems; 2 YAML files passed over: list.yaml, other.yaml\n"


def test_check_of_a_file_accepts_any_name(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "other.yaml").write_text("apiVersion: apps/v1\nkind: Deployment\n")
    assert main(["check", "other.yaml", "absent.yaml"]) == 2
    out = capsys.readouterr().out
    assert "error[HW206]: unknown apiVersion `apps/v1`" in out
    assert "error[HW101]: cannot read the file: No such file or directory\n  --> absent.yaml\n" in out
    assert out.endswith("2 documents: 3 errors\n")


def test_output_has_color_only_on_request(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "cluster.yaml").write_text(CLUSTER.replace("count: 2", "count: two"))
    assert main(["check", "cluster.yaml"]) == 1
    plain = capsys.readouterr().out
    assert main(["check", "cluster.yaml", "--color", "always"]) == 1
    coloured = capsys.readouterr().out
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert all(f"\x1b[{part}\x1b[0m" in coloured for part in ("1;31merror[HW203]", "1;34m-->", "1;31m^^^", "1;36mhint"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("when", "environment", "on_terminal", "in_a_pipe"),
    [
        ("auto", {}, True, False),
        ("auto", {"TERM": "dumb"}, False, False),
        ("auto", {"NO_COLOR": "1"}, False, False),
        ("auto", {"NO_COLOR": ""}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, True, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ("always", {"NO_COLOR": "1"}, True, True),
        ("never", {"FORCE_COLOR": "1"}, False, False),
    ],
)
def test_color_follows_the_option_then_the_variables_then_the_terminal(
    when: str, environment: dict[str, str], on_terminal: bool, in_a_pipe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (has_colour(Terminal(), when), has_colour(io.StringIO(), when)) == (on_terminal, in_a_pipe)


def test_text_is_wrapped_on_a_terminal_but_not_in_a_pipe(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "cluster.yaml").write_text(CLUSTER.replace("count: 2", "count: two"))
    assert main(["check", "cluster.yaml"]) == 1
    whole = capsys.readouterr().out
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["check", "cluster.yaml"]) == 1
    assert max(map(len, terminal.getvalue().splitlines())) <= 50 < max(map(len, whole.splitlines()))
    assert " ".join(terminal.getvalue().split()).startswith(" ".join(whole.split())[:60])


def test_document_is_read_from_stdin_instead_of_a_file(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = (repository / "jobs" / "deep" / "job.yaml").read_text()

    def piped(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    piped(job)
    assert main(["check", "-", "--stdin-filename", "jobs/deep/edited.yaml"]) == 0
    assert capsys.readouterr().out == "1 document: no problems\n"
    piped(job.replace("nodes:", "noeds:"))
    assert main(["check", "-"]) == 1
    assert "\n  --> <stdin>:" in capsys.readouterr().out
    piped(job)
    assert main(["plan", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "case"


def test_carets_align_with_wide_characters() -> None:
    document, _ = load_bytes("a.yaml", "名前: é東京x\n".encode())
    problem = Problem("HW205", "a.yaml", ("名前",), "m")
    assert show(problem, document).splitlines()[2:] == [" 1 | 名前: é東京x", "   |       ^^^^^^"]


def test_render_writes_next_to_the_job_and_check_finds_any_drift(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = repository / "jobs" / "deep" / "rendered" / "case" / "lab"
    assert main(["render", "."]) == 0
    assert files(tree) == {"plan.json", "slurm/job.sbatch"}
    capsys.readouterr()
    assert main(["render", ".", "--check"]) == 0
    assert capsys.readouterr().out == ""
    (tree / "slurm" / "job.sbatch").unlink()
    (tree / "local").mkdir()
    (tree / "local" / "run.sh").write_text("")
    (tree / "NOTES").write_text("somebody's own\n")
    (tree / "plan.json").write_text((tree / "plan.json").read_text() + "\n")
    (tree / "nccl.env").write_text("# of an earlier headway\n")
    before = files(repository)
    assert main(["render", ".", "--check"]) == 1
    base = "jobs/deep/rendered/case/lab"
    assert capsys.readouterr().out == "".join(
        f"{mark} {base}/{file}\n"
        for mark, file in (("-", "local/run.sh"), ("-", "nccl.env"), ("~", "plan.json"), ("+", "slurm/job.sbatch"))
    )
    assert files(repository) == before
    assert main(["render", "."]) == 0
    assert main(["render", ".", "--check"]) == 0
    assert files(tree) == {"plan.json", "slurm/job.sbatch", "NOTES"}


def test_nothing_is_written_if_one_document_has_an_error(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "bad.yaml").write_text(JOB.replace("name: case", "name: bad").replace("steps: 100", "steps: many"))
    before = files(repository)
    assert main(["render", "."]) == 1
    assert files(repository) == before
    assert "error[HW203]" in capsys.readouterr().err


def test_jobs_of_one_name_in_one_folder_are_reported_before_rendering(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = (path for path in repository.rglob("*.yaml") if path.read_text() == JOB)
    (first.parent / "zebra.yaml").write_text(JOB)
    assert main(["check", "."]) == 1
    found = capsys.readouterr().out
    assert f"error[HW405]: the job of `{first.relative_to(repository)}` is called `case` too" in found
    assert f"--> {(first.parent / 'zebra.yaml').relative_to(repository)}:3:7" in found
    (first.parent / "zebra.yaml").write_text(JOB.replace("name: case", "name: other"))
    assert main(["check", "."]) == 0


def test_jobs_of_one_name_do_not_overwrite_each_other(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "jobs" / "again.yaml").write_text(JOB)
    assert main(["render", ".", "-o", "out"]) == 1
    assert "error[HW405]: another job called `case` also renders into `case/lab`" in capsys.readouterr().err
    assert not (repository / "out").exists()
    assert main(["render", "."]) == 0


def test_warnings_do_not_prevent_rendering(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = repository / "jobs" / "deep" / "job.yaml"
    job.write_text(JOB.replace("every: 10 steps", "every: 1000 steps"))
    assert main(["check", "."]) == 0
    assert capsys.readouterr().out.endswith("2 documents: 1 warning\n")
    assert main(["plan", str(job), "--json"]) == 0
    found = capsys.readouterr()
    assert found.err.startswith("warning[HW701]")
    assert json.loads(found.out)["world_size"] == 4


def test_plan_json_includes_the_rendered_plan(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "jobs/deep/job.yaml", "--json"]) == 0
    text = capsys.readouterr().out
    assert msgspec.json.decode(text, type=JobPlan).name == "case"
    assert main(["render", ".", "-o", "out"]) == 0
    written = json.loads((repository / "out" / "case" / "lab" / "plan.json").read_text())
    assert written.items() < json.loads(text).items()
    assert {"run", "spec", "env"}.isdisjoint(written)


def test_plan_shows_ranks_variables_with_reasons_and_files(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "jobs/deep/job.yaml"]) == 0
    out = capsys.readouterr().out
    assert "4 ranks: 2 nodes x 2, gloo" in out
    assert "  OMP_NUM_THREADS=2\n      a node's cores (4) over its ranks (2)" in out
    assert "  case/lab/slurm/job.sbatch\n" in out
    assert "\x1b" not in out


def test_cluster_given_as_a_file_replaces_the_named_ones(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = repository.parent / "other.yaml"
    other.write_text(CLUSTER.replace("name: lab", "name: other").replace("procs: 2", "procs: 4"))
    assert main(["plan", "jobs/deep/job.yaml", "--json", "--cluster", str(other)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["cluster"], plan["world_size"]) == ("other", 8)
    assert main(["plan", "jobs/deep/job.yaml", "--cluster", "jobs/deep/job.yaml"]) == 1
    assert "error[HW211]: this is a TrainingJob; expected a Cluster" in capsys.readouterr().err
    assert main(["run", "cluster.yaml"]) == 1
    assert "error[HW211]: this is a Cluster; expected a TrainingJob" in capsys.readouterr().err


FABRIC = """
fabrics:
  - {name: rails, role: scale-out, transport: roce, classes: [{name: roce, carries: collectives, dscp: 26, lossless: true}]}
"""


def with_adapters(name: str) -> str:
    """Return the cluster with a fabric to which its nodes are connected, so that files are rendered for it."""
    return CLUSTER.replace("name: lab", f"name: {name}").replace("procs: 2", "procs: 2, nics: [mlx5_0]") + FABRIC


def test_rendering_a_folder_includes_jobs_and_clusters_with_files(repository: Path) -> None:
    (repository / "roce.yaml").write_text(with_adapters("roce"))
    assert main(["render", "."]) == 0
    assert {path.split("/")[0] for path in files(repository / "rendered")} == {"roce"}
    assert "roce/hosts/cpu-2/usr/local/sbin/headway-qos" in files(repository / "rendered")
    assert "case/lab/slurm/job.sbatch" in files(repository / "jobs" / "deep" / "rendered")
    assert main(["render", ".", "--check"]) == 0


def test_files_of_a_renamed_cluster_are_removed(repository: Path) -> None:
    (repository / "roce.yaml").write_text(with_adapters("roce"))
    assert main(["render", "."]) == 0
    (repository / "roce.yaml").write_text(with_adapters("rails"))
    assert main(["render", ".", "--check"]) == 1
    assert main(["render", "."]) == 0
    assert {path.split("/")[0] for path in files(repository / "rendered")} == {"rails"}


def test_cluster_does_not_overwrite_the_tree_of_a_job_of_its_name(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "case.yaml").write_text(with_adapters("case"))
    assert main(["render", "jobs", "-o", "out"]) == 0
    before = files(repository / "out")
    assert main(["render", "case.yaml", "-o", "out"]) == 1
    assert "error[HW405]: `case` holds the files of a job of that name, for lab" in capsys.readouterr().err
    assert main(["render", ".", "-o", "out"]) == 1
    assert "error[HW405]: a job and a cluster are both called `case`" in capsys.readouterr().err
    assert files(repository / "out") == before


def test_plan_of_a_cluster_shows_classes_and_switches(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = str(EXAMPLES / "two-node-roce" / "slurm-cluster.yaml")
    assert main(["plan", cluster]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    classes = [line[:8] for line in words if line[:1] in (["roce"], ["cnp"])]
    assert classes == [["roce", "collectives", "26", "3", "3", "3", "3", "yes"], ["cnp", "cnp", "48", "6", "6", "6", "0", "-"]]
    assert ["rails-leaf-2", "4200000002", "10.255.128.2", "2", "2", "400"] in words
    assert main(["plan", cluster, "--json"]) == 0
    committed = EXAMPLES / "two-node-roce" / "rendered" / "two-roce-nodes" / "plan.json"
    assert capsys.readouterr().out == committed.read_text()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, ""),
        (["chekc"], 2, "did you mean `check`?"),
        (["check"], 2, "required: PATH"),
        (["check", "empty"], 2, "no headway documents below empty"),
        (["render", "empty"], 2, "no headway documents below empty"),
        (["plan", "a", "b"], 2, "unrecognized arguments: b"),
        (["render", "a", "--out", "x"], 2, "unrecognized arguments: --out x; did you mean `--output`?"),
        (["plan", "a", "--serach"], 2, "unrecognized arguments: --serach; did you mean `--search`?"),
    ],
)
def test_wrong_usage_exits_2_and_prints_the_reason_to_stderr(
    words: list[str], code: int, message: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "empty").mkdir()
    try:
        found = main(words)
    except SystemExit as exit_:
        found = int(str(exit_.code))
    assert found == code
    assert message in capsys.readouterr().err


def ended(words: list[str]) -> int:
    """Return the exit code, from `main` or from argparse's SystemExit."""
    try:
        return main(words)
    except SystemExit as left:
        return int(left.code or 0)


# The help of torchrun imports torch.
SLOW_HELP = pytest.param("torchrun", marks=pytest.mark.slow)


@pytest.mark.parametrize("verb", [*sorted(set(VERBS) - {"torchrun"}), SLOW_HELP])
def test_every_verb_of_the_table_has_help(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert ended([verb, "--help"]) == 0
    assert capfd.readouterr().out.startswith(f"usage: headway {verb}")
    assert main(["--help"]) == 0
    assert f"  {verb} " in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "absent"), [(["check", "."], {"torch", "numpy", "jinja2", "rich"}), (["render", "."], {"torch", "numpy"})]
)
def test_verbs_import_only_the_modules_that_they_need(words: list[str], absent: set[str], repository: Path) -> None:
    program = f"""
import sys
from headway.cli.main import main
code = main({words})
print(sorted({absent} & set(sys.modules)))
sys.exit(code)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=repository)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_closed_pipe_prints_no_error(repository: Path) -> None:
    command = f"set -o pipefail; '{sys.executable}' -m headway.cli.main plan jobs/deep/job.yaml --json | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd=repository)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("text", ["kind: TrainingJob\nname: a\n", "apiversion: headway/v1alpha1\nkind: TrainingJob\n"])
def test_document_without_a_version_in_a_folder_is_an_error(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "deployment.yaml").write_text("apiVersion: apps/v1\nkind: Deployment\n")
    (tmp_path / "values.yaml").write_text("replicas: 2\n")
    assert main(["check", str(tmp_path)]) == 1
    assert "1 document: " in capsys.readouterr().out


def test_tree_without_a_document_is_drift_and_is_removed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(repository)]) == 0
    stale = next(repository.rglob("plan.json")).parent
    (repository / "jobs" / "deep" / "job.yaml").write_text(JOB.replace("name: case", "name: renamed"))
    assert main(["render", "--check", str(repository)]) == 1
    assert f"- {stale / 'plan.json'}" in capsys.readouterr().out
    assert main(["render", str(repository)]) == 0
    assert not stale.parent.exists()
    assert (stale.parent.parent / "renamed" / stale.name / "plan.json").is_file()
    assert main(["render", "--check", str(repository)]) == 0


def contents(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in files(root)}


@pytest.mark.parametrize("story", ["quickstart", "two-node-roce", "two-node-slurm"])
def test_rendering_renamed_documents_removes_all_old_trees(story: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / story, tmp_path / story)
    for document in (tmp_path / story).glob("*.yaml"):
        document.write_text(re.sub(r"^(name|cluster): (\S+)$", r"\1: new-\2", document.read_text(), flags=re.MULTILINE))
        document.write_text(
            re.sub(r"^cluster: \[(\S+), (\S+)\]$", r"cluster: [new-\1, new-\2]", document.read_text(), flags=re.M)
        )
    assert main(["render", str(tmp_path)]) == 0
    assert {path.name[:4] for path in (tmp_path / story / "rendered").iterdir()} == {"new-"}


def test_examples_cover_every_scheduler_and_every_switch_os() -> None:
    names = {path.parent.name for path in EXAMPLES.rglob("*")} | {path.name for path in EXAMPLES.rglob("*")}
    assert names >= {*SCHEDULERS, *(kind.file for kind in SWITCHES.values())}


def test_hidden_folders_and_trees_without_a_document_are_not_changed(repository: Path) -> None:
    shutil.copytree(EXAMPLES / "two-node-roce", repository / ".worktrees" / "feature")
    shutil.copytree(EXAMPLES / "two-node-roce" / "rendered", repository / "archive" / "rendered")
    before = contents(repository)
    assert main(["render", ".", "--check"]) == 1
    assert main(["render", "."]) == 0
    assert before.items() < contents(repository).items()
    assert main(["render", ".", "--check"]) == 0


@pytest.mark.parametrize(
    "plan",
    [
        '{"name": "prod", "cluster": "eu", "format_version": "1.2"}',
        '{"name": "prod", "cluster": "eu", "schema": "other.job-plan/1"}',
        '{"name": "case", "cluster": "eu", "schema": "headway.job-plan/1"}',
        '{"name": "prod", "cluster": "lab", "schema": "headway.job-plan/1"}',
        '{"name": "prod", "schema": "headway.cluster-plan/2"}',
        '["headway.job-plan/1"]',
        "{",
        "",
    ],
)
def test_folder_with_a_foreign_plan_is_not_changed(plan: str, repository: Path) -> None:
    folder = repository / "jobs" / "deep" / "rendered" / "prod" / "eu"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(plan)
    (folder / "run.json").write_text("{}")
    assert main(["render", "."]) == 0
    assert contents(folder) == {"plan.json": plan.encode(), "run.json": b"{}"}
    assert main(["render", ".", "--check"]) == 0


def test_only_rendered_files_of_a_stale_tree_are_removed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "roce.yaml").write_text(with_adapters("roce"))
    assert main(["render", "."]) == 0
    own = ["case/lab/notes.md", "case/lab/slurm/slurm-1.out", "case/lab/slurm/old/job.sbatch"]
    kept = [repository / "jobs" / "deep" / "rendered" / name for name in own]
    kept += [repository / "rendered" / "roce" / name for name in ("terraform.tfstate", "hosts/cpu-1/etc/hosts", "run.json")]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("own\n")
    (repository / "roce.yaml").write_text(with_adapters("rails"))
    (repository / "jobs" / "deep" / "job.yaml").write_text(JOB.replace("name: case", "name: new"))
    capsys.readouterr()
    assert main(["render", "."]) == 0
    assert "- jobs/deep/rendered/case/lab/slurm/job.sbatch\n" in capsys.readouterr().out
    left = [path for path in repository.rglob("*") if path.is_file() and {"case", "roce"} & set(path.parts)]
    assert sorted(left) == sorted(kept)
    assert main(["render", ".", "--check"]) == 0


@pytest.mark.parametrize("name", ["roce.txt", "roce.json"])
def test_tree_of_an_unsearched_document_is_kept_while_the_document_exists(name: str, repository: Path) -> None:
    text = with_adapters("roce")
    (repository / name).write_text(json.dumps(yaml.safe_load(text)) if name.endswith("json") else text)
    assert main(["render", name]) == 0
    before = contents(repository / "rendered" / "roce")
    assert len(before) == 5
    assert main(["render", "."]) == 0
    assert contents(repository / "rendered" / "roce") == before
    (repository / name).unlink()
    assert main(["render", "."]) == 0
    assert not (repository / "rendered" / "roce").exists()


def test_linked_folder_keeps_files_that_no_document_here_renders(repository: Path) -> None:
    shutil.copytree(EXAMPLES / "two-node-roce" / "rendered", repository.parent / "shared")
    before = contents(repository.parent / "shared")
    (repository / "jobs" / "deep" / "rendered").symlink_to(repository.parent / "shared")
    assert main(["render", "."]) == 0
    assert before.items() < contents(repository.parent / "shared").items()


def test_document_given_by_several_paths_is_rendered_once(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "jobs" / "deep" / "again.yaml").symlink_to("job.yaml")
    paths = ["jobs", "jobs/deep", str(repository / "jobs"), "jobs/deep/job.yaml", "jobs/../jobs/deep/again.yaml"]
    assert main(["render", *paths]) == 0
    assert capsys.readouterr().err == "2 files rendered, 2 written or removed\n"
    assert main(["render", "--check", *paths]) == 0
    assert main(["render", "-o", "out", *paths]) == 0


def test_linked_document_is_rendered_next_to_its_link(repository: Path) -> None:
    (repository / "job.yaml").symlink_to("jobs/deep/job.yaml")
    assert main(["render", "."]) == 0
    assert files(repository / "rendered") == files(repository / "jobs" / "deep" / "rendered")


def test_one_folder_given_by_two_paths_has_the_trees_of_both(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "jobs" / "deep" / "other.txt").write_text(JOB.replace("name: case", "name: other"))
    (repository / "jobs" / "deep" / "again.txt").write_text(JOB)
    paths = ["jobs", str(repository / "jobs" / "deep" / "other.txt")]
    assert main(["render", *paths]) == 0
    assert {path.name for path in (repository / "jobs" / "deep" / "rendered").iterdir()} == {"case", "other"}
    assert main(["render", "--check", *paths]) == 0
    assert main(["render", "jobs", str(repository / "jobs" / "deep" / "again.txt")]) == 1
    assert "error[HW405]: another job called `case` also renders into `case/lab`" in capsys.readouterr().err


@pytest.mark.parametrize("cluster", ["hosts", "switches", "lab"])
def test_job_does_not_overwrite_the_tree_of_a_cluster_of_its_name(
    cluster: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "big.yaml").write_text(with_adapters("big"))
    assert main(["render", "big.yaml"]) == 0
    (repository / "lab.yaml").write_text(CLUSTER.replace("name: lab", f"name: {cluster}"))
    (repository / "cluster.yaml").unlink()
    (repository / "job.yaml").write_text(JOB.replace("name: case", "name: big").replace("cluster: lab", f"cluster: {cluster}"))
    before = contents(repository)
    for words in (["render", "job.yaml"], ["render", "job.yaml", "--check"]):
        assert main(words) == 1
        err = capsys.readouterr().err
        assert "error[HW405]: `big` holds the files of a cluster of that name" in err
        assert err.count("error[") == 1
    assert contents(repository) == before


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("rendered", "dangling"),
        ("rendered", "file"),
        *(
            (place, what)
            for place in ("rendered/case", "rendered/case/lab", "rendered/roce")
            for what in ("link", "dangling", "file")
        ),
    ],
)
def test_link_or_file_at_the_path_of_a_tree_is_rejected(
    place: str, what: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = repository.parent / "target"
    shutil.copytree(EXAMPLES / "two-node-roce" / "rendered" / "two-roce-pods", target / "lab")
    shutil.copy(target / "lab" / "plan.json", target / "plan.json")
    (repository / "jobs" / "deep" / "job.yaml").rename(repository / "job.yaml")
    (repository / "roce.yaml").write_text(with_adapters("roce"))
    obstacle = repository / place
    obstacle.parent.mkdir(parents=True, exist_ok=True)
    if what == "file":
        obstacle.write_text("own\n")
    else:
        obstacle.symlink_to(target if what == "link" else "nowhere")
    documents = ["roce.yaml"] if place == "rendered/roce" else ["job.yaml"]
    before = contents(repository.parent)
    for words in (["render", *documents], ["render", "--check", *documents], ["render", "."]):
        assert main(words) == 1
        found = capsys.readouterr()
        kind = "a file" if what == "file" else "a symbolic link"
        assert f"error[HW405]: `{place}` is {kind}, where the rendered files belong" in found.err
        assert (found.out, "Traceback" in found.err) == ("", False)
        assert contents(repository.parent) == before


def test_output_folder_below_a_file_is_rejected(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "out").write_text("own\n")
    assert main(["render", ".", "-o", "out/below"]) == 1
    assert "error[HW405]: `out` is a file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["thesis.txt", "run.json", "plan.json", "slurm/mine"])
def test_foreign_folder_does_not_become_a_tree(name: str, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = repository / "case" / "lab" / name
    own.parent.mkdir(parents=True)
    own.write_text("{}")
    for words in (["render", "jobs", "-o", "."], ["render", "jobs", "-o", ".", "--check"]):
        assert main(words) == 1
        err = capsys.readouterr().err
        assert f"error[HW405]: `case/lab/{name}` may not be headway's" in err
        assert err.count("error[") == 1
    assert contents(repository / "case") == {f"lab/{name}": b"{}"}


@pytest.mark.parametrize("edit", ["removed", "conflict"])
def test_missing_or_conflicting_plan_is_rendered_again(edit: str, repository: Path) -> None:
    assert main(["render", "."]) == 0
    plan = repository / "jobs" / "deep" / "rendered" / "case" / "lab" / "plan.json"
    if edit == "removed":
        plan.unlink()
    else:
        plan.write_text(f"<<<<<<< HEAD\n=======\n>>>>>>> other\n{plan.read_text()}")
        (plan.parent / "run.json").write_text("<<<<<<< HEAD\n")
    assert main(["render", "."]) == 0
    assert main(["render", ".", "--check"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("output", ["text", "github"])
def test_unencodable_character_is_escaped(tmp_path: Path, output: str) -> None:
    document = tmp_path / "job.yaml"
    document.write_text('apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: "Übung"\nnodse: 2\n')
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "headway.cli.main", "check", "--format", output, str(document)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert rb"\xdcbung" in done.stdout
    assert b"nodse" in done.stdout, "the problems after it too"
