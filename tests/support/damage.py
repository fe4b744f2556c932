"""Damages stored checkpoints: each damage is drawn at random and undone after it was examined."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headway.runner.checkpoint.chain import Chain, Commit
from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.sources import DirectorySource
from headway.runner.checkpoint.stores import open_store
from headway.runner.contract import Base

Contents = Mapping[Path, bytes | None]


class Checkpoint:
    """A committed checkpoint in its directory, and its original state: its files, and their contents.

    `chunks`: where chunks are in the data files; the bytes between them are padding.
    """

    def __init__(self, directory: Path, run: str, base: Base) -> None:
        self.directory, self.run, self.base = directory, run, base
        self.files: dict[Path, bytes] = {path: path.read_bytes() for path in sorted(directory.iterdir())}
        self.held = self.read()
        self.chunks: dict[Path, list[slice]] = {}
        for entry in (entry for part in self._reader().parts() for entry in part.tensors.values()):
            for chunk in entry.chunks:
                self.chunks.setdefault(directory / chunk.file, []).append(slice(chunk.offset, chunk.offset + chunk.length))

    def _reader(self) -> Reader:
        return Reader(DirectorySource(self.directory), self.run, self.base)

    def read(self) -> dict[str, object]:
        """Everything in it: objects by rank, chunks by tensor, box and the rank that wrote them. Raises RefusedError."""
        reader, found = self._reader(), dict[str, object]()
        for part in reader.parts():
            found[f"objects {part.rank}"] = reader.objects(part.rank)
            chunks = ((name, chunk) for name, entry in part.tensors.items() for chunk in entry.chunks)
            found |= {f"{name} {chunk.box} {part.rank}": bytes(reader.chunk(name, chunk)) for name, chunk in chunks}
        return found

    def touched(self, contents: Contents) -> set[str]:
        """The names of its files that differ from their commit; padding does not count."""
        return {
            path.name for path, now in contents.items() if path in self.files and self._content(path, now) != self._content(path)
        }

    def _content(self, path: Path, *now: bytes | None) -> object:
        raw = now[0] if now else self.files[path]
        return raw if raw is None or path not in self.chunks else [raw[at] for at in self.chunks[path]]


def stored(root: Path) -> list[Checkpoint]:
    """The run's committed checkpoints, by step and generation."""
    records = Chain(open_store(str(root / "shared/chain")), root.name).read()
    bases = [
        Base(record.entry.step, record.generation, record.entry.manifest_xxh3_128)
        for record in records
        if isinstance(record.entry, Commit)
    ]
    found = (Checkpoint(root / "shared/checkpoints" / base.checkpoint.directory, root.name, base) for base in bases)
    return sorted(found, key=lambda checkpoint: checkpoint.base.checkpoint)


# --- kinds of damage --------------------------------------------------------------------------------------------------

Damage = Callable[[random.Random, list[Checkpoint]], Contents]


def flipped_bit(draw: random.Random, checkpoints: list[Checkpoint]) -> Contents:
    path, raw = _file(draw, checkpoints)
    at = draw.randrange(8 * len(raw))
    return {path: raw[: at // 8] + bytes([raw[at // 8] ^ (1 << at % 8)]) + raw[at // 8 + 1 :]}


def zeroed_block(draw: random.Random, checkpoints: list[Checkpoint]) -> Contents:
    """The result of a lost write."""
    path, raw = _file(draw, checkpoints)
    begin = draw.randrange(len(raw)) // 512 * 512
    end = min(begin + draw.choice((512, 4096)), len(raw))
    return {path: raw[:begin] + bytes(end - begin) + raw[end:]}


def truncated(draw: random.Random, checkpoints: list[Checkpoint]) -> Contents:
    path, raw = _file(draw, checkpoints)
    return {path: raw[: draw.randrange(len(raw))]}


def deleted(draw: random.Random, checkpoints: list[Checkpoint]) -> Contents:
    return {_file(draw, checkpoints)[0]: None}


def swapped_steps(draw: random.Random, checkpoints: list[Checkpoint]) -> Contents:
    """Swap files of the same name from two steps."""
    one, other = draw.sample(checkpoints, 2)
    name = draw.choice(sorted({path.name for path in one.files}))
    return _swapped((one, name), (other, name))


def swapped_ranks(draw: random.Random, checkpoints: list[Checkpoint]) -> Contents:
    """Two parts, or two nodes' data, of one checkpoint."""
    checkpoint = draw.choice(checkpoints)
    kind = draw.choice(("part", "data"))
    one, other = draw.sample(sorted(path.name for path in checkpoint.files if path.name.startswith(kind)), 2)
    return _swapped((checkpoint, one), (checkpoint, other))


def moved_within(draw: random.Random, checkpoints: list[Checkpoint]) -> Contents:
    """Swap two ranges of one data file."""
    path, raw = _file(draw, checkpoints, kind="data")
    length = draw.choice((4, 64, 4096))
    one, other = (at * length for at in sorted(draw.sample(range(len(raw) // length), 2)))
    first, second = raw[one : one + length], raw[other : other + length]
    return {path: raw[:one] + second + raw[one + length : other] + first + raw[other + length :]}


def stale(draw: random.Random, checkpoints: list[Checkpoint]) -> Contents:
    """A file, or all files, of another generation's checkpoint of the same step."""
    step = draw.choice(_twice(checkpoints))
    one, other = draw.sample([checkpoint for checkpoint in checkpoints if checkpoint.base.step == step], 2)
    names = [path.name for path in one.files]
    chosen = names if draw.random() < 0.2 else [draw.choice(names)]
    return {one.directory / name: other.files[other.directory / name] for name in chosen}


EVERY: dict[str, Damage] = {
    "flipped bit": flipped_bit,
    "zeroed block": zeroed_block,
    "truncated": truncated,
    "deleted": deleted,
    "swapped between steps": swapped_steps,
    "swapped between ranks": swapped_ranks,
    "moved within a file": moved_within,
    "of another generation": stale,
}


def _file(draw: random.Random, checkpoints: list[Checkpoint], kind: str = "") -> tuple[Path, bytes]:
    files = draw.choice(checkpoints).files
    return draw.choice([(path, raw) for path, raw in files.items() if path.name.startswith(kind)])


def _swapped(one: tuple[Checkpoint, str], other: tuple[Checkpoint, str]) -> Contents:
    (first, name), (second, other_name) = one, other
    path, other_path = first.directory / name, second.directory / other_name
    return {path: second.files[other_path], other_path: first.files[path]}


def _twice(checkpoints: list[Checkpoint]) -> list[int]:
    """The steps that more than one generation saved."""
    steps = [checkpoint.base.step for checkpoint in checkpoints]
    return sorted({step for step in steps if steps.count(step) > 1})


# --- trials -----------------------------------------------------------------------------------------------------------


@contextmanager
def done_to(contents: Contents, checkpoints: list[Checkpoint]) -> Iterator[None]:
    """Damage the files for the duration of the block."""
    whole = {path: raw for checkpoint in checkpoints for path, raw in checkpoint.files.items()}
    _write(contents)
    try:
        yield
    finally:
        _write({path: whole[path] for path in contents})


def _write(contents: Contents) -> None:
    for path, raw in contents.items():
        if raw is None:
            path.unlink()
        else:
            path.write_bytes(raw)


def outcome(checkpoint: Checkpoint, contents: Contents) -> str:
    """`refused` by the name of a file that differs from its commit, or `harmless`; any other outcome is returned in words."""
    touched = checkpoint.touched(contents)
    try:
        found = checkpoint.read()
    except RefusedError as error:
        known = error.checkpoint == checkpoint.base.checkpoint and error.name in touched
        return "refused" if known else f"refused for {error}, and {sorted(touched)} were touched"
    if touched:
        return f"read, and {sorted(touched)} were touched"
    return "harmless" if found == checkpoint.held else "read as something else"
