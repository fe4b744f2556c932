"""The frameworks' tables: each field has a row, written values are read back, and unsupported ones are rejected at their field."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from headway.jobspec.aliases import places
from headway.templates.kind import JobKind
from headway.templates.trainers import TRAINERS
from headway.templates.trainers.deepspeed.table import TABLE as DEEPSPEED
from headway.templates.trainers.framework import known_of
from headway.templates.trainers.hf.table import TABLE as HF
from headway.templates.trainers.lightning.table import TABLE as LIGHTNING
from headway.templates.trainers.megatron.table import TABLE as MEGATRON
from headway.templates.trainers.table import FIELDS, Elsewhere, Lacks, Same, Table, flat, nested
from headway.templates.trainers.torchtitan.table import TABLE as TORCHTITAN

from .jobs import compiled, job, planned

TABLES: dict[str, Table] = {
    "torchtitan": TORCHTITAN,
    "megatron": MEGATRON,
    "hf": HF,
    "lightning": LIGHTNING,
    "deepspeed": DEEPSPEED,
}
ONE_EACH = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
CONSTANT = {"lr": 0.0003, "schedule": "constant"}
# Ranks and fields of jobs that the framework supports.
JOBS: list[tuple[str, int, dict[str, Any]]] = [
    ("torchtitan", 16, {"layout": {"tp": 2, "pp": 2, "cp": 2, "sharding": "parameters"}, "recompute": "full", "compile": True}),
    (
        "torchtitan",
        8,
        {"layout": {"dp_replicate": 2, "sharding": "gradients"}, "precision": {"compute": "bf16", "parameters": "bf16"}},
    ),
    ("torchtitan", 8, {"optimizer": {"lr": 0.1, "schedule": "wsd", "decay_steps": 20}}),
    ("torchtitan", 8, {"optimizer": CONSTANT, "checkpoint": None}),
    (
        "megatron",
        16,
        {
            "layout": {"tp": 2, "pp": 2, "virtual_stages": 2, "schedule": "Interleaved1F1B", "sharding": "optimizer"},
            "environment": ONE_EACH,
            "recompute": "full",
            "precision": {"compute": "bf16", "reduce": "fp32"},
        },
    ),
    ("megatron", 8, {"layout": {"sharding": "gradients"}, "optimizer": {"lr": 0.1, "schedule": "wsd", "decay_steps": 20}}),
    (
        "megatron",
        8,
        {
            "layout": {"dp_replicate": 8, "sharding": "none"},
            "precision": {"compute": "fp8"},
            "overlap": {"gradients": True, "tensor": False},
        },
    ),
    ("hf", 8, {"layout": {"sharding": "gradients"}, "precision": {"compute": "bf16"}, "recompute": "full", "compile": True}),
    ("hf", 8, {"layout": {"dp_replicate": 8}, "precision": {"compute": "fp16"}, "recompute": "full"}),
    ("hf", 8, {"optimizer": {"lr": 0.1, "schedule": "linear", "min_lr_ratio": 0.2}}),
    ("hf", 8, {"optimizer": {"lr": 0.1, "schedule": "wsd", "decay_steps": 20}, "checkpoint": None}),
    ("lightning", 8, {"layout": {"dp_replicate": 2, "sharding": "parameters"}, "precision": {"compute": "bf16"}}),
    ("lightning", 8, {"layout": {"tp": 2}, "precision": {"compute": "fp16"}}),
    ("lightning", 8, {"layout": {"dp_replicate": 8}, "checkpoint": {"tiers": [{"kind": "shared", "every": "30m"}]}}),
    ("deepspeed", 8, {"layout": {"sharding": "gradients"}, "precision": {"compute": "bf16", "reduce": "bf16"}}),
    (
        "deepspeed",
        8,
        {
            "layout": {"sharding": "optimizer"},
            "optimizer": {"lr": 0.1, "schedule": "linear", "min_lr_ratio": 0.0, "warmup_steps": 5},
        },
    ),
    ("deepspeed", 8, {"layout": {"dp_replicate": 8}, "optimizer": {**CONSTANT, "warmup_steps": 5}}),
]
# Unsupported values by their field; the last item is the code.
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("hf", {"layout": {"cp": 2}}, "layout.cp", "HW306"),
    ("hf", {"layout": {"tp": 2}}, "layout.tp", "HW306"),
    ("hf", {"layout": {"pp": 2}}, "layout.pp", "HW306"),
    ("hf", {"layout": {"sharding": "optimizer"}}, "layout.sharding", "HW306"),
    ("hf", {"layout": {"dp_replicate": 2, "sharding": "parameters"}}, "layout.dp_replicate", "HW306"),
    ("hf", {"recompute": "selective"}, "recompute", "HW306"),
    ("hf", {"precision": {"compute": "fp8"}}, "precision.compute", "HW306"),
    ("hf", {"precision": {"reduce": "fp32"}}, "precision.reduce", "HW306"),
    ("hf", {"checkpoint": {"tiers": [{"kind": "shared", "every": "30m"}]}}, "checkpoint.tiers[0].every", "HW306"),
    (
        "hf",
        {"checkpoint": {"tiers": [{"kind": "memory", "every": "10 steps"}, {"kind": "shared", "every": "50 steps"}]}},
        "checkpoint.tiers[0].kind",
        "HW306",
    ),
    ("megatron", {"layout": {"pp": 2, "virtual_stages": 2, "schedule": "ZBVZeroBubble"}}, "layout.schedule", "HW306"),
    ("megatron", {"compile": True}, "compile", "HW306"),
    ("megatron", {"layout": {"tp": 2}}, "layout.tp", "HW306"),
    ("megatron", {"layout": {"pp": 2, "sharding": "parameters"}}, "layout.sharding", "HW306"),
    (
        "megatron",
        {"layout": {"sharding": "parameters"}, "environment": ONE_EACH},
        "environment.CUDA_DEVICE_MAX_CONNECTIONS",
        "HW306",
    ),
    ("megatron", {"overlap": {"parameters": True}}, "overlap.parameters", "HW306"),
    ("megatron", {"precision": {"parameters": "bf16"}}, "precision.parameters", "HW306"),
    ("torchtitan", {"layout": {"sharding": "optimizer"}}, "layout.sharding", "HW306"),
    ("torchtitan", {"precision": {"compute": "fp16"}}, "precision.compute", "HW306"),
    ("torchtitan", {"precision": {"reduce": "bf16"}}, "precision.reduce", "HW306"),
    ("torchtitan", {"overlap": {"tensor": True}}, "overlap.tensor", "HW306"),
    ("torchtitan", {"options": {"module": None, "config": None}}, "model", "HW306"),
    ("torchtitan", {"options": {"module": None, "config": None}, "model": {"preset": "mixtral-8x7b"}}, "model.preset", "HW306"),
    (
        "torchtitan",
        {"options": {"module": None, "config": None}, "model": {"preset": "llama-3.1-8b", "layers": 8}},
        "model.layers",
        "HW306",
    ),
    ("torchtitan", {"options": {"config": None}}, "trainer.options.module", "HW210"),
    ("lightning", {"layout": {"pp": 2}}, "layout.pp", "HW306"),
    ("lightning", {"layout": {"sharding": "optimizer"}}, "layout.sharding", "HW306"),
    ("lightning", {"precision": {"compute": "fp8", "parameters": "bf16"}}, "precision.parameters", "HW306"),
    ("deepspeed", {"layout": {"tp": 2}}, "layout.tp", "HW306"),
    ("deepspeed", {"optimizer": {"lr": 0.1, "schedule": "wsd", "decay_steps": 9}}, "optimizer.schedule", "HW306"),
    ("deepspeed", {"optimizer": {"lr": 0.1, "schedule": "linear"}}, "optimizer.min_lr_ratio", "HW306"),
    ("hf", {"options": {"arguments": {"learning_rate": 1.0}}}, "trainer.options.arguments.learning_rate", "HW327"),
    ("hf", {"options": {"arguments": {"output_dir": "/x"}}}, "trainer.options.arguments.output_dir", "HW327"),
    ("hf", {"options": {"arguments": {"fsdp_config": "a.json"}}}, "trainer.options.arguments.fsdp_config", "HW327"),
    ("hf", {"options": {"arguments": {"deepspeed": "ds.json"}}}, "trainer.options.arguments.deepspeed", "HW327"),
    ("deepspeed", {"options": {"argv": ["--deepspeed-config=a.json"]}}, "trainer.options.argv[0]", "HW327"),
    ("megatron", {"options": {"arguments": {"--train-iters": 3}}}, "trainer.options.arguments.--train-iters", "HW327"),
    ("torchtitan", {"options": {"arguments": {"training": {"seq-len": 3}}}}, "trainer.options.arguments.training", "HW327"),
    ("lightning", {"options": {"arguments": {"trainer": {"max_steps": 3}}}}, "trainer.options.arguments.trainer", "HW327"),
    (
        "deepspeed",
        {"options": {"arguments": {"zero_optimization.stage": 1}}},
        "trainer.options.arguments.zero_optimization.stage",
        "HW327",
    ),
    ("hf", {"options": {"arguments": {"x": "{layout.tpp}"}}}, "trainer.options.arguments.x", "HW312"),
]


@pytest.mark.parametrize("kind", TABLES)
def test_every_field_has_one_row(kind: str) -> None:
    table = TABLES[kind]
    assert [name for name in FIELDS if table.row_of(name) is None] == []
    named = [name for row in table.rows for name in row.fields]
    assert len(named) == len(set(named))
    assert set(named) <= {*FIELDS, *(name.partition(".")[0] for name in FIELDS)}


@pytest.mark.parametrize("kind", TABLES)
def test_every_key_belongs_to_one_row(kind: str) -> None:
    keys = [key for row in TABLES[kind].rows for key in set(row.keys)]
    twice = {key for key in keys if keys.count(key) > 1}
    # One switch for recomputation with FSDP, and formats that share one.
    assert twice <= {"fsdp_config.activation_checkpointing"}


@pytest.mark.parametrize("kind", TABLES)
def test_check_names_the_field_for_a_frameworks_key(kind: str) -> None:
    """`headway check` names the field for a key, wherever the key is in a job."""
    missing = {}
    for row in TABLES[kind].rows:
        if not isinstance(row, Same):
            continue
        key = row.key.rpartition(".")[2]
        found = [".".join(place) for place in places("TrainingJob", key)]
        if row.name not in found and key not in (row.name.rpartition(".")[2], "enable"):
            missing[row.key] = row.name
    assert missing == {}


@pytest.mark.parametrize(("kind", "ranks", "fields"), JOBS)
def test_written_values_are_read_back(kind: str, ranks: int, fields: dict[str, Any], tmp_path: Path) -> None:
    table = TABLES[kind]
    plan = planned(job(kind, ranks, **fields), ranks, tmp_path)
    known = known_of(plan)
    read = table.read(flat(nested(table.write(known))), ranks)
    given = {name: known[name] for row in table.rows if not isinstance(row, Lacks | Elsewhere) for name in row.fields}
    expected = {name: value for name, value in given.items() if value is not None and name in read}
    # A state that is not sharded is replicated, and a framework's default may be read for an omitted field.
    for name in ("layout.dp_replicate", "layout.dp_shard") if read.get("layout.sharding") == "none" else ():
        expected.pop(name)
    if known["checkpoint.shared.steps"] is None and known["checkpoint.shared.seconds"] is None:
        expected.pop("checkpoint.keep", None)
    if known["optimizer.schedule"] == "constant":
        expected.pop("optimizer.min_lr_ratio", None)
    assert expected
    assert {name: pytest.approx(value) if isinstance(value, float) else value for name, value in expected.items()} == {
        name: read[name] for name in expected
    }


@pytest.mark.parametrize(("kind", "fields", "where", "code"), REFUSED)
def test_unsupported_value_is_rejected_at_its_field(
    kind: str, fields: dict[str, Any], where: str, code: str, tmp_path: Path
) -> None:
    problems = [each for each in compiled(job(kind, 16, **fields), 16, tmp_path).problems if each.is_error]
    assert problems
    assert {each.code for each in problems} == {code}
    paths = {"".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in each.path).lstrip(".") for each in problems}
    assert where in paths
    assert all(each.hint for each in problems)


@pytest.mark.parametrize("kind", TABLES)
def test_every_combination_of_a_schedules_fields_is_written_or_refused(kind: str, tmp_path: Path) -> None:
    known = known_of(planned(job(kind, 8), 8, tmp_path))
    for shape, decay, least, warmup in product(("cosine", "linear", "constant", "wsd"), (None, 1, 20), (0.0, 0.1, 1.0), (0, 5)):
        given = {"schedule": shape, "decay_steps": decay, "min_lr_ratio": least, "warmup_steps": warmup}
        each = {**known, **{f"optimizer.{name}": value for name, value in given.items()}}
        keys = TABLES[kind].write(each)
        assert keys or list(TABLES[kind].refusals(each)), given


@pytest.mark.slow
def test_framework_trainers_run_as_scripts() -> None:
    kinds: list[JobKind] = [TRAINERS[kind] for kind in TABLES]
    assert {kind.runs_as for kind in kinds} == {"script"}
