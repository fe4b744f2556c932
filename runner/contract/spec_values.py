"""Names the values of a job's spec that run.json has too, so that a file with both holds each of them once."""

import copy
import json
import types
from collections.abc import Iterator, Mapping
from typing import Any

# A place in JSON: keys, and the numbers of a list's items.
_Place = tuple[str | int, ...]

# Name in the spec -> name in run.json; `*` is every key, or every item of a list, the same on both sides.
SHARED: Mapping[str, str] = types.MappingProxyType(
    {
        "batch.global.sequences": "batch.global_sequences",
        "batch.micro": "batch.micro_sequences",
        "batch.sequence": "batch.sequence_length",
        "checkpoint.host_memory": "checkpoint.host_memory_bytes",
        "checkpoint.tiers.*.every.seconds": "checkpoint.tiers.*.every_s",
        "checkpoint.tiers.*.every.steps": "checkpoint.tiers.*.every_steps",
        "checkpoint.tiers.*.keep": "checkpoint.tiers.*.keep",
        "checkpoint.tiers.*.kind": "checkpoint.tiers.*.kind",
        "checkpoint.tiers.*.url": "checkpoint.tiers.*.url",
        "compile": "trainer.options.compile",
        "data.kind": "data.kind",
        "data.options.paths": "data.options.paths",
        "history.*.from_step": "history.*.from_step",
        "history.*.rollback_to": "history.*.rollback_to",
        "history.*.set": "history.*.set",
        "history.*.skip_samples": "history.*.skip_samples",
        "layout.cp": "mesh.cp",
        "layout.dp_replicate": "mesh.dp_replicate",
        "layout.dp_shard": "mesh.dp_shard",
        "layout.pp": "mesh.pp",
        "layout.schedule": "trainer.options.schedule",
        "layout.sequence_parallel": "trainer.options.sequence_parallel",
        "layout.sharding": "trainer.options.sharding",
        "layout.tp": "mesh.tp",
        "layout.virtual_stages": "trainer.options.virtual_stages",
        "model.*": "model.*",
        "nodes": "slots",
        "optimizer.*": "optimizer.*",
        "overlap.parameters": "trainer.options.prefetch",
        "precision.compute": "trainer.options.compute",
        "precision.parameters": "trainer.options.parameters",
        "precision.reduce": "trainer.options.reduce",
        "recompute": "trainer.options.recompute",
        "resilience.corruption.compare.*": "corruption.compare.*",
        "resilience.corruption.grad_norm_factor": "corruption.grad_norm_factor",
        "resilience.corruption.replay.*": "corruption.replay.*",
        "resilience.grace": "grace_s",
        "resilience.notify.webhook_env": "notify.webhook_env",
        "resilience.restart.*": "restart.*",
        "resilience.spares": "spares",
        "resilience.timeouts.*": "timeouts.*.floor_s",
        "seed": "seed",
        "steps": "steps",
        "trainer.kind": "trainer.kind",
        "trainer.options.argv": "trainer.options.argv",
    }
)


def without_shared(spec: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec without the values that run.json has; `with_shared` adds them again.

    A value that is another one there, such as a degree that the plan has decided, stays. `spec` and `run` are parsed JSON.
    """
    rest = copy.deepcopy(dict(spec))
    for place, value in _shared(run):
        owners = list(_owners(rest, place))
        if len(owners) < len(place) or not isinstance(owners[-1], dict) or place[-1] not in owners[-1]:
            continue
        if not _same(owners[-1][place[-1]], value):
            continue
        del owners[-1][place[-1]]
        # A section that has become empty goes too, but not an item of a list.
        for owner, key in zip(reversed(owners[:-1]), reversed(place[:-1]), strict=True):
            if not isinstance(owner, dict) or owner[key]:
                break
            del owner[key]
    return rest


def with_shared(rest: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole spec from the result of `without_shared`; a whole spec is returned unchanged."""
    spec = copy.deepcopy(dict(rest))
    # A framework's job runs as a script, whose arguments its spec does not have. The kind is left out where it is the same.
    runs_as = run.get("trainer", {}).get("kind")
    is_framework = (spec.get("trainer") or {}).get("kind", runs_as) != runs_as
    for place, value in _shared(run):
        if is_framework and place[:2] == ("trainer", "options"):
            continue
        owner: Any = spec
        for key in place[:-1]:
            owner = owner.setdefault(key, {}) if isinstance(owner, dict) else _item(owner, key)
        if isinstance(owner, dict):
            owner.setdefault(place[-1], value)
    return spec


def _shared(run: Mapping[str, Any]) -> Iterator[tuple[_Place, Any]]:
    """Yield the place in the spec and the value of everything in run.json that a spec may have too."""
    for name, other in SHARED.items():
        for keys, value in _found(run, other.split("."), ()):
            filled = iter(keys)
            yield tuple(next(filled) if key == "*" else key for key in name.split(".")), value


def _found(value: Any, names: list[str], keys: _Place) -> Iterator[tuple[_Place, Any]]:
    """Yield the key or number of each `*` on the way to a value, and the value."""
    if not names:
        yield keys, value
    elif names[0] == "*" and isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _found(value[key], names[1:], (*keys, key))
    elif isinstance(value, dict) and names[0] in value:
        yield from _found(value[names[0]], names[1:], keys)


def _owners(spec: Any, place: _Place) -> Iterator[Any]:
    """Yield the spec, then each section on the way to the place, as far as they exist."""
    for key in place:
        if spec is None:
            return
        yield spec
        spec = spec.get(key) if isinstance(spec, dict) else _item(spec, key)


def _item(value: Any, key: str | int) -> Any:
    return value[key] if isinstance(value, list) and isinstance(key, int) and key < len(value) else None


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: 1, 1.0 and true differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
