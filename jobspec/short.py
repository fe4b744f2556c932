"""Writes out the short forms of a job: `run` in place of a trainer of kind `script`, and `nodes: {min, max}`."""

from msgspec.structs import replace

from headway.jobspec.document import Document, Path

_RUN: Path = ("run",)
_TRAINER: Path = ("trainer",)
_FEWEST: Path = ("min_nodes",)
# The key of the `min_nodes` that `with_node_range` has replaced.
_TWICE: Path = ("nodes", "min_nodes")
_ARGV: Path = (*_TRAINER, "options", "argv")


def with_trainer(document: Document) -> Document:
    """Return the job with the trainer that its `run` is short for; all of it has the positions of `run`.

    Of a `run` and a `trainer` of which a base has one, the heir's counts. A `run` of the wrong form, or in addition to the same
    document's `trainer`, is left to the reader of the spec.
    """
    if not isinstance(document.data, dict) or not _is_argv(document.value(_RUN)):
        return document
    if _TRAINER in document.values:
        of_run, of_trainer = document.origin(_RUN), document.origin(_TRAINER)
        if of_run is of_trainer:
            return document
        if of_trainer is document:
            return replace(document, data={key: value for key, value in document.data.items() if key != "run"})
    below = {path for path in document.values if path[:1] == _TRAINER}
    data = {**document.data, "trainer": {"kind": "script", "options": {"argv": document.data["run"]}}}
    parts = (_TRAINER, (*_TRAINER, "kind"), (*_TRAINER, "options"), _ARGV)
    items = {(*_ARGV, *path[1:]): path for path in document.values if path[:1] == _RUN and len(path) > 1}
    values = {path: span for path, span in document.values.items() if path not in below}
    keys = {path: span for path, span in document.keys.items() if path[:1] != _TRAINER}
    values |= dict.fromkeys(parts, document.values[_RUN]) | {path: document.values[at] for path, at in items.items()}
    keys |= {part: document.keys[_RUN] for part in parts if _RUN in document.keys}
    scalars = (document.scalars - below) | {path for path, at in items.items() if at in document.scalars}
    origins = {path: base for path, base in document.origins.items() if path[:1] != _TRAINER}
    origins |= {(*_ARGV, *path[1:]): base for path, base in document.origins.items() if path[:1] == _RUN}
    if _RUN in document.origins:
        origins[_TRAINER] = document.origins[_RUN]
    return replace(document, data=data, keys=keys, values=values, scalars=frozenset(scalars), origins=origins)


def with_node_range(document: Document) -> Document:
    """Return the job with `nodes` and `min_nodes` in the place of `nodes: {min, max}`; any other form is left to the reader."""
    data = document.data
    given = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(given, dict) or set(given) != {"min", "max"}:
        return document
    values, keys = dict(document.values), dict(document.keys)
    if _is_twice(document):
        # The reader reports it, at the place of the second.
        keys[_TWICE], values[_TWICE] = keys[_FEWEST], values[_FEWEST]
    for name, part in (("min_nodes", "min"), ("nodes", "max")):
        values[name,] = document.values["nodes", part]
        keys[name,] = document.keys["nodes", part]
    scalars = document.scalars | {("nodes",), ("min_nodes",)}
    origins = dict(document.origins)
    if ("nodes",) in origins:
        origins["min_nodes",] = origins["nodes",]
    found = {**data, "nodes": given["max"], "min_nodes": given["min"]}
    return replace(document, data=found, values=values, keys=keys, scalars=scalars, origins=origins)


def _is_twice(document: Document) -> bool:
    """Return whether one document has the fewest nodes in `nodes` and in `min_nodes`; of a base and its heir, `nodes` counts."""
    return _FEWEST in document.keys and document.origin(_FEWEST) is document.origin(("nodes",))


def fewest_twice(document: Document) -> bool:
    """Return whether the document had `min_nodes` in addition to `nodes: {min, max}`, of which `with_node_range` has kept the latter."""
    return _TWICE in document.keys


def has_two_programs(document: Document) -> bool:
    """Return whether one document has both a `run` and a `trainer`, so that `with_trainer` has not replaced either."""
    return document.value(_RUN) is not None and document.keys.get(_TRAINER) not in (None, document.keys.get(_RUN))


def is_unclear(document: Document) -> bool:
    """Return whether the document runs a program of its own and does not name it: `run` has the wrong form, or there is a `trainer` too."""
    given = document.value(_RUN)
    return given is not None and (not _is_argv(given) or has_two_programs(document))


def _is_argv(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)
