"""`ignore`: an accepted problem does not prevent the plan and stays listed; an entry that accepts nothing is reported."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.compile import compile_documents
from headway.jobspec.codes import CODES
from headway.jobspec.ignore import JUDGEMENTS, may_be_ignored

ROOT = Path(__file__).parents[2]

CLUSTER = """apiVersion: headway/v1alpha1
kind: Cluster
name: four
scheduler: {kind: slurm}
node_groups: [{name: gpu, count: 4, cpus: 96, gpu: H100-SXM-80, gpus: 4, nic: ConnectX-7, nic_speed: 400Gb/s, nics: [a, b, c, d]}]
fabrics: [{name: rails, role: scale-out, transport: infiniband}]
storage: [{name: runs, kind: posix, path: /runs, shared: true}]
"""
# Tensor parallelism over two nodes (HW413), and more memory than the GPUs have (HW427).
JOB = """apiVersion: headway/v1alpha1
kind: TrainingJob
name: wide
cluster: four
nodes: 4
model: {preset: llama-3.1-405b}
layout: {tp: 8}
batch: {global: 64 sequences, micro: 1, sequence: 8192}
run: [train.py, "--model={model.preset}", "--tp={layout.tp}", "--gb={batch.global}", "--mb={batch.micro}", "--seq={batch.sequence}"]
"""


def write(folder: Path, ignore: str = "", cluster: str = CLUSTER, job: str = JOB) -> Path:
    (folder / "four.yaml").write_text(cluster)
    (folder / "job.yaml").write_text(job + ignore)
    return folder / "job.yaml"


def codes(path: Path) -> list[str]:
    return [problem.code for problem in compile_documents([path]).problems]


def test_job_with_an_accepted_error_is_planned_and_lists_its_reason(tmp_path: Path) -> None:
    assert codes(write(tmp_path)) == ["HW413"]
    compiled = compile_documents([write(tmp_path, "ignore: [{code: HW413, field: layout, reason: 4 nodes on one switch}]\n")])
    assert [problem.code for problem in compiled.problems] == ["HW427"]
    assert [(problem.code, problem.ignored) for problem in compiled.problems.ignored] == [("HW413", "4 nodes on one switch")]
    assert [job.plan.mesh.tp for job in compiled.jobs] == [8]


def test_an_accepted_warning_passes_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = "ignore:\n- {code: HW413, reason: one switch}\n"
    assert main(["check", "--strict", str(write(tmp_path, one))]) == 1
    assert main(["check", "--strict", str(write(tmp_path, f"{one}- {{code: HW427, reason: offloaded}}\n"))]) == 0
    shown = capsys.readouterr().out.splitlines()[-4:]
    assert [line.replace(f"{tmp_path}/", "") for line in shown] == [
        "ignored[HW427]: job.yaml:5:8: offloaded",
        "ignored[HW413]: job.yaml:7:14: one switch",
        "",
        "1 document: no problems",
    ]


def test_entry_for_another_field_accepts_nothing(tmp_path: Path) -> None:
    assert codes(write(tmp_path, "ignore: [{code: HW413, field: layout.t, reason: x}]\n")) == ["HW413"]
    fields = "ignore: [{code: HW413, field: layout.tp, reason: x}, {code: HW427, field: batch.global, reason: x}]\n"
    assert codes(write(tmp_path, fields)) == ["HW427", "HW238"]


def test_error_that_prevents_a_plan_cannot_be_ignored(tmp_path: Path) -> None:
    job = JOB.replace("tp: 8", "tp: 3")
    assert "HW239" in codes(write(tmp_path, "ignore: [{code: HW301, reason: x}]\n", job=job))
    assert "HW301" in codes(write(tmp_path, "ignore: [{code: HW301, reason: x}]\n", job=job))
    assert codes(write(tmp_path, "ignore: [{code: HW888, reason: x}, {code: HW413, reason: x}, {code: HW427, reason: x}]\n")) == [
        "HW239"
    ]


def test_cluster_accepts_its_own_problems(tmp_path: Path) -> None:
    unknown = CLUSTER.replace("H100-SXM-80", "H900")
    assert codes(write(tmp_path, cluster=unknown).parent / "four.yaml") == ["HW231"]
    accepted = f"{unknown}ignore: [{{code: HW231, field: node_groups, reason: a sample}}]\n"
    assert codes(write(tmp_path, cluster=accepted).parent / "four.yaml") == []
    unused = f"{CLUSTER}ignore: [{{code: HW231, reason: a sample}}, {{code: HW429, reason: found only with some jobs}}]\n"
    assert codes(write(tmp_path, cluster=unused).parent / "four.yaml") == ["HW238"]


def test_inherited_entry_is_applied_and_never_reported_as_unused(tmp_path: Path) -> None:
    base = f"{JOB}partial: true\nignore: [{{code: HW413, reason: x}}, {{code: HW427, reason: x}}, {{code: HW308, reason: x}}]\n"
    write(tmp_path)
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "job.yaml").write_text("apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: heir\nextends: base.yaml\n")
    assert codes(tmp_path / "job.yaml") == []


def test_accepted_false_secret_is_still_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = JOB.replace("tp: 8", "tp: 4") + "environment: {NOT_A_TOKEN: abcdefgh1}\n"
    assert "HW215" in codes(write(tmp_path, job=job))
    both = "ignore: [{code: HW215, field: environment.NOT_A_TOKEN, reason: a name}, {code: HW427, reason: x}]\n"
    path = write(tmp_path, both, job=job)
    assert codes(path) == []
    main(["check", "--format", "json", str(path)])
    assert "abcdefgh1" not in capsys.readouterr().out


def test_accepted_problems_change_neither_the_plan_nor_the_files(tmp_path: Path) -> None:
    job = JOB.replace("tp: 8", "tp: 4")
    (plain,) = compile_documents([write(tmp_path, job=job)]).jobs
    (with_reason,) = compile_documents([write(tmp_path, "ignore: [{code: HW427, reason: x}]\n", job=job)]).jobs
    assert plain.plan == with_reason.plan
    assert plain.files() == with_reason.files()


def test_formats_list_accepted_problems_separately(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "ignore: [{code: HW413, reason: one switch}]\n")
    found: dict[str, Any] = {}
    for form in ("json", "sarif"):
        assert main(["check", "--format", form, str(path)]) == 0
        found[form] = json.loads(capsys.readouterr().out)
    assert [(each["code"], each["reason"]) for each in found["json"]["ignored"]] == [("HW413", "one switch")]
    assert [each["code"] for each in found["json"]["problems"]] == ["HW427"]
    suppressed = {each["ruleId"]: each.get("suppressions") for each in found["sarif"]["runs"][0]["results"]}
    assert suppressed == {"HW427": None, "HW413": [{"kind": "inSource", "justification": "one switch"}]}
    assert main(["check", "--format", "github", str(path)]) == 0
    assert "HW413" not in capsys.readouterr().out


def test_ignorable_codes_are_those_that_some_check_reports_as_a_warning() -> None:
    folders = ("jobspec", "templates", "headway/planner", "headway/compile", "headway/cli")
    call = re.compile(r'[Pp]roblem\(\s*"(HW\d+)"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)')
    warnings = {
        found[1]
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for found in call.finditer(path.read_text())
        if "Severity.WARNING" in found[0]
    }
    # `audit` reports HW603 for files in use, which have no `ignore`.
    warnings -= {"HW603"}
    # HW520 becomes a warning if an inventory belongs to no cluster, HW509 if a cluster has no switches.
    assert {code for code in CODES if may_be_ignored(code)} == warnings | JUDGEMENTS | {"HW509", "HW520"}


SHORT = JOB.replace("[train.py, ", "[train.py] # ").replace("layout: {tp: 8}", "layout: {tp: 4}")


@pytest.mark.parametrize("field", ["run", "trainer.options.argv", ""])
def test_unpassed_arguments_are_accepted_if_the_job_lists_them(field: str, tmp_path: Path) -> None:
    entry = f"ignore: [{{code: HW313, field: '{field}', reason: train.toml}}, {{code: HW427, reason: offloaded}}]\n"
    compiled = compile_documents([write(tmp_path, entry if field else entry.replace("field: '', ", ""), job=SHORT)])
    assert list(compiled.problems) == []
    assert [problem.code for problem in compiled.problems.ignored] == ["HW427", "HW313"]


def test_unpassed_arguments_are_accepted_by_the_fields_in_the_message(tmp_path: Path) -> None:
    accept = "ignore: [{code: HW427, reason: offloaded}, {code: HW313, field: model, reason: train.toml}"
    compiled = compile_documents([write(tmp_path, f"{accept}]\n", job=SHORT)])
    (left,) = compiled.problems
    assert (left.code, left.message.split(":")[0]) == ("HW313", "not passed to the script")
    assert "`model`" not in left.message
    assert "`batch.micro`" in left.message
    others = "".join(f", {{code: HW313, field: {field}, reason: train.toml}}" for field in ("layout", "batch"))
    assert codes(write(tmp_path, f"{accept}{others}]\n", job=SHORT)) == []
