"""Reads and writes NVUE's trees: YAML of `nv set` paths, in which a base's scalars keep the form that NVUE gave them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from headway.templates.natural import natural

Tree = dict[str, Any]

MOST_DEPTH = 32
# Words and addresses that YAML takes for texts as they are.
_PLAIN = re.compile(
    r"(?!(?:on|off|yes|no|true|false|null|y|n)$)[A-Za-z][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*|\d+[GMx]|\d+\.\d+\.\d+\.\d+(?:/\d+)?",
    re.I,
)


class Literal(str):
    """A scalar as it is in the base: `on` stays `on`."""

    __slots__ = ()


def read_tree(text: str) -> Tree:
    """Return what a startup.yaml sets; ValueError, with the line, for other text."""
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"line {mark.line + 1 if mark else 1}: not YAML: {getattr(error, 'problem', None)}") from error
    except RecursionError as error:
        raise ValueError("line 1: nested too deep for a configuration of NVUE") from error
    found: Tree = {}
    parts = [
        value
        for item in (root.value if isinstance(root, yaml.SequenceNode) else ())
        for key, value in (item.value if isinstance(item, yaml.MappingNode) else ())
        if key.value == "set"
    ]
    if not parts:
        raise ValueError("line 1: no YAML list with a `set`, as NVUE writes it")
    for part in parts:
        value = _value(part, 0)
        if not isinstance(value, dict):
            raise ValueError(f"line {part.start_mark.line + 1}: `set` is not a tree")
        found = joined(found, value)
    return found


def _value(node: yaml.Node, depth: int) -> Any:
    line = node.start_mark.line + 1
    if depth > MOST_DEPTH:
        raise ValueError(f"line {line}: nested deeper than {MOST_DEPTH} levels")
    if isinstance(node, yaml.MappingNode):
        return {_scalar(key): _value(value, depth + 1) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        raise ValueError(f"line {line}: a list, which NVUE's trees do not have")
    return _scalar(node)


def _scalar(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"line {node.start_mark.line + 1}: a key that is not a word")
    # The C parser gives a plain scalar the style ``.
    return Literal(json.dumps(node.value) if node.style else node.value)


def members(word: str) -> Iterator[str]:
    """Yield what a list or range of names means: `swp1-2,swp5`, `swp1s0-3`, `24-31`."""
    start = ""
    for part in word.split(","):
        found = re.fullmatch(r"(.*?)(\d+)-(\d+)", part)
        if found and int(found[3]) - int(found[2]) in range(1024):
            start = found[1] or start
            yield from (f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1))
        else:
            yield part


def joined(tree: Mapping[str, Any], other: Mapping[str, Any]) -> Tree:
    """Return both trees in one; where both have a value, the other's counts."""
    found = dict(tree)
    for key, value in other.items():
        mine = found.get(key)
        found[key] = joined(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return found


def tree_text(tree: Mapping[str, Any], comments: tuple[str, ...]) -> str:
    """Return the tree as a startup.yaml, its keys in natural order. Raises ValueError for a comment of several lines."""
    if any(len(comment.splitlines()) > 1 for comment in comments):
        raise ValueError(f"a comment of several lines: {comments!r}")
    return "\n".join((*(f"# {comment}" for comment in comments), "- set:", *_lines(tree, "    "))) + "\n"


def _lines(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key in sorted(tree, key=natural):
        value = tree[key]
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_text(key)}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{_text(key)}: {{}}" if isinstance(value, Mapping) else f"{indent}{_text(key)}: {_text(value)}"


def _text(value: object) -> str:
    if isinstance(value, (Literal, int)) or (isinstance(value, str) and _PLAIN.fullmatch(value)):
        return str(value)
    return json.dumps(str(value))
