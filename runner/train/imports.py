"""Converts a checkpoint of another origin to the state from which the builtin trainer resumes."""

from collections.abc import Mapping
from pathlib import Path

import torch

from headway.runner.checkpoint.interop.archive import Archive
from headway.runner.checkpoint.interop.huggingface import (
    CONFIG,
    SafetensorsArchive,
    llama_differences,
    llama_name,
    load_safetensors,
    read_config,
)
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.rng import seed_all
from headway.runner.checkpoint.tools.inspect import PlaceError
from headway.runner.checkpoint.tools.rebuild import Contents
from headway.runner.contract import Model, RunConfig
from headway.runner.train.data import open_corpus
from headway.runner.train.model import Transformer
from headway.runner.train.optimizer import make_optimizer
from headway.runner.train.state import Consumed, TrainState

# Older Llama checkpoints hold the frequencies, which follow from rope_theta.
_FOLLOWS = "rotary_emb.inv_freq"


def contents_of_job(archive: Archive, origin: Path, config: RunConfig, step: int) -> Contents:
    """Return the state of the job at `step` with these parameters, and with AdamW's moments if the origin has them
    (otherwise zero).

    If the origin has the objects of a run at this step over the same data, they are kept; otherwise the samples
    continue at `step` global batches and the random generators from the job's seed. Takes the parameters' bytes in host
    memory. Raises PlaceError for a job that is not the builtin trainer's and for parameters that are not its model's.
    """
    state = _state(config, step)
    if isinstance(archive, SafetensorsArchive):
        _fill_by_llama_names(archive, origin, state, _model(config))
    else:
        _fill_by_own_names(archive, origin, state)
    saved = state.to_save(Ranks())
    own = archive.objects().get("0", {})
    same = isinstance(own, dict) and (own.get("step"), own.get("data")) == (step, state.fingerprint)
    # That is the other run's.
    kept = {name: value for name, value in own.items() if name != "soundness"} if same else saved.objects
    return Contents(saved.tensors, kept)


def _model(config: RunConfig) -> Model:
    if config.model is None or config.trainer.kind != "builtin":
        raise PlaceError(
            "the job does not use the builtin trainer: import without it and load with `from headway import checkpoint`"
        )
    return config.model


def _state(config: RunConfig, step: int) -> TrainState:
    model = _model(config)
    assert config.data is not None and config.batch is not None and config.optimizer is not None  # noqa: PT018, S101  guaranteed by the plan
    module = Transformer(model)
    seed_all(config.seed + step, 0)
    consumed = Consumed(step * config.batch.global_sequences)
    optimizer = make_optimizer(module, config.optimizer)
    fingerprint = open_corpus(config.data).fingerprint
    return TrainState(module, optimizer, consumed, torch.device("cpu"), config.seed, fingerprint, step)


def _fill_by_llama_names(archive: SafetensorsArchive, origin: Path, state: TrainState, model: Model) -> None:
    if differences := list(llama_differences(read_config(origin), model)):
        raise PlaceError(f"{origin / CONFIG}: {'; '.join(differences)}; set this model in the job, or import without a job")
    wanted = {llama_name(name): parameter for name, parameter in state.model.named_parameters()}
    unused = {name for name in archive.tensors() if not name.endswith(_FOLLOWS)} - wanted.keys()
    if model.tie_embeddings:
        unused.discard(llama_name("output.weight"))
    _refuse(origin, "no place in the job's model for", unused)
    load_safetensors(origin, wanted)


def _fill_by_own_names(archive: Archive, origin: Path, state: TrainState) -> None:
    parameters, moments = state.parameters(), state.moments()
    there = archive.tensors()
    _refuse(origin, "no place in the job's state for", there.keys() - parameters.keys() - moments.keys())
    _refuse(origin, "no tensor for the job's", parameters.keys() - there.keys())
    if any(name in there for name in moments):
        _refuse(origin, "no tensor for the optimizer's", moments.keys() - there.keys())
    _copy(archive, origin, {name: tensor for name, tensor in (parameters | moments).items() if name in there})


def _copy(archive: Archive, origin: Path, targets: Mapping[str, torch.Tensor]) -> None:
    for name, target in targets.items():
        found = archive.tensor(name)
        if found.shape != target.shape:
            raise PlaceError(f"{origin}: tensor `{name}` is {list(found.shape)}, but the job's is {list(target.shape)}")
        target.detach().copy_(found)


def _refuse(origin: Path, what: str, names: set[str]) -> None:
    if names:
        first, *more = sorted(names)
        raise PlaceError(f"{origin}: {what} `{first}`" + (f" and {len(more)} more" if more else ""))
