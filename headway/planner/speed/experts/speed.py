"""Reads experts.yaml: the constants of blocks with experts."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from headway.planner.identity import ByIdentity

FILE = Path(__file__).with_name("experts.yaml")


class ExpertSpeed(ByIdentity, frozen=True):
    """All constants of blocks with experts.

    Links: the share of their nominal speed that an all-to-all attains inside a scale-up `domain`, over adapters (`fabric`), and over
    adapters that are fed through the host's memory (`staged`); `crowding` is the power of the domains with which NCCL's all-to-all slows
    down beyond two of them. `hidden` is the share of it that overlap hides. Where processors post the messages of a dispatcher, each takes
    `message_us` on hosts with Hopper, and each domain that a token is sent to `proxy_us` a call.

    Computation: `depth` is the share that grouped products have of the cost to begin and end a tile; `scattered` copies of the routed
    tokens are what a sum costs that PyTorch scatters.

    Hosts: an operation takes `operation_us` to launch, times the host's `processors`. `queue` is the power by which the accelerator's and
    the host's time add up: 1 one after the other, infinity at once. `late` is how much longer FSDP exchanges experts where the host waits
    for the router before each block.
    """

    domain: float
    fabric: float
    staged: float
    crowding: float
    hidden: float
    message_us: Mapping[str, float]
    proxy_us: Mapping[str, float]
    depth: float
    scattered: float
    operation_us: float
    processors: Mapping[str, float]
    queue: float
    late: float


@cache
def expert_constants() -> ExpertSpeed:
    """Return the committed constants."""
    return speed_of(read())


def read() -> dict[str, Any]:
    """experts.yaml as it is, every constant with where it is from."""
    found: dict[str, Any] = yaml.load(FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return found


def speed_of(tables: Mapping[str, Any]) -> ExpertSpeed:
    """Return the tables of experts.yaml as a record."""
    return ExpertSpeed(**{name: _values(table) for name, table in tables.items()})


def _values(table: Mapping[str, Any]) -> Any:
    return table["value"] if "value" in table else {name: each["value"] for name, each in table.items()}
