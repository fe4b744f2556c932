"""Reads the variables of a Kubernetes manifest's containers, in any kind of object.

The text is read by its events and bounded while it is read: PyYAML's C composer crashes the process on some 100,000 nested brackets.
"""

from collections.abc import Iterator, Mapping

import yaml
from msgspec import Struct

from headway.templates.reading import Setting

_MAX_DEPTH = 64


class _Scalar(Struct, frozen=True):
    text: str
    line: int


_Node = _Scalar | dict[str, "_Node"] | list["_Node"] | None


def containers(text: str) -> Iterator[tuple[str, dict[str, Setting]]]:
    """Yield the name and the `env` of every container that has one; ValueError, with the line, if the text is not YAML."""
    for mapping in _mappings(_documents(text)):
        environment, name = mapping.get("env"), mapping.get("name")
        if isinstance(environment, list):
            yield (name.text if isinstance(name, _Scalar) else ""), dict(_variables(environment))


class Pod(Struct, frozen=True):
    """A pod's rights and containers. `annotations` are the names of its annotations; `containers` those with an `env`."""

    line: int
    has_host_network: bool
    dns_policy: str
    annotations: frozenset[str]
    host_paths: frozenset[str]
    containers: tuple["PodContainer", ...]


class PodContainer(Struct, frozen=True):
    """`resources` are the names in its limits and requests."""

    name: str
    line: int
    variables: Mapping[str, Setting]
    capabilities: frozenset[str]
    is_privileged: bool
    resources: frozenset[str]


def pods(text: str) -> Iterator[Pod]:
    """Yield the pods and pod templates of the manifest, in the order of the text; ValueError as for `containers`."""
    for mapping in _mappings(_documents(text)):
        spec = mapping.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            annotations = _at(mapping, "metadata", "annotations")
            volumes = _items(spec.get("volumes"))
            yield Pod(
                min((each.line for each in spec.values() if isinstance(each, _Scalar)), default=1),
                _text(spec.get("hostNetwork")) == "true",
                _text(spec.get("dnsPolicy")),
                frozenset(annotations) if isinstance(annotations, dict) else frozenset(),
                frozenset(path for each in volumes if (path := _text(_at(each, "hostPath", "path")))),
                tuple(map(_container, _items(spec.get("containers")))),
            )


def _container(item: dict[str, _Node]) -> PodContainer:
    name, environment, capabilities = item.get("name"), item.get("env"), _at(item, "securityContext", "capabilities", "add")
    resources = [_at(item, "resources", kind) for kind in ("limits", "requests")]
    return PodContainer(
        _text(name),
        name.line if isinstance(name, _Scalar) else 1,
        dict(_variables(environment)) if isinstance(environment, list) else {},
        frozenset(_text(each).removeprefix("CAP_") for each in capabilities) if isinstance(capabilities, list) else frozenset(),
        _text(_at(item, "securityContext", "privileged")) == "true",
        frozenset(each for rows in resources if isinstance(rows, dict) for each in rows),
    )


def _at(node: _Node, *path: str) -> _Node:
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _items(node: _Node) -> list[dict[str, _Node]]:
    return [each for each in node if isinstance(each, dict)] if isinstance(node, list) else []


def _text(node: _Node) -> str:
    return node.text if isinstance(node, _Scalar) else ""


def _mappings(nodes: list[_Node]) -> Iterator[dict[str, _Node]]:
    """Yield all of them, in the order of the text; an alias's target once."""
    waiting, seen = nodes[::-1], set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or isinstance(node, _Scalar) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            yield node
            node = list(node.values())
        waiting += node[::-1]


def _variables(environment: list[_Node]) -> Iterator[tuple[str, Setting]]:
    """Yield variables. One whose value comes from elsewhere has the name of that place, for example
    `valueFrom.configMapKeyRef`."""
    for item in environment:
        name = item.get("name") if isinstance(item, dict) else None
        if isinstance(item, dict) and isinstance(name, _Scalar):
            value, elsewhere = item.get("value"), item.get("valueFrom")
            if isinstance(elsewhere, dict):
                yield name.text, Setting(".".join(("valueFrom", *elsewhere)), name.line)
            elif isinstance(value, _Scalar):
                yield name.text, Setting(value.text, value.line)
            else:
                yield name.text, Setting("", name.line)


def _documents(text: str) -> list[_Node]:
    try:
        return list(_Reader(text).documents())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None)
        raise ValueError(
            f"line {mark.line + 1 if mark else 1}: not YAML: {reason or 'a character that YAML does not allow'}"
        ) from error


class _Reader:
    """One pass over the events of one text."""

    def __init__(self, text: str) -> None:
        # libyaml takes UTF-8, which has no room for half a surrogate pair
        self._events: Iterator[yaml.Event] = yaml.parse(text.encode("utf-8", "replace").decode(), Loader=yaml.CSafeLoader)
        self._anchors: dict[str, _Node] = {}

    def documents(self) -> Iterator[_Node]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                yield self._node(next(self._events), 0)

    def _node(self, event: yaml.Event, depth: int) -> _Node:
        line = event.start_mark.line + 1 if event.start_mark else 1
        if depth > _MAX_DEPTH:
            raise ValueError(f"line {line}: nested deeper than {_MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._anchors.get(event.anchor or "")
        node = self._new_node(event, depth, line)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _new_node(self, event: yaml.Event, depth: int, line: int) -> _Node:
        if isinstance(event, yaml.ScalarEvent):
            return _Scalar(event.value, line)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[_Node] = []
            while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
                items.append(self._node(item, depth + 1))
            return items
        fields: dict[str, _Node] = {}
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            name = self._node(key, depth + 1)
            value = self._node(next(self._events), depth + 1)
            if isinstance(name, _Scalar):
                fields[name.text] = value
        return fields
