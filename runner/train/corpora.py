"""Reads corpora that `headway prepare` has made: verifies their shards, maps them into memory, and mixes them.

A corpus is one long text: its documents one after the other, in the order of the shards. Sample i of `length` tokens begins at
token i x length; it may begin and end inside of documents, and hold several.
"""

import dataclasses
import json
import socket
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from headway.runner.boot.heartbeat import current
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.contract import INDEX_NAME, CorpusIndex, Mixture, RecordError, RunConfig, from_json
from headway.runner.history import position
from headway.runner.posix import write_atomic
from headway.runner.train.data import DataError, Window
from headway.runner.train.sampler import sample_at

_DTYPES = {"uint16": "<u2", "uint32": "<u4"}
_READ_BYTES = 16 * 1024 * 1024
# Problems and nodes in a message.
_NAMED = 8

Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class CorpusChoice:
    """A corpus that the spec names: the most passes over it are `epochs`."""

    path: str
    weight: float = 1.0
    epochs: int = 1


@dataclass(frozen=True)
class ShardReader:
    """This rank among those that share the work of verifying shards. `verified` is the file in which the first rank notes the
    corpora of which that is done."""

    ranks: Ranks
    local_rank: int
    local_world_size: int
    verified: Path


# --- one corpus -------------------------------------------------------------------------------------------------------


class TokenText:
    """The tokens of one corpus, mapped from its shards: only what is read is in memory."""

    def __init__(self, folder: Path, index: CorpusIndex) -> None:
        self.index = index
        names = [shard.name for shard in index.shards]
        self._tokens: list[Numbers] = [np.memmap(folder / f"{name}.tokens", _DTYPES[index.dtype], "r") for name in names]
        self._ends: list[Numbers] = [np.memmap(folder / f"{name}.ends", "<u8", "r") for name in names]
        # The first token of each shard, and after the last one the number of all.
        self._first = [0, *accumulate(shard.tokens for shard in index.shards)]

    def tokens(self, begin: int, count: int) -> Numbers:
        """Return `count` tokens from token `begin` on: (count,) int64."""
        parts = [self._tokens[shard][part] for shard, part in self._parts(begin, count)]
        return np.concatenate(parts).astype(np.int64)

    def starts(self, begin: int, count: int) -> Numbers:
        """Return, for each of `count` tokens from token `begin` on, the place among them at which its document begins, 0 if it
        begins before: (count,) int64."""
        found: Numbers = np.zeros(count, np.int64)
        for shard, part in self._parts(begin, count):
            ends, place = self._ends[shard], self._first[shard] - begin
            low, high = (int(np.searchsorted(ends, token, "right")) for token in (part.start, part.stop - 1))
            # Where a document ends, the next one begins; a shard begins with one.
            inside = place + np.concatenate(([0], ends[low:high].astype(np.int64)))
            inside = inside[inside >= 0]
            found[inside] = inside
        return np.maximum.accumulate(found)

    def _parts(self, begin: int, count: int) -> Iterator[tuple[int, slice]]:
        """Yield the shards of the tokens, and which of the shard's."""
        shard = bisect_right(self._first, begin) - 1
        while count > 0:
            offset = begin - self._first[shard]
            taken = min(count, self._first[shard + 1] - begin)
            yield shard, slice(offset, offset + taken)
            begin, count, shard = begin + taken, count - taken, shard + 1


@dataclass(frozen=True)
class Corpora:
    """Several corpora, mixed by weight: the place of a sample decides the corpus, and which of its samples."""

    texts: Sequence[TokenText]
    mixture: Mixture
    fingerprint: str
    has_documents: bool

    def at(self, place: int, length: int, seed: int) -> Window:
        """Return the sample at the place of the endless sequence. Each corpus has an order of its own."""
        corpus, earlier = self.mixture.at(place)
        text = self.texts[corpus]
        begin = length * sample_at(earlier, text.index.windows(length), seed + corpus)
        tokens = torch.from_numpy(text.tokens(begin, length + 1))
        return Window(tokens, torch.from_numpy(text.starts(begin, length)) if self.has_documents else None)


# --- opening and verifying --------------------------------------------------------------------------------------------


def open_corpora(config: RunConfig, reader: ShardReader) -> Corpora:
    """Open the job's corpora; collective. Raises DataError on all ranks, with what is wrong with them on any node.

    Every node looks for every file and its size. The hashes are verified as `verify` specifies: `job` divides the files over all
    ranks, once in an attempt; `node` over the ranks of each node, in every generation, for nodes with copies of their own;
    `sizes` skips them.
    """
    assert config.data is not None and config.model is not None and config.batch is not None  # noqa: PT018, S101
    options = config.data.options
    choices = [CorpusChoice(**each) for each in options["corpora"]]
    found: list[CorpusIndex] = []
    problems: list[str] = []
    for each in choices:
        try:
            found.append(read_index(Path(each.path)))
        except DataError as error:
            problems.append(str(error))
    fingerprint = _fingerprint(choices, found)
    _agree([*problems, *([] if problems else _mistakes(config, choices, found))], fingerprint, reader.ranks)
    _verify(choices, found, reader, options["verify"], fingerprint)
    texts = [TokenText(Path(each.path), index) for each, index in zip(choices, found, strict=True)]
    return Corpora(texts, Mixture([each.weight for each in choices]), fingerprint, bool(options["document_mask"]))


def read_index(folder: Path) -> CorpusIndex:
    """Return the index of the corpus. Raises DataError."""
    try:
        index = from_json(CorpusIndex, (folder / INDEX_NAME).read_text())
    except OSError as error:
        raise DataError(f"the corpus `{folder}` has no index `{INDEX_NAME}` that can be read: {error.strerror}") from None
    except (RecordError, UnicodeDecodeError) as error:
        raise DataError(f"the index of the corpus `{folder}` is not from this version of headway: {error}") from None
    if mistakes := index.mistakes():
        raise DataError(f"the index of the corpus `{folder}` is damaged: {mistakes[0]}")
    return index


def _mistakes(config: RunConfig, choices: Sequence[CorpusChoice], found: Sequence[CorpusIndex]) -> Iterator[str]:
    """Yield what makes the corpora unfit for this job."""
    assert config.model is not None and config.batch is not None and config.steps is not None  # noqa: PT018, S101
    steps = config.last_step or config.steps
    length, samples = config.batch.sequence_length, position(config, steps)
    counts = Mixture([each.weight for each in choices]).counts(samples)
    for each, index, count in zip(choices, found, counts, strict=True):
        if index.largest >= config.model.vocab_size:
            yield f"the corpus `{each.path}` has token {index.largest}, the model's `vocab_size` is {config.model.vocab_size}"
        if index.tokenizer != found[0].tokenizer:
            yield f"the corpora `{choices[0].path}` and `{each.path}` are of different tokenizers"
        windows = index.windows(length)
        if count > windows * each.epochs:
            yield (
                f"the corpus `{each.path}` has {windows:,} samples of {length:,} tokens, but {steps:,} steps take {count:,} "
                f"of it, with `epochs: {each.epochs}`"
            )


def _verify(
    choices: Sequence[CorpusChoice], found: Sequence[CorpusIndex], reader: ShardReader, verify: str, fingerprint: str
) -> None:
    """Raise DataError on all ranks for files that differ from the index, on any node."""
    is_due = verify == "node"
    if verify == "job":
        # The first rank decides for all: a file may appear on other nodes later.
        is_done = reader.ranks.rank == 0 and reader.verified.exists() and reader.verified.read_text() == json.dumps(fingerprint)
        is_due = reader.ranks.gather(bytes([not is_done]))[0] == bytes([1])
    _agree([*_damage(choices, found, reader, verify, is_due=is_due)], fingerprint, reader.ranks)
    if is_due and verify == "job" and reader.ranks.rank == 0:
        write_atomic(reader.verified, json.dumps(fingerprint).encode())


def _damage(
    choices: Sequence[CorpusChoice], found: Sequence[CorpusIndex], reader: ShardReader, verify: str, *, is_due: bool
) -> Iterator[str]:
    """Yield the files of this rank's part that differ from the index; their contents are compared if that `is_due`."""
    rank, ranks = (
        (reader.ranks.rank, reader.ranks.world_size) if verify == "job" else (reader.local_rank, reader.local_world_size)
    )
    files = (
        (Path(each.path) / name, size, shard.hashes[name])
        for each, index in zip(choices, found, strict=True)
        for shard in index.shards
        for name, size in shard.sizes(index.dtype).items()
    )
    for number, (file, size, expected) in enumerate(files):
        is_hashed = is_due and number % ranks == rank
        if not (is_hashed or number % reader.local_world_size == reader.local_rank):
            continue
        problem = _of_size(file, size)
        if problem is None and is_hashed:
            problem = _of_content(file, size, expected)
        if problem is not None:
            yield problem


def _of_size(file: Path, size: int) -> str | None:
    try:
        found = file.stat().st_size
    except OSError as error:
        return f"`{file}` cannot be read: {error.strerror}"
    return None if found == size else f"`{file}` has {found:,} bytes, not the {size:,} of the index"


def _of_content(file: Path, size: int, expected: str) -> str | None:
    digest = xxhash.xxh3_128()
    try:
        with file.open("rb", buffering=0) as stream:
            while raw := stream.read(_READ_BYTES):
                digest.update(raw)
                if (signs := current()) is not None:
                    signs.pulse()
    except OSError as error:
        return f"`{file}` cannot be read: {error.strerror}"
    return None if digest.hexdigest() == expected else f"`{file}` has {size:,} bytes, but not those of the index"


def _agree(problems: Iterable[str], fingerprint: str, ranks: Ranks) -> None:
    """Raise the same DataError on all ranks if any has a problem, or another corpus than the others."""
    said = {"node": socket.gethostname(), "problems": list(problems), "fingerprint": fingerprint}
    heard = [json.loads(raw) for raw in ranks.gather_any(json.dumps(said).encode())]
    nodes: dict[str, list[str]] = {}
    for each in heard:
        for problem in each["problems"]:
            if each["node"] not in nodes.setdefault(problem, []):
                nodes[problem].append(each["node"])
    if nodes:
        lines = [f"{problem} (on {_listed(nodes[problem])})" for problem in sorted(nodes)[:_NAMED]]
        if len(nodes) > _NAMED:
            lines.append(f"and {len(nodes) - _NAMED:,} more")
        raise DataError("; ".join(lines))
    if len({each["fingerprint"] for each in heard}) > 1:
        other = next(each["node"] for each in heard if each["fingerprint"] != heard[0]["fingerprint"])
        raise DataError(f"the corpora of {heard[0]['node']} and {other} differ: copy one of them to all nodes")


def _listed(nodes: Sequence[str]) -> str:
    rest = f" and {len(nodes) - _NAMED:,} more nodes" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + rest


def _fingerprint(choices: Sequence[CorpusChoice], found: Sequence[CorpusIndex]) -> str:
    """Return a hash over all tokens, documents' ends and weights; where the corpora are and from which inputs does not count."""
    content = [[dataclasses.astuple(shard)[1:] for shard in index.shards] for index in found]
    shares = Mixture([each.weight for each in choices]).shares
    return xxhash.xxh3_128_hexdigest(json.dumps([content, shares]).encode())
