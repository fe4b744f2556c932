"""Lists the differences between two checkpoints of any origin."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import xxhash

from headway.runner.checkpoint.interop.archive import Archive, Described


@dataclass(frozen=True)
class CheckpointDifference:
    """A difference between two checkpoints. `kind`: added, removed, changed (dtype or shape), values, object.

    For values: the largest absolute difference (null where it is not finite), and how many of the elements are equal;
    two NaN are equal.
    """

    kind: str
    name: str
    old: str | None = None
    new: str | None = None
    max_abs: float | None = None
    equal: int | None = None
    elements: int | None = None


def compare(old: Archive, new: Archive) -> Iterator[CheckpointDifference]:
    """Yield differences of tensors by name, then of objects by path; nothing for bitwise equal ones."""
    before, after = old.tensors(), new.tensors()
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            yield CheckpointDifference("removed", name, old=str(before[name]))
        elif name not in before:
            yield CheckpointDifference("added", name, new=str(after[name]))
        elif before[name] != after[name]:
            yield CheckpointDifference("changed", name, str(before[name]), str(after[name]))
        elif (found := _values(name, before[name], old.tensor(name), new.tensor(name))) is not None:
            yield found
    yield from _objects("objects", old.objects(), new.objects())


def _values(name: str, described: Described, old: torch.Tensor, new: torch.Tensor) -> CheckpointDifference | None:
    if torch.equal(old.reshape(-1).view(torch.uint8), new.reshape(-1).view(torch.uint8)):
        return None
    wide = torch.complex128 if old.is_complex() else torch.float64
    one, other = (tensor.to(wide) for tensor in (old, new))
    differ = (one != other) & ~(one.isnan() & other.isnan())
    apart = (one - other).abs()[differ]
    largest = float(apart.max()) if apart.numel() else 0.0
    shown, equal = str(described), int((~differ).sum())
    return CheckpointDifference(
        "values", name, shown, shown, largest if math.isfinite(largest) else None, equal, prod(described.shape)
    )


def _objects(where: str, old: Any, new: Any) -> Iterator[CheckpointDifference]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            place = f"{where}.{key}"
            if key not in new:
                yield CheckpointDifference("object", place, old=_shown(old[key]))
            elif key not in old:
                yield CheckpointDifference("object", place, new=_shown(new[key]))
            else:
                yield from _objects(place, old[key], new[key])
    elif isinstance(old, list | tuple) and type(old) is type(new) and len(old) == len(new) and len(old) <= 64:
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _objects(f"{where}[{index}]", one, other)
    elif type(old) is not type(new) or repr(old) != repr(new):
        yield CheckpointDifference("object", where, _shown(old), _shown(new))


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes, xxh3_64 {xxhash.xxh3_64_hexdigest(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
