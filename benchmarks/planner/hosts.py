"""Maps accelerators and fabrics of published rows to GPUs and networks: accelerators.yaml."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.planner.columns import LeftOutError, whole
from benchmarks.planner.texts import adapter_gbit_s, adapters, transport
from headway.jobspec.catalog.gpus import Gpu, gpus
from headway.planner.training import Network

_FILE = Path(__file__).with_name("accelerators.yaml")


@cache
def _accelerators() -> Mapping[str, Any]:
    found: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return found


@cache
def accelerator(name: str) -> Gpu:
    """Return the catalogue's GPU, or accelerators.yaml's. Raises LeftOutError."""
    listed = _accelerators().get(name, {})
    known = gpus().get(listed.get("catalogue", name))
    if known is not None:
        return known
    if "gpu" not in listed:
        raise LeftOutError("not understood", f"accelerator `{name}`")
    return Gpu(name, **listed["gpu"])


def gpus_per_node(columns: Mapping[str, str]) -> int:
    """Return the printed number, else eight."""
    return whole(columns.get("gpus_per_node")) or 8


def network(columns: Mapping[str, str], gpu: Gpu) -> Network:
    """Return what the columns print of the fabric, and what the accelerator's hosts usually have where they print nothing."""
    per_node, fabric = gpus_per_node(columns), columns.get("fabric", "")
    usual = _accelerators().get(columns.get("gpu", ""), {}).get("adapter_gbit_s", 400)
    rate = adapter_gbit_s(fabric, per_node) or usual
    rack = gpu.scale_up_domain > 8
    return Network(
        gpus_per_node=per_node,
        scale_up_domain=gpu.scale_up_domain if rack else min(gpu.scale_up_domain, per_node),
        scale_up_bytes_s=gpu.scale_up_gb_s / 2 * 1e9,
        scale_out_bytes_s=rate / 8 * 1e9,
        adapters_per_node=adapters(fabric, per_node),
        transport=transport(fabric),
        gpu_direct="gdr off" not in fabric.lower(),
    )
