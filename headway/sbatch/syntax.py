"""Parses shell scripts with tree-sitter's grammar of bash, which reads arrays, tests and here-documents, and continues behind mistakes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Script:
    """A parsed script, or a part of one: `first_line` is the line where it begins in its file, and `is_inside` that its lines are not the
    file's (the text behind `bash -c`)."""

    content: bytes
    root: "Node"
    first_line: int = 1
    is_inside: bool = False
    file: str = ""

    def text(self, node: "Node") -> str:
        return self.content[node.start_byte : node.end_byte].decode(errors="replace")

    def line(self, node: "Node") -> int:
        return self.first_line if self.is_inside else node.start_point.row + self.first_line


def parse(source: str, first_line: int = 1, is_inside: bool = False, file: str = "") -> Script:
    """Parse a script. Raises ImportError without the extra `sbatch`."""
    import tree_sitter_bash  # noqa: PLC0415 (an extra)
    from tree_sitter import Language, Parser  # noqa: PLC0415 (an extra)

    content = source.encode()
    return Script(content, Parser(Language(tree_sitter_bash.language())).parse(content).root_node, first_line, is_inside, file)


def below(node: "Node", *kinds: str) -> Iterator["Node"]:
    """Yield the nodes of these kinds below it, and itself."""
    if node.type in kinds:
        yield node
    for child in node.named_children:
        yield from below(child, *kinds)
