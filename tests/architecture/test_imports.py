"""`headway check` imports no module that only other verbs need, reads no source file and compiles no class, so that it answers at once.

The runner's contract imports only the standard library, since each process of a run imports it first.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"hypothesis", "jinja2", "kubernetes", "numpy", "paramiko", "pulumi", "rich", "torch"}
# Modules of headway for other verbs, other formats, files and kinds that this job does not have, and mistakes that it does not have.
OTHERS = {
    "headway.cli.views.formats",
    "headway.cli.pin_job",
    "headway.infra.host",
    "headway.infra.providers.onprem.hosts",
    "headway.infra.ssh",
    "headway.planner.decide",
    "headway.planner.estimate",
    "headway.planner.goodput",
    "headway.planner.memory.hints",
    "headway.planner.search.search",
    "headway.planner.speed.step",
    "headway.jobspec.invalid",
    "headway.jobspec.line_repair",
    "headway.jobspec.repair",
    "headway.jobspec.schema",
    "headway.jobspec.syntax",
    "headway.jobspec.fitting",
    "headway.jobspec.unknown",
    "headway.report",
    "headway.runner.boot",
    "headway.templates.audit.rules",
    "headway.templates.hosts.read",
    "headway.templates.job",
    "headway.templates.switches.eos",
    "headway.templates.switches.nvue",
    "headway.templates.switches.opensm",
    "headway.templates.switches.sonic.read",
    "headway.templates.trainers.framework",
    "headway.templates.trainers.script",
}
# Pydantic validates them.
DATACLASSES = {"headway.jobspec.units.Amount", "headway.jobspec.units.Interval"}
PROGRAM = """
import json, linecache, sys
from headway.cli.main import main
code = main(sys.argv[1:])
objects = [each for name, module in sys.modules.items() if name.startswith("headway.") for each in vars(module).values()]
classes = {each for each in objects if isinstance(each, type) and "__dataclass_fields__" in vars(each)}
dataclasses = sorted(f"{each.__module__}.{each.__qualname__}" for each in classes if each.__module__.startswith("headway."))
found = {"code": code, "modules": sorted(sys.modules), "sources": sorted(linecache.cache), "dataclasses": dataclasses}
print(json.dumps(found))
"""


def checked(*paths: str) -> dict[str, Any]:
    """Run `headway check` in a new process; return its exit code, the modules that it imported and the sources that it read."""
    command = [sys.executable, "-c", PROGRAM, "check", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    """Check a job with its clusters and the files rendered from it next to it."""
    return checked("examples/two-node-roce/job.yaml")


@pytest.mark.slow
def test_check_of_a_job_reads_the_clusters_and_the_rendered_files(job: dict[str, Any]) -> None:
    assert job["code"] == 0
    assert {"headway.jobspec.resolve.cluster", "headway.templates.nccl.read", "headway.templates.agreement"} <= set(
        job["modules"]
    )


def test_check_of_a_job_imports_no_large_library(job: dict[str, Any]) -> None:
    assert {name.split(".")[0] for name in job["modules"]} & HEAVY == set()


def test_check_of_a_job_imports_no_module_for_other_verbs(job: dict[str, Any]) -> None:
    assert set(job["modules"]) & OTHERS == set()


def test_check_of_a_job_searches_no_installed_package_for_plugins(job: dict[str, Any]) -> None:
    assert "importlib.metadata" not in job["modules"]


def test_check_of_a_job_compiles_no_dataclass(job: dict[str, Any]) -> None:
    """Python compiles the methods of each at every start; the runner's contract, which has no library, is the exception."""
    found = {name for name in job["dataclasses"] if not name.startswith("headway.runner.contract.")}
    assert found == DATACLASSES


def test_modules_for_other_verbs_exist() -> None:
    missing = [
        name for name in OTHERS if not any((ROOT / name.replace(".", "/")).with_suffix(end).exists() for end in (".py", ""))
    ]
    assert missing == []


def test_check_without_problems_reads_no_field_descriptions(job: dict[str, Any]) -> None:
    assert [source for source in job["sources"] if source.endswith(".py")] == []


@pytest.mark.slow
def test_check_with_problems_reads_the_descriptions_for_its_hints() -> None:
    found = checked("tests/errors/missing-field.yaml")
    assert found["code"] == 1
    assert [source for source in found["sources"] if "/jobspec/spec/" in source] != []
    assert {name.split(".")[0] for name in found["modules"]} & HEAVY == set()


@pytest.mark.slow
def test_check_of_everything_imports_no_large_library() -> None:
    found = checked("examples")
    assert {name.split(".")[0] for name in found["modules"]} & HEAVY == set()
    assert {"headway.templates.hosts.read", "headway.templates.switches.sonic.read"} <= set(found["modules"])


@pytest.mark.slow
def test_check_of_auto_values_imports_the_planner_but_no_large_library() -> None:
    found = checked("tests/errors/auto-spares.yaml")
    assert found["code"] == 1
    assert {"headway.planner.decide", "headway.planner.goodput"} <= set(found["modules"])
    assert {name.split(".")[0] for name in found["modules"]} & HEAVY == set()


def test_contract_of_the_runner_imports_only_the_standard_library() -> None:
    program = "import sys; before = {*sys.modules}; import headway.runner.contract; print(*({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    outside = {name for name in done.stdout.split() if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name for name in outside if not name.startswith("headway.runner.contract.")} == {
        "headway",
        "headway.runner",
        "headway.runner.contract",
    }
