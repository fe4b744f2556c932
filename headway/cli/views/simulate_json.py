"""Formats the results of a simulation as JSON."""

import json
import math
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import asdict

from headway.cli.simulation import Simulation

SCHEMA = "headway.simulation/1"


def simulation_json(simulation: Simulation) -> str:
    """Every figure as JSON; a time without end is null."""
    return json.dumps(_plain({"schema": SCHEMA} | asdict(simulation)), indent=2) + "\n"


def _plain(value: object) -> object:
    """Records as objects, sets as sorted lists, numbers that JSON does not have as null."""
    if isinstance(value, Struct):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(str(each) for each in value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
