"""A spec as its values, and as the hash that names these, whatever its comments, order, bases and spelled-out defaults."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel

# Where values stand, not what they are.
_PLACES = {"extends", "partial"}


def values_of(spec: BaseModel) -> dict[str, Any]:
    """All that the spec says, defaults and what it inherits included, as JSON under the names of the documents."""
    return spec.model_dump(mode="json", by_alias=True, exclude=_PLACES)


def fingerprint(spec: BaseModel) -> str:
    """SHA-256 in hex of the spec's values."""
    return hashlib.sha256(json.dumps(values_of(spec), sort_keys=True, separators=(",", ":")).encode()).hexdigest()
