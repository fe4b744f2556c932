"""The stories: each renders to exactly its committed tree, twice the same, and every script of it is clean."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from headway.cli.main import main
from headway.jobspec.plan import to_json
from headway.runner.contract import RunConfig, from_json

EXAMPLES = Path(__file__).parents[2] / "examples"
STORIES = sorted({path.parent.name for path in EXAMPLES.glob("*/*.yaml")})
COMMITTED = sorted(path for path in EXAMPLES.glob("*/rendered/**/*") if path.is_file())
SCRIPTS = [path for path in COMMITTED if path.suffix in {".sh", ".sbatch", ".env"} or path.read_bytes().startswith(b"#!")]

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


@pytest.mark.parametrize("script", SCRIPTS, ids=named)
def test_script_is_bash(script: Path) -> None:
    result = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@needs_shellcheck
@pytest.mark.parametrize("script", SCRIPTS, ids=named)
def test_script_is_clean_for_shellcheck(script: Path) -> None:
    command = ["shellcheck", "--shell=bash", "--severity=style", str(script)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == ""


@pytest.mark.parametrize("path", [path for path in COMMITTED if path.name == "run.json"], ids=named)
def test_run_json_is_what_the_runner_reads_and_stands_in_plan_and_script(path: Path) -> None:
    run = from_json(RunConfig, path.read_text())
    assert to_json(run) == path.read_text()
    assert run.world_size == run.mesh.world_size
    plan = json.loads((path.parent / "plan.json").read_text())
    assert plan["run"] == json.loads(path.read_text())
    assert path.read_text() in {_handed_over(script) for script in COMMITTED if script.parent.parent == path.parent}


def _handed_over(script: Path) -> str | None:
    """The run.json that a batch script or a manifest holds."""
    if script.suffix == ".yaml":
        documents = yaml.safe_load_all(script.read_text())
        return str(next(document["data"]["run.json"] for document in documents if document["kind"] == "ConfigMap"))
    found = re.search(r"<<'RUN_JSON'[^\n]*\n(.*?)RUN_JSON\n", script.read_text(), re.DOTALL)
    return found[1] if found else None


@pytest.mark.parametrize("path", [path for path in COMMITTED if path.suffix == ".env"], ids=named)
def test_sourcing_the_environment_sets_what_the_plan_says(path: Path) -> None:
    plan = json.loads((path.parent / "plan.json").read_text())
    bash = f'set -eu; source "{path}"; env -0'
    found = subprocess.run(["bash", "-c", bash], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}).stdout
    exported = dict(line.split("=", 1) for line in found.split("\0") if line)
    assert {name: exported.pop(name) for name in [variable["name"] for variable in plan["env"]]} == {
        variable["name"]: variable["value"] for variable in plan["env"]
    }
    assert set(exported) <= {"PATH", "PWD", "SHLVL", "_"}
