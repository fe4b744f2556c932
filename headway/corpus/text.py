"""Reads documents: files of text, lines of text, or a field of JSON lines, plain or compressed."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from headway.corpus.division import Span


class CorpusError(Exception):
    """Inputs that no corpus can be made of, or a folder that is in use; the message has the remedy."""


def documents(span: Span, field: str) -> Iterator[str]:
    """Yield the documents of the span, without empty ones. Raises CorpusError for an input that is not text, by file and place."""
    path = span.input.path
    try:
        with _opened(span) as file:
            if not span.input.has_lines:
                yield from filter(None, [_text(file.read(), path, 0)])
                return
            for place, line in _lines(file, span):
                text = _of_json(line, path, place, field) if span.input.is_json else _text(line, path, place)
                if text:
                    yield text
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"`{path}` cannot be read: {error}") from None


def _opened(span: Span) -> BinaryIO:
    path = Path(span.input.path)
    match span.input.compression:
        case ".gz":
            return cast("BinaryIO", gzip.open(path, "rb"))
        case ".zst":
            import zstandard  # noqa: PLC0415  of an extra

            return io.BufferedReader(_Whole(zstandard.ZstdDecompressor().stream_reader(path.open("rb"), closefd=True), span))
    return path.open("rb")


class _Whole(io.RawIOBase):
    """A decompressed stream, whose errors are those of reading a file."""

    def __init__(self, stream: BinaryIO, span: Span) -> None:
        self._stream, self._span = stream, span

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        import zstandard  # noqa: PLC0415

        view = memoryview(cast("bytearray", buffer))
        try:
            found = self._stream.read(len(view))
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        view[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _lines(file: BinaryIO, span: Span) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin in the span, each with the byte at which it begins, without their ends."""
    place = span.begin
    if place and not span.input.compression:
        # The line that holds the byte before belongs to the span before.
        file.seek(place - 1)
        place += len(file.readline()) - 1
    is_cut = not span.input.compression
    while not (is_cut and place >= span.end):
        line = file.readline()
        if not line:
            return
        yield place, line.rstrip(b"\r\n")
        place += len(line)


def _text(raw: bytes, path: str, place: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(f"`{path}`, byte {place + error.start:,}: not UTF-8; convert the file") from None


def _of_json(line: bytes, path: str, place: int, field: str) -> str:
    if not line.strip():
        return ""
    where = f"`{path}`, the line at byte {place:,}"
    try:
        found = json.loads(line)
    except ValueError as error:
        raise CorpusError(f"{where} is not JSON: {error}") from None
    text = found.get(field) if isinstance(found, dict) else None
    if not isinstance(text, str):
        names = ", ".join(f"`{name}`" for name in found) if isinstance(found, dict) else type(found).__name__
        raise CorpusError(f"{where} has no text in `{field}`, but {names}; name the field with `--field`")
    # JSON may hold half of a surrogate pair, which is no character.
    return text.encode("utf-8", "replace").decode()
