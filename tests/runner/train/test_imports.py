"""Tests imported state for the builtin trainer: it is taken whole, or refused by the first name that does not fit."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.runner.checkpoint.interop.archive import Archive
from headway.runner.checkpoint.interop.huggingface import CONFIG, SafetensorsArchive, export_safetensors, llama_config, llama_name
from headway.runner.checkpoint.tools.inspect import PlaceError
from headway.runner.contract import Batch, Data, Mesh, Optimizer, RunConfig, Trainer
from headway.runner.train.data import open_corpus
from headway.runner.train.imports import contents_of_job
from tests.runner.checkpoint.test_huggingface import MODEL, Tensors, exported, filled

CONFIG_OF_JOB = RunConfig(
    slots=1,
    procs_per_slot=1,
    mesh=Mesh(),
    trainer=Trainer("builtin"),
    spec_hash="0" * 64,
    model=MODEL,
    data=Data("python-stdlib", {"limit_bytes": 100_000}),
    batch=Batch(8, 2, 16),
    optimizer=Optimizer(lr=0.1),
    steps=10,
)
OWN = {f"model.{name}": parameter.detach() for name, parameter in filled(MODEL).named_parameters()}


class WithObjects(Tensors):
    def __init__(self, tensors: Mapping[str, torch.Tensor], objects: dict[str, Any]) -> None:
        super().__init__(tensors)
        self._objects = objects

    def objects(self) -> dict[str, Any]:
        return self._objects


def contents(archive: Archive, origin: Path = Path("/origin"), config: RunConfig = CONFIG_OF_JOB) -> Any:
    return contents_of_job(archive, origin, config, 3)


def test_llama_parameters_are_imported_with_zero_moments(tmp_path: Path) -> None:
    origin = exported(filled(MODEL), tmp_path / "out")
    found = contents(SafetensorsArchive(origin), origin)
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in OWN.items())
    moments = [tensor for name, tensor in found.tensors.items() if name.startswith("optimizer.")]
    assert (len(moments), sum(int(tensor.count_nonzero()) for tensor in moments)) == (3 * len(OWN), 0)
    assert (found.objects["step"], found.objects["consumed"]) == (3, {"position": 24, "digest": 0})


def test_parameters_and_moments_with_the_jobs_names_are_imported() -> None:
    state = contents(Tensors(OWN)).tensors
    moved = {name: tensor + 1 if name.startswith("optimizer.") else tensor for name, tensor in state.items()}
    found = contents(Tensors(moved)).tensors
    assert found.keys() == moved.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in moved.items())


def test_consumed_samples_are_kept_for_the_same_data_and_step() -> None:
    assert CONFIG_OF_JOB.data is not None
    own = {"step": 3, "data": open_corpus(CONFIG_OF_JOB.data).fingerprint, "consumed": {"position": 24, "digest": 9}, "rng": None}
    assert contents(WithObjects(OWN, {"0": own})).objects == own
    for change in ({"step": 4}, {"data": "other"}):
        assert contents(WithObjects(OWN, {"0": own | change})).objects["consumed"]["digest"] == 0


def without(name: str) -> dict[str, torch.Tensor]:
    return {other: tensor for other, tensor in OWN.items() if other != name}


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (OWN | {"model.more": torch.ones(1)}, r"no place in the job's state for `model\.more`"),
        (without("model.norm.weight"), r"no tensor for the job's `model\.norm\.weight`"),
        (OWN | {"model.norm.weight": torch.ones(3)}, r"tensor `model\.norm\.weight` is \[3\], but the job's is \[16\]"),
        (OWN | {"optimizer.norm.weight.exp_avg": torch.ones(16)}, r"no tensor for the optimizer's `.*` and 61 more"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tensors: dict[str, torch.Tensor], said: str) -> None:
    with pytest.raises(PlaceError, match=said):
        contents(Tensors(tensors))


def test_a_model_with_other_computations_is_refused_though_all_shapes_fit(tmp_path: Path) -> None:
    origin = exported(filled(MODEL), tmp_path / "out")
    other = replace(CONFIG_OF_JOB, model=replace(MODEL, rope_theta=10_000.0))
    with pytest.raises(PlaceError, match=r"`rope_theta` is 50000\.0, but the job's model has 10000\.0"):
        contents(SafetensorsArchive(origin), origin, other)


def test_a_tensor_unknown_to_llama_is_named_but_not_missing_frequencies(tmp_path: Path) -> None:
    parameters = dict(filled(MODEL).named_parameters())
    names = {name: llama_name(name) for name in parameters}
    for more, refused in (
        ("model.layers.0.self_attn.rotary_emb.inv_freq", False),
        ("model.layers.0.self_attn.q_proj.bias", True),
    ):
        origin = tmp_path / more
        export_safetensors(
            Tensors({**parameters, more: torch.ones(2)}), origin, {**names, more: more}, llama_config(MODEL, None, "float32")
        )
        if refused:
            with pytest.raises(PlaceError, match=re.escape(f"no place in the job's model for `{more}`")):
                contents(SafetensorsArchive(origin), origin)
        else:
            assert len(contents(SafetensorsArchive(origin), origin).tensors) == 4 * len(OWN)


def test_tensors_without_a_config_are_refused(tmp_path: Path) -> None:
    origin = exported(filled(MODEL), tmp_path / "out")
    (origin / CONFIG).unlink()
    with pytest.raises(ValueError, match=r"config\.json: .* it describes the tensors beside it"):
        contents(SafetensorsArchive(origin), origin)


def test_a_job_with_another_trainer_gets_a_hint() -> None:
    with pytest.raises(PlaceError, match="import without it and load with `from headway import checkpoint`"):
        contents(Tensors(OWN), config=replace(CONFIG_OF_JOB, trainer=Trainer("script")))
