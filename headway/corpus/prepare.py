"""Prepares a corpus: divides the inputs, has processes make the shards, and writes the index last.

Everything about an unfinished corpus is in `.unfinished`, a folder inside the corpus's own: what it is made of, and the record
of each shard that is complete. The next call makes those that are missing.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from msgspec import Struct

from headway.corpus.division import COMPRESSIONS, Input, Part, divide, is_json
from headway.corpus.shard import Settings, begin_process, dtype_of, make_shard
from headway.corpus.text import CorpusError
from headway.runner.contract import INDEX_NAME, CorpusIndex, RecordError, Shard, from_json, to_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNFINISHED = ".unfinished"
_EXTRA = "install it with `pip install 'headway[corpus]'`"


class Request(Struct, frozen=True):
    """A corpus that is wanted. `end` is the text of the token after each document; with `lines`, each line of a text file is a
    document. A shard is made of about `part_bytes` of the inputs."""

    inputs: Sequence[Path]
    folder: Path
    tokenizer: Path
    end: str | None
    field: str = "text"
    lines: bool = False
    part_bytes: int = 128 * 1024 * 1024
    workers: int = 1


class Progress(Struct, frozen=True):
    """How far the shards are: those that are complete, of all of them; `found` were complete before; and their inputs' bytes."""

    done: int
    of: int
    found: int
    tokens: int
    done_bytes: int
    new_bytes: int
    all_bytes: int


def prepare(request: Request, told: Callable[[Progress], None] = lambda _: None) -> tuple[CorpusIndex, bool]:
    """Make the corpus, or what is missing of it. Returns its index, and whether anything was made.

    Raises CorpusError, and OSError where the folder cannot be written.
    """
    inputs = _inputs(request)
    tokenizer = _tokenizer(request.tokenizer)
    vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    end = _end(tokenizer, request.end)
    digest = hashlib.sha256(request.tokenizer.read_bytes()).hexdigest()
    made_of = {
        "inputs": [(each.path, each.size) for each in inputs],
        "tokenizer": digest,
        "end": end,
        "field": request.field,
        "lines": request.lines,
        "part_bytes": request.part_bytes,
    }
    source = xxhash.xxh3_128_hexdigest(json.dumps(made_of, sort_keys=True).encode())
    dtype = dtype_of(vocab_size)
    request.folder.mkdir(parents=True, exist_ok=True)
    with _alone(request.folder):
        if (found := _finished(request.folder, source)) is not None:
            shutil.rmtree(request.folder / UNFINISHED, ignore_errors=True)
            return found, False
        times = [Path(each.path).stat().st_mtime_ns for each in inputs]
        _begin(request.folder, {"source": source, "times": times})
        settings = Settings(str(request.folder), str(request.tokenizer), request.field, dtype, end)
        shards = _make(request, divide(inputs, request.part_bytes), settings, told)
        if [Path(each.path).stat().st_mtime_ns for each in inputs] != times:
            raise CorpusError("an input has changed in the meantime; remove the corpus's folder, and prepare it again")
        kept = tuple(shard for shard in shards if shard.tokens)
        if not kept:
            raise CorpusError(f"the inputs have no text: {len(inputs)} files, {sum(each.size for each in inputs):,} bytes")
        index = CorpusIndex(dtype, digest, vocab_size, end, source, kept)
        _write(request.folder / INDEX_NAME, to_json(index, indent=1) + "\n")
        shutil.rmtree(request.folder / UNFINISHED, ignore_errors=True)
    return index, True


# --- what is asked for ------------------------------------------------------------------------------------------------


def _inputs(request: Request) -> list[Input]:
    found = []
    for path in dict.fromkeys(map(str, request.inputs)):
        if not Path(path).is_file():
            what = "is a folder; name its files, for example by a pattern" if Path(path).is_dir() else "is not there"
            raise CorpusError(f"the input `{path}` {what}")
        if path.endswith(COMPRESSIONS[1]) and importlib.util.find_spec("zstandard") is None:
            raise CorpusError(f"`{path}` needs the library zstandard; {_EXTRA}")
        found.append(Input(path, Path(path).stat().st_size, request.lines or is_json(path)))
    return found


def _tokenizer(path: Path) -> "Tokenizer":
    if importlib.util.find_spec("tokenizers") is None:
        raise CorpusError(f"tokens are made by the library tokenizers; {_EXTRA}")
    from tokenizers import Tokenizer  # noqa: PLC0415  of an extra

    if not path.is_file():
        raise CorpusError(f"there is no tokenizer `{path}`; name a file tokenizer.json, headway downloads none")
    try:
        return Tokenizer.from_file(str(path))
    # The library has no narrower class.
    except Exception as error:
        raise CorpusError(f"`{path}` is not a tokenizer.json of the library tokenizers: {error}") from None


def _end(tokenizer: "Tokenizer", text: str | None) -> int | None:
    if text is None:
        return None
    number: int | None = tokenizer.token_to_id(text)
    if number is None:
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        known = f"its special tokens are {', '.join(f'`{each}`' for each in special)}" if special else "it has no special tokens"
        raise CorpusError(f"the tokenizer has no token `{text}`; {known}")
    return number


# --- the folder -------------------------------------------------------------------------------------------------------


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises CorpusError while another process has it."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CorpusError(f"another process prepares `{folder}`; wait for it, or end it") from None
        yield


def _finished(folder: Path, source: str) -> CorpusIndex | None:
    """Return the index if the folder has this corpus, complete. Raises CorpusError if it has another one, or one with missing files."""
    file = folder / INDEX_NAME
    if not file.exists():
        return None
    try:
        index = from_json(CorpusIndex, file.read_text())
    except RecordError as error:
        raise CorpusError(f"`{file}` is not from this version of headway ({error}); choose another folder") from None
    if index.source != source:
        raise CorpusError(f"`{folder}` has a corpus of other inputs, another tokenizer or other options; choose another folder")
    for shard in index.shards:
        if not _has_files(folder, shard, index.dtype):
            raise CorpusError(f"`{folder}` lacks a part of shard {shard.name}; remove `{file}`, and prepare the corpus again")
    return index


def _begin(folder: Path, plan: dict[str, Any]) -> None:
    """Record what the corpus is made of. Raises CorpusError if it was begun with something else."""
    file = folder / UNFINISHED / "plan.json"
    text = json.dumps(plan, sort_keys=True)
    if not file.exists():
        if strangers := sorted(path.name for path in folder.iterdir() if path.name not in (".lock", UNFINISHED)):
            raise CorpusError(f"`{folder}` has other files, `{strangers[0]}` for one; choose an empty folder")
        file.parent.mkdir(exist_ok=True)
        _write(file, text)
    elif file.read_text() != text:
        raise CorpusError(
            f"`{folder}` was begun with other inputs, another tokenizer or other options, or an input has changed since; "
            "remove the folder, or choose another one"
        )


def _has_files(folder: Path, shard: Shard, dtype: str) -> bool:
    sizes = shard.sizes(dtype) if shard.tokens else {}
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items())


def _write(path: Path, text: str) -> None:
    """Replace the file atomically; it is on disk afterwards, and so are all files of its folder that were renamed before."""
    temporary = path.with_name(f".{path.name}.unfinished")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the shards -------------------------------------------------------------------------------------------------------


def _make(request: Request, parts: Sequence[Part], settings: Settings, told: Callable[[Progress], None]) -> list[Shard]:
    """Return all shards in order, made by `workers` processes, except for those that are complete already."""
    names = [f"{number:05}" for number in range(len(parts))]
    sizes = {name: sum(span.end - span.begin for span in part) for name, part in zip(names, parts, strict=True)}
    done = {name: shard for name in names if (shard := _recorded(request.folder, name, settings.dtype))}
    before = set(done)

    def tell() -> None:
        tokens = sum(shard.tokens for shard in done.values())
        new = sum(sizes[name] for name in done if name not in before)
        told(Progress(len(done), len(names), len(before), tokens, sum(map(sizes.get, done)), new, sum(sizes.values())))  # type: ignore[arg-type]

    tell()
    missing = [(name, part) for name, part in zip(names, parts, strict=True) if name not in done]
    if not missing:
        return [done[name] for name in names]
    workers = min(request.workers, len(missing))
    # Not forked: the tokenizer has threads.
    with ProcessPoolExecutor(workers, get_context("spawn"), begin_process, (settings,)) as pool:
        try:
            for name, shard in _each(pool, missing, 2 * workers):
                _write(request.folder / UNFINISHED / f"{name}.json", to_json(shard))
                done[name] = shard
                tell()
        except BrokenProcessPool:
            raise CorpusError("a process was killed, perhaps for its memory; prepare again with fewer `--workers`") from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [done[name] for name in names]


def _each(pool: ProcessPoolExecutor, missing: Sequence[tuple[str, Part]], ahead: int) -> Iterator[tuple[str, Shard]]:
    """Yield each shard when it is complete; only `ahead` of them are given out at a time. Raises CorpusError of the first that
    fails."""
    coming = iter(missing)
    pending: dict[Future[Any], str] = {}
    while True:
        for name, part in coming:
            pending[pool.submit(make_shard, name, part)] = name
            if len(pending) >= ahead:
                break
        if not pending:
            return
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            name, shard = pending.pop(future), future.result()
            if isinstance(shard, CorpusError):
                raise shard
            yield name, shard


def _recorded(folder: Path, name: str, dtype: str) -> Shard | None:
    """Return the shard if it is complete."""
    try:
        shard = from_json(Shard, (folder / UNFINISHED / f"{name}.json").read_text())
    except (OSError, RecordError):
        return None
    return shard if _has_files(folder, shard, dtype) else None
