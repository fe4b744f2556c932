"""Implements the verbs that read tensors: diff, export, import."""

import argparse
import dataclasses
import shutil
from pathlib import Path
from typing import Any

from headway.runner.checkpoint.format import data_name
from headway.runner.checkpoint.interop.archive import Archive, Verified
from headway.runner.checkpoint.interop.huggingface import SafetensorsArchive, export_safetensors, llama_config, llama_name
from headway.runner.checkpoint.interop.plain_dcp import METADATA, PlainDcp, export_dcp, read_dcp
from headway.runner.checkpoint.interop.root import is_rooted, open_reader
from headway.runner.checkpoint.tools.compare import compare
from headway.runner.checkpoint.tools.inspect import PlaceError, chosen, open_run, run_and_step
from headway.runner.checkpoint.tools.rebuild import (
    Contents,
    commit_first,
    contents_of_dcp,
    contents_of_safetensors,
    found_run,
    settle_import,
)
from headway.runner.checkpoint.tools.say import FINE, FOUND, say
from headway.runner.contract import RunConfig, RunDirectory, from_json


def diff(args: argparse.Namespace) -> int:
    """Print the differences, `difference` lines, and `compared` at the end."""
    old, new = _archive(args.old), _archive(args.new)
    count = 0
    for found in compare(old, new):
        count += 1
        say("difference", **dataclasses.asdict(found))
    say("compared", tensors=len(old.tensors().keys() | new.tensors().keys()), differences=count)
    return FOUND if count else FINE


def _archive(name: str) -> Archive:
    """Open RUN, RUN@STEP, or a directory of headway's storage classes, plain torch.distributed.checkpoint or safetensors."""
    path = Path(name)
    if is_rooted(path):
        return Verified(open_reader(path))
    if (path / METADATA).exists():
        return read_dcp(path)
    if path.is_dir() and any(path.glob("*.safetensors")):
        return SafetensorsArchive(path)
    return _of_run(*run_and_step(name))


def _of_run(path: Path, step: int | None) -> Verified:
    run = open_run(path)
    return Verified(run.reader(chosen(run, run.chain().read(), step)))


def export(args: argparse.Namespace) -> int:
    """Write a checkpoint in another format: an `exported` line for each file."""
    archive = _archive(args.place) if args.step is None else _of_run(Path(args.place), args.step)
    if args.format == "dcp":
        export_dcp(archive, args.to)
        files = sorted(args.to.iterdir())
    else:
        names, config = _hugging_face(run_and_step(args.place)[0], archive)
        files = export_safetensors(archive, args.to, names, config)
    for file in files:
        say("exported", file=str(file), bytes=file.stat().st_size)
    return FINE


def _hugging_face(path: Path, archive: Archive) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Return names and config.json of LlamaForCausalLM for a run of the builtin model; else the names below `model`, or all."""
    config = open_run(path).config() if RunDirectory(path, 0).chain.is_dir() else None
    own = {name: name[len("model.") :] for name in archive.tensors() if name.startswith(("model.", "model/"))}
    if config is None or config.model is None or config.trainer.kind != "builtin":
        return own or {name: name for name in archive.tensors()}, None
    dtype = archive.tensors()[next(iter(own))].dtype
    length = config.batch.sequence_length if config.batch else None
    return {name: llama_name(parameter) for name, parameter in own.items()}, llama_config(config.model, length, dtype)


def import_(args: argparse.Namespace) -> int:
    """Create a run from a checkpoint in another format: an `imported` line."""
    archive = SafetensorsArchive(args.place) if args.kind == "hf" else _plain(args.place)
    config = from_json(RunConfig, args.run_json.read_text()) if args.run_json else None
    step = _step_of(archive) if args.step is None else args.step
    contents = _contents(archive, args.place, config, step)
    run = found_run(args.to, config, args.spec.read_bytes() if args.spec else None)
    try:
        base = commit_first(run, step, contents, args.place)
    except BaseException:
        # Created here, and not a run.
        shutil.rmtree(run.directory)
        raise
    if config is not None:
        settle_import(run, args.place, step)
    size = (run.checkpoints / base.checkpoint.directory / data_name(0, 0)).stat().st_size
    say("imported", run=str(run.directory), checkpoint=base.checkpoint.directory, tensors=len(contents.tensors), bytes=size)
    return FINE


def _plain(place: Path) -> PlainDcp:
    """Raise PlaceError for a directory that is in headway's format already."""
    if is_rooted(place) and not (place / METADATA).exists():
        how = f"`headway checkpoint export {place} --format dcp --to DIR` makes one"
        raise PlaceError(f"`{place}` was written by headway's StorageWriter and is not a plain checkpoint; {how}")
    return read_dcp(place)


def _step_of(archive: Archive) -> int:
    """Return the checkpoint's step, which headway's exports and many loops record; else 0."""
    objects = archive.objects()
    found = objects.get("0", objects)
    step = found.get("step") if isinstance(found, dict) else None
    return step if isinstance(step, int) else 0


def _contents(archive: Any, origin: Path, config: RunConfig | None, step: int) -> Contents:
    if config is not None:
        from headway.runner.train.imports import contents_of_job  # noqa: PLC0415  builds the model

        return contents_of_job(archive, origin, config, step)
    return contents_of_safetensors(archive) if isinstance(archive, SafetensorsArchive) else contents_of_dcp(archive)
