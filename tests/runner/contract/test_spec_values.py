"""Tests which values a rendered spec omits because run.json has them, and that both together are the whole spec."""

import json
from pathlib import Path
from typing import Any

import pytest

from headway.cli.documents import load_job_plan
from headway.jobspec.json_text import json_text
from headway.jobspec.plan import JobPlan, to_json
from headway.runner.contract import with_shared, without_shared
from headway.runner.contract.spec_values import SHARED

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = sorted(path for path in EXAMPLES.glob("*/*.yaml") if "kind: TrainingJob" in path.read_text())
FULL = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: two-cpu-nodes
nodes: 2
model: {vocab_size: 256, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn_hidden: 176}
data: {kind: files, options: {paths: ["*.txt"]}}
batch: {global: 2048 tokens, micro: 1, sequence: 128}
optimizer: {lr: 0.003}
steps: 100
precision: {reduce: fp32}
checkpoint:
  horizon: 50 steps
  keep: 4
  host_memory: 2GB
  tiers: [{kind: memory, every: 90s}, {kind: shared, every: 20 steps, keep: 7}]
resilience:
  grace: 12.5s
  notify: {webhook_env: HOOK}
  corruption: {replay: 50 steps, grad_norm_factor: 8}
history:
  - {from_step: 20, set: {optimizer.lr: 0.001}}
  - {from_step: 30, set: {batch.global: 4096 tokens}}
  - {from_step: 40, skip_samples: 16}
"""
SCRIPT = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: two-cpu-nodes
nodes: 2
trainer: {kind: script, options: {module: true, argv: [train, "--replicas=2"]}}
resilience: {corruption: {compare: 50 steps}}
"""


def parts(plan: JobPlan) -> tuple[dict[str, Any], dict[str, Any]]:
    """The spec and run.json as parsed JSON."""
    return json.loads(json_text(plan.kept_spec)), json.loads(to_json(plan.run))


def planned(path: Path) -> JobPlan:
    found = load_job_plan(path)
    assert found is not None
    return found.plan


def job(folder: Path, text: str) -> JobPlan:
    (folder / "cluster.yaml").write_text((EXAMPLES / "two-node-slurm/cpu-cluster.yaml").read_text())
    (folder / "job.yaml").write_text(text)
    return planned(folder / "job.yaml")


@pytest.fixture
def full(tmp_path: Path) -> JobPlan:
    return job(tmp_path, FULL)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_remainder_and_run_json_form_the_whole_spec(path: Path) -> None:
    spec, run = parts(planned(path))
    rest = without_shared(spec, run)
    assert with_shared(rest, run) == spec
    assert len(json_text(rest)) < len(json_text(spec)) * 0.7


def test_only_values_changed_by_the_plan_are_stored_twice(full: JobPlan, tmp_path: Path) -> None:
    spec, run = parts(full)
    rest = without_shared(spec, run)
    assert with_shared(rest, run) == spec
    assert with_shared(spec, run) == spec
    script, config = parts(job(tmp_path, SCRIPT))
    assert with_shared(without_shared(script, config), config) == script
    assert rest["batch"] == {"global": {"sequences": None, "tokens": 2048}}
    assert rest["history"] == [{}, {"set": {"batch.global": spec["history"][1]["set"]["batch.global"]}}, {}]
    assert rest["checkpoint"] == {"horizon": 50, "keep": 4, "tiers": [{"keep": None}, {}]}
    assert "timeouts" not in rest["resilience"]
    assert "notify" not in rest["resilience"]
    assert rest["layout"]["dp_shard"] is None
    assert "optimizer" not in rest
    assert rest["layout"]["sharding"] is None
    assert rest["precision"] == {"compute": None, "parameters": None}


def test_every_row_of_the_table_has_a_value_on_both_sides(full: JobPlan, tmp_path: Path) -> None:
    jobs = parts(full), parts(job(tmp_path, SCRIPT))
    for name, other in SHARED.items():
        assert any(_has(spec, name.split(".")) and _has(run, other.split(".")) for spec, run in jobs), name


def _has(value: Any, names: list[str]) -> bool:
    if not names:
        return True
    if names[0] == "*":
        return any(_has(each, names[1:]) for each in (value.values() if isinstance(value, dict) else value or []))
    return isinstance(value, dict) and names[0] in value and _has(value[names[0]], names[1:])


@pytest.mark.parametrize(
    ("spec", "run", "rest"),
    [
        ({"steps": 1}, {"steps": 1.0}, {"steps": 1}),
        ({"compile": True, "seed": 1}, {"seed": True}, {"compile": True, "seed": 1}),
        ({"optimizer": None}, {"optimizer": {"lr": 1.0}}, {"optimizer": None}),
        ({"optimizer": {"lr": 1.0}}, {"optimizer": None}, {"optimizer": {"lr": 1.0}}),
        ({"environment": {}, "data": {"options": {}}}, {}, {"environment": {}, "data": {"options": {}}}),
        ({"optimizer": {"lr": 1.0}, "name": "a"}, {"optimizer": {"lr": 1.0}}, {"name": "a"}),
        ({"checkpoint": {"tiers": []}}, {"checkpoint": {"tiers": []}}, {"checkpoint": {"tiers": []}}),
    ],
)
def test_only_equal_values_are_omitted_and_no_section_is_added(
    spec: dict[str, Any], run: dict[str, Any], rest: dict[str, Any]
) -> None:
    assert without_shared(spec, run) == rest
    assert with_shared(rest, run) == spec


def test_neither_argument_is_modified() -> None:
    spec, run = {"optimizer": {"lr": 1.0}}, {"optimizer": {"lr": 1.0}}
    with_shared(without_shared(spec, run), run)["optimizer"]["lr"] = 2.0
    assert (spec, run) == ({"optimizer": {"lr": 1.0}}, {"optimizer": {"lr": 1.0}})
