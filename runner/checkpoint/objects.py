"""Converts Python values to tagged JSON and back, without pickle, for what a checkpoint holds besides tensors.

Plain JSON values represent themselves; everything else is `{"!": tag, "v": ...}`. A save refuses types that are not
listed here.
"""

import base64
import math
from typing import Any

import numpy as np

TAG = "!"
# np.dtype.kind: types that NumPy writes and reads back exactly, whatever their length.
_NUMBERS = frozenset("biufcmM")
# Longer ints are written as hex: Python refuses decimal texts of more than 4300 digits.
_LONG_BITS = 4096


class ObjectError(TypeError):
    """A value has no tagged form; the message names its path."""


def encode(value: Any, where: str = "value") -> Any:
    """Return `value` in a form that json.dumps writes exactly. Raises ObjectError, by name, for a type that is not listed."""
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if value.bit_length() <= _LONG_BITS else {TAG: "int", "v": hex(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {TAG: "float", "v": repr(value)}
    if type(value) is bytes:
        return {TAG: "bytes", "v": base64.b64encode(value).decode()}
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return {TAG: "numpy", "dtype": value.dtype.str, "v": base64.b64encode(value.tobytes()).decode()}
    if type(value) is list:
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if type(value) is tuple:
        return {TAG: "tuple", "v": [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]}
    if type(value) is dict:
        return {TAG: "dict", "v": [[encode(k, f"{where} key"), encode(v, f"{where}[{k!r}]")] for k, v in value.items()]}
    raise ObjectError(f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold")


def decode(value: Any) -> Any:
    """Return the inverse of `encode`. Raises ValueError for an unknown tag."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value.get(TAG):
        case "float":
            return float(value["v"])
        case "int":
            return int(value["v"], 16)
        case "bytes":
            return base64.b64decode(value["v"])
        case "numpy":
            return np.frombuffer(base64.b64decode(value["v"]), np.dtype(value["dtype"]))[0]
        case "tuple":
            return tuple(decode(item) for item in value["v"])
        case "dict":
            return {decode(k): decode(v) for k, v in value["v"]}
        case tag:
            raise ValueError(f"unknown tag {tag!r}")
