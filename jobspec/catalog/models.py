"""Describes published models as presets: their sizes as a spec would set them, and the publisher's parameter counts."""

import json
import types
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from headway.jobspec.catalog.table import row, rows
from headway.jobspec.spec.model import Model


class Preset(Struct, frozen=True):
    """A published model. `parameters` and `active` are as the publisher prints them (`46.7B`); `active` is for models with experts."""

    name: str
    source: str
    parameters: str
    active: str | None
    model: Model


@cache
def models() -> Mapping[str, Preset]:
    """Return the presets by name."""
    return types.MappingProxyType({name: _preset(name, **values) for name, values in rows("models").items()})


@cache
def preset(name: str) -> Preset:
    """Return one preset, without reading the others. Raises KeyError."""
    return _preset(name, **row("models", name))


def _preset(name: str, *, source: str, parameters: str, model: object, active: str | None = None) -> Preset:
    return Preset(name, source, parameters, active, Model.model_validate_json(json.dumps(model)))
