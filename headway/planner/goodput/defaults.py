"""Reads failures.yaml: published numbers on failures, repairs and recoveries."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

_FILE = Path(__file__).parent / "failures.yaml"
_NODE_GPUS = 8
_DAY_S = 86400


class Rate(Struct, frozen=True):
    """Failures per 1,000 node-days of nodes with eight accelerators, and between which values they were published."""

    per_1000_node_days: float
    low: float
    high: float
    source: str


class CauseCount(Struct, frozen=True):
    """How often a cause was counted, whether it grows with a node's accelerators, and how often the node is replaced after it."""

    count: int
    accelerator: bool
    replaced: float


class Defaults(Struct, frozen=True):
    """The tables of failures.yaml."""

    rates: Mapping[str, Rate]
    causes: Mapping[str, CauseCount]
    repair: Mapping[str, Any]
    rack_nodes: Mapping[str, Any]
    recovery: Mapping[str, Any]
    replicas: Mapping[str, Any]
    checkpoints: Mapping[str, Any]

    def rate(self, gpu: str | None) -> Rate:
        """Return the rate of the accelerator of this name in the catalogue, by its generation."""
        return self.rates.get((gpu or "").partition("-")[0], self.rates["other"])

    def weights(self, gpus: int) -> Mapping[str, float]:
        """Return the share of each cause in a node with so many accelerators; they add up to 1 for eight."""
        total = sum(cause.count for cause in self.causes.values())
        return {
            name: cause.count / total * (gpus / _NODE_GPUS if cause.accelerator else 1) for name, cause in self.causes.items()
        }

    def node_mtbf_s(self, gpu: str | None, gpus: int) -> float:
        """Return seconds between two failures of one node with so many accelerators."""
        return 1000 * _DAY_S / (self.rate(gpu).per_1000_node_days * sum(self.weights(gpus).values()))


@cache
def defaults() -> Defaults:
    """failures.yaml, read once."""
    tables: dict[str, Any] = yaml.load(_FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
    rates = {name: Rate(**row) for name, row in tables.pop("rates").items()}
    causes = {name: CauseCount(**row) for name, row in tables.pop("causes").items()}
    return Defaults(rates=rates, causes=causes, **tables)
