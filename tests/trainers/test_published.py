"""Published configurations, expressed as specs, give back their parallel settings through the frameworks' own parsers."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.templates.trainers.megatron.table import TABLE as MEGATRON_TABLE
from headway.templates.trainers.table import Table
from headway.templates.trainers.torchtitan.table import TABLE as TORCHTITAN_TABLE

from .jobs import EXPERTS, MEGATRON, MODEL, PEERS, job, parsed, planned

PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())
TABLES: dict[str, Table] = {"torchtitan": TORCHTITAN_TABLE, "megatron": MEGATRON_TABLE}

needs_peers = pytest.mark.skipif(not PEERS.exists(), reason="make .venv-peers/trainers/installed.stamp")
needs_megatron = pytest.mark.skipif(not MEGATRON.exists(), reason="make .venv-peers/megatron/installed.stamp")


def configurations(framework: str) -> list[dict[str, Any]]:
    return [each for group in PUBLISHED if group["framework"] == framework for each in group["configurations"]]


def document(framework: str, one: dict[str, Any]) -> dict[str, Any]:
    batch = one.get("batch", {"global": one["ranks"] * 8, "micro": 1, "sequence": 2048})
    precision = {"compute": one.get("compute", "bf16")}
    fields: dict[str, Any] = {
        "layout": one["layout"],
        "batch": {**batch, "global": f"{batch['global']} sequences"},
        "recompute": one.get("recompute"),
    }
    if framework == "megatron" and one["layout"]["sharding"] != "parameters":
        fields["environment"] = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    if "model" in one:
        fields |= {"model": {"preset": one["model"]}, "options": {"module": None, "config": None}}
    else:
        fields["model"] = {**MODEL, "layers": one.get("layers", 8)}
    if one.get("experts"):
        fields["model"]["experts"] = EXPERTS
        del fields["model"]["ffn_hidden"]
    if one.get("experts") and framework == "torchtitan":
        fields["options"] = {"module": "deepseek_v3", "config": "deepseek_v3_debugmodel"}
    return job(framework, one["ranks"], precision=precision, **fields)


def assert_settings_round_trip(framework: str, tmp_path: Path) -> None:
    """Assert that the parsed configuration, read by the table, has the published values and those of the plan."""
    published = configurations(framework)
    plans = [planned(document(framework, one), one["ranks"], tmp_path / str(index)) for index, one in enumerate(published)]
    for one, plan, config in zip(published, plans, parsed(framework, plans), strict=True):
        read = TABLES[framework].read(config, one["ranks"])
        expected = {f"layout.{name}": value for name, value in one["layout"].items()}
        expected |= {f"layout.{axis}": degree for axis, degree in zip(plan.mesh.axes, plan.mesh.shape, strict=True)}
        if expected.get("layout.sharding") == "none":
            # A state that is not sharded is replicated.
            expected |= {"layout.dp_replicate": plan.mesh.dp_replicate * plan.mesh.dp_shard, "layout.dp_shard": 1}
        expected |= {f"batch.{name}": value for name, value in one.get("batch", {}).items()}
        expected |= {"recompute": one["recompute"]} if "recompute" in one else {}
        assert {name: read[name] for name in expected} == expected, one["name"]


def test_at_least_30_published_configurations_have_a_source() -> None:
    assert sum(len(group["configurations"]) for group in PUBLISHED) >= 30
    assert all(group["source"] for group in PUBLISHED)


@needs_peers
@pytest.mark.slow
@pytest.mark.variant
def test_torchtitan_settings_round_trip(tmp_path: Path) -> None:
    assert_settings_round_trip("torchtitan", tmp_path)


@needs_peers
@needs_megatron
@pytest.mark.slow
@pytest.mark.variant
def test_megatron_settings_round_trip(tmp_path: Path) -> None:
    assert_settings_round_trip("megatron", tmp_path)
