"""Parses shell scripts with tree-sitter's grammar of bash, which reads arrays, tests and here-documents, and continues behind mistakes."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from tree_sitter import Node

_NAME = re.compile(rb"[A-Za-z_]\w*")


class Script(Struct, frozen=True):
    """A parsed script, or a part of one: `first_line` is the line where it begins in its file, and `is_inside` that its lines are not the
    file's (the text behind `bash -c`). `source` is the script as it was given."""

    content: bytes
    root: "Node"
    first_line: int = 1
    is_inside: bool = False
    file: str = ""
    source: str = ""

    def text(self, node: "Node") -> str:
        return self.content[node.start_byte : node.end_byte].decode(errors="replace")

    def line(self, node: "Node") -> int:
        return self.first_line if self.is_inside else node.start_point.row + self.first_line


def parse(source: str, first_line: int = 1, is_inside: bool = False, file: str = "") -> Script:
    """Parse a script. Raises ImportError without the extra `sbatch`."""
    import tree_sitter_bash  # noqa: PLC0415 (an extra)
    from tree_sitter import Language, Parser  # noqa: PLC0415 (an extra)

    parser, content = Parser(Language(tree_sitter_bash.language())), source.encode()
    root = parser.parse(content).root_node
    # The grammar (0.25) ends `A=$B/c/$D/e` behind the second `$`, and takes the rest for a command; it reads `${D}` there.
    while (at := _torn(root, content)) is not None:
        name = _NAME.match(content, at + 1)
        if name is None:
            break
        content = content[:at] + b"${" + name[0] + b"}" + content[name.end() :]
        root = parser.parse(content).root_node
    return Script(content, root, first_line, is_inside, file, source)


def _torn(node: "Node", content: bytes) -> int | None:
    """Return the place of a `$` that the grammar has not joined with the name behind it."""
    if node.type == "$" and node.parent is not None and node.parent.type not in ("simple_expansion", "string"):
        at = node.end_byte - 1
        return at if content[at : at + 1] == b"$" and _NAME.match(content, at + 1) else None
    return next((found for child in node.children if (found := _torn(child, content)) is not None), None)


def below(node: "Node", *kinds: str) -> Iterator["Node"]:
    """Yield the nodes of these kinds below it, and itself."""
    if node.type in kinds:
        yield node
    for child in node.named_children:
        yield from below(child, *kinds)
