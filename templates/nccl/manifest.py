"""Reads the variables of a Kubernetes manifest's containers, in any kind of object.

The text is read by its events and bounded while it is read: PyYAML's C composer crashes the process on some 100,000 nested brackets.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from headway.templates.reading import Setting

_MAX_DEPTH = 64


@dataclass(frozen=True)
class _Scalar:
    text: str
    line: int


_Node = _Scalar | dict[str, "_Node"] | list["_Node"] | None


def containers(text: str) -> Iterator[tuple[str, dict[str, Setting]]]:
    """Yield the name and the `env` of every container that has one; ValueError, with the line, if the text is not YAML."""
    for mapping in _mappings(_documents(text)):
        environment, name = mapping.get("env"), mapping.get("name")
        if isinstance(environment, list):
            yield (name.text if isinstance(name, _Scalar) else ""), dict(_variables(environment))


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
