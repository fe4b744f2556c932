"""Checks a job against its corpora of tokens, where they can be read from here."""

from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

from headway.compile.inputs import places
from headway.jobspec.document import Path
from headway.jobspec.plan import JobPlan
from headway.jobspec.problem import JOB, Problem
from headway.runner.contract import INDEX_NAME, CorpusIndex, Mixture, RecordError, from_json, samples_before

_KIND = "tokens"
_CORPORA: Path = ("data", "options", "corpora")


def check_corpora(plan: JobPlan, document: FilePath) -> Iterator[Problem]:
    """Yield what the runner would refuse before step 0, as far as this machine knows: it does not hash any shard."""
    data = plan.run.data
    if data is None or data.kind != _KIND:
        return
    corpora: Sequence[dict[str, Any]] = data.options["corpora"]
    indexes: dict[int, CorpusIndex] = {}
    for number, corpus in enumerate(corpora):
        folder = _found(corpus["path"], document)
        if folder is None:
            continue
        found = _index(folder)
        if isinstance(found, str):
            message, hint = f"the corpus `{corpus['path']}` cannot be used: {found}", "prepare it again, by `headway prepare`"
            yield Problem("HW330", JOB, (*_CORPORA, number, "path"), message, hint)
        else:
            indexes[number] = found
    yield from _check_tokens(plan, corpora, indexes)
    yield from _check_amount(plan, corpora, indexes)


def _found(path: str, document: FilePath) -> FilePath | None:
    """Return the corpus's folder; None if it is not on this machine, which only matters for a job that runs here (HW412)."""
    return next((folder / path for folder in places(document) if (folder / path / INDEX_NAME).is_file()), None)


def _index(folder: FilePath) -> CorpusIndex | str:
    """Return the corpus's index, or what is wrong with it or with its shards."""
    try:
        index = from_json(CorpusIndex, (folder / INDEX_NAME).read_text(encoding="utf-8"))
    except (RecordError, UnicodeDecodeError) as error:
        return f"its index `{INDEX_NAME}` is not from this version of headway ({error})"
    except OSError as error:
        return f"its index `{INDEX_NAME}` cannot be read: {error.strerror}"
    if mistakes := index.mistakes():
        return mistakes[0]
    for shard in index.shards:
        for name, size in shard.sizes(index.dtype).items():
            file = folder / name
            if not file.is_file():
                return f"its file `{name}` is missing"
            if (found := file.stat().st_size) != size:
                return f"its file `{name}` has {found:,} bytes, not the {size:,} of the index"
    return index


def _check_tokens(plan: JobPlan, corpora: Sequence[dict[str, Any]], indexes: dict[int, CorpusIndex]) -> Iterator[Problem]:
    """Check that the model has every token, and that one number means one token in all corpora."""
    first = next(iter(indexes), 0)
    for number, index in indexes.items():
        path: Path = (*_CORPORA, number, "path")
        name = corpora[number]["path"]
        if plan.model is not None and index.largest >= plan.model.vocab_size:
            message = (
                f"the corpus `{name}` has token {index.largest:,}, and a vocabulary of {plan.model.vocab_size:,} ends before it"
            )
            hint = (
                f"set the model's `vocab_size` to {index.largest + 1} or more, or prepare the corpus with the model's tokenizer"
            )
            yield Problem("HW307", JOB, path, message, hint)
        if index.tokenizer != indexes[first].tokenizer:
            message = f"the corpora `{corpora[first]['path']}` and `{name}` were made by different tokenizers"
            yield Problem("HW330", JOB, path, message, "prepare both with one tokenizer.json")


def _check_amount(plan: JobPlan, corpora: Sequence[dict[str, Any]], indexes: dict[int, CorpusIndex]) -> Iterator[Problem]:
    """Check that the steps need no more passes over a corpus than it allows."""
    batch, steps = plan.run.batch, plan.run.last_step or plan.run.steps
    if batch is None or steps is None:
        return
    samples = samples_before(plan.run.history, batch.global_sequences, steps)
    try:
        counts = Mixture([corpus["weight"] for corpus in corpora]).counts(samples)
    except ValueError:
        # The trainer's check reports it.
        return
    for number, index in indexes.items():
        windows, count, epochs = index.windows(batch.sequence_length), counts[number], corpora[number]["epochs"]
        if count <= windows * epochs:
            continue
        path: Path = (*_CORPORA, number, "path")
        name = f"the corpus `{corpora[number]['path']}`"
        if windows == 0:
            message = f"{name} has {index.tokens:,} tokens, too few for one sequence of {batch.sequence_length:,}"
            yield Problem(
                "HW330", JOB, path, message, f"use a sequence of at most {index.tokens - 1:,} tokens, or a larger corpus"
            )
            continue
        times = count / windows
        message = (
            f"{steps:,} steps take {count:,} sequences of {batch.sequence_length:,} tokens from {name}, which has {windows:,}: "
            f"{times:.2f} passes"
        )
        hint = f"set `epochs: {-(-count // windows)}` for it, lower its `weight`, or train fewer steps"
        yield Problem("HW330", JOB, path, message, hint)
