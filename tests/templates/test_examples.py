"""The examples: each renders to exactly its committed tree, always the same, and all of its scripts pass their linters."""

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from headway.cli.main import main
from headway.compile import compile_documents
from headway.jobspec.plan import JobPlan, to_json
from headway.runner.contract import RunConfig, RunDirectory, from_json, with_shared
from headway.runner.rundir import open_submitted
from headway.templates.cluster import reader_of
from headway.templates.schedulers import SCHEDULERS

EXAMPLES = Path(__file__).parents[2] / "examples"
STORIES = sorted({path.parent.name for path in EXAMPLES.glob("*/*.yaml")})
COMMITTED = sorted(path for path in EXAMPLES.glob("*/rendered/**/*") if path.is_file())
SUBMITTED = [path for path in COMMITTED if path.parent.name in SCHEDULERS]
SCRIPTS = [path for path in COMMITTED if path.suffix in {".sh", ".sbatch"} or path.read_bytes().startswith(b"#!")]

# The hash of a spec or a cluster, and the part of one in a run's name.
_HASH = re.compile(r"\b[0-9a-f]{64}\b|(?<=-)[0-9a-f]{8}\b")

needs_shellcheck = pytest.mark.skipif(shutil.which("shellcheck") is None, reason="apt-get install shellcheck")


def named(path: Path) -> str:
    return path.relative_to(EXAMPLES).as_posix()


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("story", STORIES)
def test_story_renders_to_its_committed_tree(story: str, update_golden: bool, tmp_path: Path) -> None:
    committed = EXAMPLES / story / "rendered"
    assert main(["render", str(EXAMPLES / story), "-o", str(tmp_path)]) == 0
    if update_golden:
        shutil.rmtree(committed, ignore_errors=True)
        shutil.copytree(tmp_path, committed)
    assert tree(tmp_path) == tree(committed)


def test_rendering_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert main(["render", str(EXAMPLES / "two-node-slurm"), "-o", str(tmp_path / name)]) == 0
    assert tree(tmp_path / "one") == tree(tmp_path / "two") != {}


@pytest.mark.parametrize("story", STORIES)
def test_story_has_no_problems(story: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(EXAMPLES / story)]) == 0
    assert capsys.readouterr().out.endswith(": no problems\n")


def shell_of(script: Path) -> str:
    """Return the shell of the script's first line; nodes may have only a POSIX shell."""
    return script.read_text().partition("\n")[0].removeprefix("#!/bin/")


@pytest.mark.parametrize("script", SCRIPTS, ids=named)
def test_script_has_valid_syntax_for_its_shell(script: Path) -> None:
    assert shell_of(script) == ("sh" if script.suffix == ".sbatch" else "bash")
    result = subprocess.run([shell_of(script), "-n", str(script)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.slow
@needs_shellcheck
@pytest.mark.parametrize("script", SCRIPTS, ids=named)
def test_script_passes_shellcheck(script: Path) -> None:
    command = ["shellcheck", f"--shell={shell_of(script)}", "--severity=style", str(script)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == ""


@pytest.mark.parametrize("path", SUBMITTED, ids=named)
def test_submitted_file_has_a_readable_run_json_and_the_full_spec(path: Path) -> None:
    data = submitted(path)
    run = from_json(RunConfig, data["run.json"])
    assert to_json(run) == data["run.json"]
    assert run.world_size == run.mesh.world_size
    spec = with_shared(json.loads(data["spec.json"]), json.loads(data["run.json"]))
    plan = plan_of(path)
    assert (run, spec) == (plan.run, plan.kept_spec)


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in SUBMITTED if path.suffix != ".yaml"], ids=named)
def test_attempt_opened_by_a_script_records_the_full_spec(path: Path, tmp_path: Path) -> None:
    without_main = path.read_text().removesuffix("main\n").replace("trap 'not_opened $?' EXIT\n", "")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    directory = RunDirectory(tmp_path / "run", 2)
    opens = f"open_run {tmp_path} run --attempt 2"
    if path.suffix == ".sbatch":
        directory.submitted_run.parent.mkdir(parents=True)
        opens = f"write_job {directory.submitted_run.parent}"
    subprocess.run([shell_of(path), "-c", without_main + opens], env=environment, capture_output=True, check=True)
    if path.suffix == ".sbatch":
        open_submitted(directory)
    assert json.loads(directory.spec.read_text()) == plan_of(path).kept_spec
    assert from_json(RunConfig, directory.run_json.read_text()).run == "run"


@pytest.mark.parametrize("path", SUBMITTED, ids=named)
def test_submitted_file_has_each_variable_below_its_reason_and_source(path: Path) -> None:
    reader = reader_of(path)
    assert reader is not None
    found, lines = reader(path.read_text()).settings, [line.strip() for line in path.read_text().splitlines()]
    plan = plan_of(path)
    for variable in plan.env:
        setting = found[variable.name]
        assert setting.value == variable.value
        at = max(number for number in range(setting.line) if variable.name in lines[number])
        assert lines[at - 2 : at] == [f"# {variable.reason}", f"#   {variable.source}"]


@pytest.mark.parametrize(
    ("story", "file", "old", "new", "changed"),
    [
        ("two-node-slurm", "job.yaml", "lr: 0.003", "lr: 0.004", {"slurm/job.sbatch": 1}),
        ("two-node-slurm", "job.yaml", "every: 10 steps", "every: 15 steps", {"slurm/job.sbatch": 1}),
        # The runner's nodes, slots and mesh.
        ("two-node-slurm", "job.yaml", "nodes: 2", "nodes: 1", {"slurm/job.sbatch": 3, "plan.json": 3}),
        ("two-node-roce", "job.yaml", "lr: 0.003", "lr: 0.004", {"slurm/job.sbatch": 1, "kubernetes/job.yaml": 1}),
        ("quickstart", "job.yaml", "lr: 0.003", "lr: 0.004", {"local/run.sh": 1}),
        # A variable and its reason.
        ("two-node-roce", "slurm-cluster.yaml", "dscp: 26", "dscp: 34", {"slurm/job.sbatch": 2}),
        ("two-node-roce", "kubernetes-cluster.yaml", "dscp: 26", "dscp: 34", {"kubernetes/job.yaml": 2}),
    ],
)
def test_edit_changes_each_value_in_one_place(
    story: str, file: str, old: str, new: str, changed: dict[str, int], tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLES / story, tmp_path / story)
    document = tmp_path / story / file
    assert old in document.read_text()
    document.write_text(document.read_text().replace(old, new, 1))
    assert main(["render", str(tmp_path / story)]) == 0
    found: dict[str, set[int]] = {}
    for path in [*SUBMITTED, *(path.parents[1] / "plan.json" for path in SUBMITTED)]:
        if path.is_relative_to(EXAMPLES / story) and "spare" not in named(path):
            count = _changed_lines(path.read_text(), (tmp_path / named(path)).read_text())
            if count:
                found.setdefault("/".join(path.parts[-2:]) if path.name != "plan.json" else path.name, set()).add(count)
    if "plan.json" in changed:
        # One line for each removed rank, and the brackets around a single one.
        assert found.pop("plan.json")
        changed = {name: count for name, count in changed.items() if name != "plan.json"}
    assert found == {name: {count} for name, count in changed.items()}


def _changed_lines(before: str, after: str) -> int:
    """Return the number of lines that an edit has changed, except for hashes, which change with any value."""
    old, new = (_HASH.sub("HASH", text).splitlines() for text in (before, after))
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return sum(max(end - begin, last - first) for tag, begin, end, first, last in blocks if tag != "equal")


def submitted(path: Path) -> dict[str, str]:
    """Return run.json and spec.json of a script or a manifest."""
    if path.suffix == ".yaml":
        (job,) = yaml.safe_load(path.read_text())["spec"]["replicatedJobs"]
        annotations = job["template"]["spec"]["template"]["metadata"]["annotations"]
        return {key.removeprefix("headway/"): value for key, value in annotations.items()}
    found = re.search(
        r"<<'RUN_JSON'[^\n]*\n(.*?)RUN_JSON\n(?: *cat [^\n]*<<'SPEC_JSON'\n)?(.*?)SPEC_JSON\n", path.read_text(), re.DOTALL
    )
    assert found is not None
    return {"run.json": found[1], "spec.json": found[2]}


def plan_of(path: Path) -> JobPlan:
    """Return the plan from which the file is rendered."""
    name, cluster = path.parts[-4:-2]
    (planned,) = (
        planned
        for planned in compile_documents((EXAMPLES / path.relative_to(EXAMPLES).parts[0]).glob("*.yaml")).jobs
        if (planned.plan.name, planned.plan.cluster) == (name, cluster)
    )
    return planned.plan
