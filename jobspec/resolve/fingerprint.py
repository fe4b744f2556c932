"""A spec as the hash that names what it says, whatever its comments, order and spelled-out defaults."""

import hashlib
import json

from pydantic import BaseModel


def fingerprint(spec: BaseModel) -> str:
    """SHA-256 in hex of the spec's values, defaults included."""
    values = spec.model_dump(mode="json", by_alias=True)
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
