"""Computes a spec's values and their hash, which ignore comments, order, bases and spelled-out defaults."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from headway.jobspec.resolve.model import ModelSizes

# Where values stand, not what they are.
_PLACES = {"extends", "partial"}


def values_of(spec: BaseModel) -> dict[str, Any]:
    """All that the spec says, defaults and what it inherits included, as JSON under the names of the documents."""
    return spec.model_dump(mode="json", by_alias=True, exclude=_PLACES)


def with_sizes(values: Mapping[str, Any], model: ModelSizes | None) -> Mapping[str, Any]:
    """A job's values with the sizes that its `preset` or `config` stands for: a catalogue and another file can change."""
    return values if model is None else {**values, "model": {**values["model"], **dataclasses.asdict(model)}}


def fingerprint(values: Mapping[str, Any]) -> str:
    """SHA-256 in hex of a spec's values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
