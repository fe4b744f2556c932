"""Divides inputs into parts, each of which becomes a shard: by their names and sizes alone, so that the result never differs."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

LINE_FORMATS = (".jsonl", ".ndjson")
COMPRESSIONS = (".gz", ".zst")


class Input(Struct, frozen=True):
    """A file of text, with its size in bytes. If `has_lines`, each line is a document, else the file is one."""

    path: str
    size: int
    has_lines: bool

    @property
    def compression(self) -> str | None:
        return next((suffix for suffix in COMPRESSIONS if self.path.endswith(suffix)), None)

    @property
    def is_json(self) -> bool:
        """Whether lines are JSON objects."""
        return is_json(self.path)


class Span(Struct, frozen=True):
    """The documents of a file that begin at byte `begin` or later, and before `end`."""

    input: Input
    begin: int
    end: int


Part = tuple[Span, ...]


def is_json(path: str) -> bool:
    """Return whether the file's name is one of JSON lines."""
    plain = next((path.removesuffix(suffix) for suffix in COMPRESSIONS if path.endswith(suffix)), path)
    return plain.endswith(LINE_FORMATS)


def divide(inputs: Sequence[Input], part_bytes: int) -> list[Part]:
    """Return the inputs in parts of about `part_bytes`: a larger file of lines is cut, unless it is compressed, and smaller
    files are put together."""
    parts: list[Part] = []
    gathered: list[Span] = []
    size = 0
    for span in (span for each in inputs for span in _spans(each, part_bytes)):
        if gathered and size + span.end - span.begin > part_bytes:
            parts.append(tuple(gathered))
            gathered, size = [], 0
        gathered.append(span)
        size += span.end - span.begin
    return [*parts, tuple(gathered)] if gathered else parts


def _spans(each: Input, part_bytes: int) -> Iterator[Span]:
    if not each.has_lines or each.compression:
        yield Span(each, 0, each.size)
        return
    for begin in range(0, each.size, part_bytes):
        yield Span(each, begin, min(begin + part_bytes, each.size))
