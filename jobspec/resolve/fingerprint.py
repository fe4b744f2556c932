"""Computes a spec's values and their hash, which ignore comments, order, bases and spelled-out defaults."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins
from pydantic import BaseModel

from headway.jobspec.resolve.model import ModelSizes

# Keys that define where values come from, not the values, the short form of a trainer (jobspec/short.py), and the problems that its
# author accepts.
_PLACES = {"extends", "partial", "run", "ignore"}


def values_of(spec: BaseModel) -> dict[str, Any]:
    """Return all values of the spec, including defaults and inherited ones, as JSON under the names of the documents."""
    return spec.model_dump(mode="json", by_alias=True, exclude=_PLACES)


def with_sizes(values: Mapping[str, Any], model: ModelSizes | None) -> Mapping[str, Any]:
    """Return a job's values with the sizes of its `preset` or `config`: a catalogue and another file can change."""
    return values if model is None else {**values, "model": {**values["model"], **to_builtins(model)}}


def fingerprint(values: Mapping[str, Any]) -> str:
    """Return SHA-256 in hex of a spec's values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
