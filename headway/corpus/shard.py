"""Makes one shard: reads the documents of a part, encodes them, writes their tokens and where each ends."""

import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from msgspec import Struct

from headway.corpus.division import Part
from headway.corpus.text import CorpusError, documents
from headway.runner.contract import TOKEN_BYTES, Shard

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Type codes of `array`, which are of these sizes wherever Linux runs.
_CODES = {"uint16": "H", "uint32": "I"}
# Characters that are encoded at once.
_AT_ONCE = 1 << 20


class Settings(Struct, frozen=True):
    """The settings of all shards. `end` is the token after each document."""

    folder: str
    tokenizer: str
    field: str
    dtype: str
    end: int | None


_process: list[tuple[Settings, "Tokenizer"]] = []


def begin_process(settings: Settings) -> None:
    """Load the tokenizer, once for each process, which ends with the one that has started it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    # Each process is one of many already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer  # noqa: PLC0415  of an extra

    tokenizer = Tokenizer.from_file(settings.tokenizer)
    # A document that quotes `<|endoftext|>` does not end there.
    tokenizer.encode_special_tokens = True
    _process[:] = [(settings, tokenizer)]


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def make_shard(name: str, part: Part) -> Shard | CorpusError:
    """Write the shard and return its entry in the index; its files are complete and on disk. A shard without tokens has no files."""
    settings, tokenizer = _process[0]
    try:
        return write_shard(Path(settings.folder), name, settings.dtype, _encoded(part, settings, tokenizer))
    except CorpusError as error:
        return error
    except OSError as error:
        return CorpusError(f"shard {name} cannot be written below `{settings.folder}`: {error.strerror}")


def _encoded(part: Part, settings: Settings, tokenizer: "Tokenizer") -> Iterator[list[int]]:
    """Yield the tokens of each document."""
    end = [] if settings.end is None else [settings.end]
    for batch in _batches(chain.from_iterable(documents(span, settings.field) for span in part)):
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            if encoding.ids:
                yield encoding.ids + end


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def write_shard(folder: Path, name: str, dtype: str, found: Iterator[list[int]]) -> Shard:
    """Write documents, each the list of its tokens, as a shard. Its files appear when they are complete and on disk."""
    return _Writer(folder, name, dtype).write(found)


class _Writer:
    """Writes the two files under other names first, so that each is either complete or absent."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self._dtype, self._name = dtype, name
        self._paths = [folder / f"{name}.{kind}" for kind in ("tokens", "ends")]
        self._hashes = [xxhash.xxh3_128(), xxhash.xxh3_128()]
        self._ends = array("Q")
        self._tokens = self._largest = self._documents = 0

    def write(self, found: Iterator[list[int]]) -> Shard:
        unfinished = [path.with_name(f".{path.name}.unfinished") for path in self._paths]
        with unfinished[0].open("wb") as tokens, unfinished[1].open("wb") as ends:
            for document in found:
                self._put(tokens, 0, array(_CODES[self._dtype], document))
                self._tokens += len(document)
                self._documents += 1
                self._largest = max(self._largest, *document)
                self._ends.append(self._tokens)
                if len(self._ends) >= _AT_ONCE:
                    self._put_ends(ends)
            self._put_ends(ends)
            for file in (tokens, ends):
                file.flush()
                os.fsync(file.fileno())
        for temporary, path in zip(unfinished, self._paths, strict=True):
            if self._tokens:
                temporary.replace(path)
            else:
                temporary.unlink()
        token_hash, end_hash = (each.hexdigest() for each in self._hashes)
        return Shard(self._name, self._tokens, self._documents, self._largest, token_hash, end_hash)

    def _put_ends(self, file: Any) -> None:
        self._put(file, 1, self._ends)
        self._ends = array("Q")

    def _put(self, file: Any, number: int, values: "array[int]") -> None:
        if sys.byteorder == "big":
            values.byteswap()
        raw = values.tobytes()
        self._hashes[number].update(raw)
        file.write(raw)


def dtype_of(vocab_size: int) -> str:
    """Return the smallest type that holds every token."""
    return next(name for name, size in TOKEN_BYTES.items() if vocab_size <= 1 << (8 * size))
