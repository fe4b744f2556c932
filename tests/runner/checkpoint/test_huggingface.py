"""Tests the export and import of safetensors: the package reads exports, Llama's names and numbers match, ranks read their shards."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from headway.runner.checkpoint.interop import huggingface
from headway.runner.checkpoint.interop.archive import Described
from headway.runner.checkpoint.interop.huggingface import (
    CONFIG,
    INDEX,
    ONE,
    SafetensorsArchive,
    SafetensorsError,
    export_safetensors,
    llama_config,
    llama_differences,
    llama_name,
    load_safetensors,
    read_config,
)
from headway.runner.checkpoint.tensors import dtype_name
from headway.runner.contract import Model
from headway.runner.train.model import Transformer
from tests.support.layouts import views

MODEL = Model(vocab_size=17, layers=2, hidden=16, heads=4, kv_heads=2, ffn_hidden=24, rope_theta=50_000.0, norm_eps=1e-6)


class Tensors:
    """Tensors as an archive that records when each of them is read."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors, self.read = dict(tensors), list[str]()

    def tensors(self) -> dict[str, Described]:
        return {name: Described(dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> torch.Tensor:
        self.read.append(name)
        return self._tensors[name].detach()

    def objects(self) -> dict[str, Any]:
        return {}


def same_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return {name: name for name in tensors}


# --- export -----------------------------------------------------------------------------------------------------------

MIXED = {
    "a.weight": torch.arange(6.0).reshape(2, 3),
    "b": torch.tensor(2.5, dtype=torch.float64),
    "c": torch.arange(-4, 4).to(torch.bfloat16),
    "d": torch.tensor([True, False, True]),
    "e": torch.empty(0, 7),
    "f": torch.arange(3, dtype=torch.int64),
    "g": torch.arange(-4, 4).to(torch.float8_e4m3fn),
}


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    bits = [tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(*bits)


def test_the_safetensors_package_reads_an_export(tmp_path: Path) -> None:
    files = export_safetensors(Tensors(MIXED), tmp_path / "out", same_names(MIXED))
    assert [file.name for file in files] == [ONE]
    found = safetensors.torch.load_file(files[0])
    assert found.keys() == MIXED.keys()
    assert all(same(found[name], tensor) for name, tensor in MIXED.items())


def test_elements_are_aligned_to_their_width(tmp_path: Path) -> None:
    (file,) = export_safetensors(Tensors(MIXED), tmp_path / "out", same_names(MIXED))
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0
    for name, tensor in MIXED.items():
        assert header[name]["data_offsets"][0] % tensor.element_size() == 0, name


def test_an_export_larger_than_a_shard_has_several_and_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "SHARD_BYTES", 100)
    tensors = {f"t{number}": torch.full((size,), float(number)) for number, size in enumerate((10, 15, 1, 40, 2, 23))}
    archive = Tensors(tensors)
    files = export_safetensors(archive, tmp_path / "out", {name: f"new.{name}" for name in tensors})
    names = [f"model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)]
    assert [file.name for file in files] == [*names, INDEX]
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert index["metadata"]["total_size"] == 4 * 91
    where = [index["weight_map"][f"new.t{number}"] for number in range(6)]
    assert where == [names[0], names[0], names[1], names[2], names[3], names[3]]
    assert archive.read == list(tensors)
    into = {f"new.{name}": torch.zeros_like(tensor) for name, tensor in tensors.items()}
    load_safetensors(tmp_path / "out", into)
    assert all(torch.equal(into[f"new.{name}"], tensor) for name, tensor in tensors.items())


def test_a_failed_export_leaves_nothing_under_its_name(tmp_path: Path) -> None:
    broken = Tensors({"w": torch.ones(2), "x": torch.ones(2)})
    del broken._tensors["x"]
    with pytest.raises(KeyError):
        export_safetensors(broken, tmp_path / "out", {"w": "w", "x": "x"})
    assert not (tmp_path / "out").exists()


def test_an_existing_directory_is_not_written_into(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="pass a directory that does not exist yet"):
        export_safetensors(Tensors(MIXED), tmp_path, same_names(MIXED))


def test_a_dtype_unknown_to_safetensors_is_named(tmp_path: Path) -> None:
    odd = {"z": torch.ones(2, dtype=torch.complex128)}
    with pytest.raises(SafetensorsError, match="`z` is complex128, a type that safetensors does not have"):
        export_safetensors(Tensors(odd), tmp_path / "out", same_names(odd))


# --- Llama ------------------------------------------------------------------------------------------------------------


def filled(model: Model) -> Transformer:
    """The builtin model with weights that follow from the position in the order of Llama's names."""
    module = Transformer(model).eval()
    with torch.no_grad():
        for number, (_, parameter) in enumerate(sorted(module.named_parameters(), key=lambda named: llama_name(named[0]))):
            place = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_(0.6 * torch.sin(0.37 * place + number).reshape(parameter.shape))
    return module


def exported(module: Transformer, directory: Path) -> Path:
    parameters = dict(module.named_parameters())
    names = {name: llama_name(name) for name in parameters}
    export_safetensors(Tensors(parameters), directory, names, llama_config(module.config, 64, "float32"))
    return directory


# The last token's logits of transformers 5.23.0's LlamaForCausalLM.from_pretrained, given the output of `exported(filled(MODEL), ...)`.
TRANSFORMERS = (
    *(-0.140996, -0.238358, -0.304624, -0.331149, -0.314472, -0.256769, -0.165567, -0.052766, 0.066918, 0.177873),
    *(0.265623, 0.318719, 0.330235, 0.298669, 0.228138, 0.127845, 0.010872),
)
TOKENS = (torch.arange(9) * 5 % 17)[None]


def test_a_model_has_the_logits_of_its_export_in_transformers(tmp_path: Path) -> None:
    exported(filled(MODEL), tmp_path / "out")
    module = Transformer(MODEL).eval()
    load_safetensors(tmp_path / "out", {llama_name(name): parameter for name, parameter in module.named_parameters()})
    assert module(TOKENS)[0, -1].tolist() == pytest.approx(TRANSFORMERS, abs=2e-6)


def test_the_exported_logits_depend_on_the_order_of_a_heads_rows() -> None:
    module = filled(MODEL)
    with torch.no_grad():
        weight = dict(module.named_parameters())["layers.0.attention.wq.weight"]
        weight.copy_(weight.view(4, 2, 2, 16).transpose(1, 2).reshape(16, 16).clone())
    assert module(TOKENS)[0, -1].tolist() != pytest.approx(TRANSFORMERS, abs=1e-4)


LAYER = """input_layernorm mlp.down_proj mlp.gate_proj mlp.up_proj post_attention_layernorm
self_attn.k_proj self_attn.o_proj self_attn.q_proj self_attn.v_proj"""


def test_the_names_are_llamas(tmp_path: Path) -> None:
    layers = [f"model.layers.{number}.{name}.weight" for number in (0, 1) for name in LAYER.split()]
    own = ["lm_head.weight", "model.embed_tokens.weight", *layers, "model.norm.weight"]
    assert sorted(SafetensorsArchive(exported(filled(MODEL), tmp_path / "out")).tensors()) == own
    tied = replace(MODEL, tie_embeddings=True)
    assert sorted(SafetensorsArchive(exported(filled(tied), tmp_path / "tied")).tensors()) == own[1:]


def test_a_tensor_outside_the_builtin_model_has_no_llama_name() -> None:
    with pytest.raises(SafetensorsError, match=r"`layers\.0\.attention\.wz\.weight` is not a parameter of the builtin model"):
        llama_name("layers.0.attention.wz.weight")


def test_an_exported_config_is_the_models(tmp_path: Path) -> None:
    for model in (MODEL, replace(MODEL, tie_embeddings=True)):
        assert list(llama_differences(json.loads(json.dumps(llama_config(model, None, "float32"))), model)) == []


def test_a_config_older_than_transformers_5_is_read() -> None:
    config = llama_config(MODEL, None, "float32")
    for name in ("rope_parameters", "head_dim", "tie_word_embeddings", "attention_bias", "mlp_bias"):
        del config[name]
    assert list(llama_differences(config, MODEL)) == []


def differences() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"hidden_size": 32}, "`hidden_size` is 32, but the job's model has 16"
    yield {"num_attention_heads": 8}, "`num_attention_heads` is 8, but the job's model has 4"
    yield {"rope_theta": 10_000.0}, "`rope_theta` is 10000.0, but the job's model has 50000.0"
    yield {"attention_bias": True}, "`attention_bias` is True, but the job's model has False"
    yield {"model_type": "mistral"}, "`model_type` is 'mistral', but the job's model has 'llama'"
    yield {"rope_scaling": {"rope_type": "llama3"}}, "it scales its rotary positions, which the builtin model does not"
    rope = {"rope_type": "yarn", "rope_theta": 50_000.0}
    yield {"rope_parameters": rope}, "it scales its rotary positions, which the builtin model does not"


@pytest.mark.parametrize(("change", "said"), list(differences()))
def test_a_config_that_the_builtin_model_computes_differently_is_reported(change: dict[str, Any], said: str) -> None:
    assert list(llama_differences(llama_config(MODEL, None, "float32") | change, MODEL)) == [said]


def test_an_unreadable_config_is_named(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("[]")
    with pytest.raises(SafetensorsError, match="expected an object, found a list"):
        read_config(tmp_path)
    with pytest.raises(SafetensorsError, match=r"nowhere/config\.json"):
        read_config(tmp_path / "nowhere")


# --- import -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "placements"), [((3,), [Shard(0)]), ((2,), [Shard(1)]), ((2, 2), [Replicate(), Shard(0)]), ((8,), [Shard(0)])]
)
def test_each_rank_reads_only_its_elements(tmp_path: Path, shape: tuple[int, ...], placements: Any) -> None:
    full = {"w": torch.arange(35.0).reshape(7, 5), "v": torch.arange(6.0).reshape(3, 2).to(torch.bfloat16)}
    safetensors.torch.save_file(full, tmp_path / ONE)
    blank = {name: torch.zeros_like(tensor) for name, tensor in full.items()}
    for target, want in zip(views(blank, shape, placements), views(full, shape, placements), strict=True):
        load_safetensors(tmp_path, target)
        for name in full:
            found, expected = target[name], want[name]
            assert isinstance(found, DTensor)
            assert isinstance(expected, DTensor)
            assert torch.equal(found.to_local(), expected.to_local()), name


def test_elements_are_converted_to_the_dtype_of_the_target(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "s": torch.tensor(3.0)}, tmp_path / ONE)
    into = {"w": torch.zeros(2), "s": torch.zeros((), dtype=torch.float64)}
    load_safetensors(tmp_path, into)
    assert (into["w"].tolist(), into["s"].item()) == ([1.5, -2.0], 3.0)


def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / ONE)
    with pytest.raises(SafetensorsError, match="has no tensor `a` and 1 more"):
        load_safetensors(tmp_path, {"a": torch.ones(2), "b": torch.ones(2)})
    with pytest.raises(SafetensorsError, match=r"tensor `w` is \[2\]; expected \[3\]"):
        load_safetensors(tmp_path, {"w": torch.ones(3)})


def test_a_directory_without_tensor_locations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SafetensorsError, match=r"has 0 \*\.safetensors files and no model\.safetensors\.index\.json"):
        load_safetensors(tmp_path, {})
    (tmp_path / INDEX).write_text('{"weight_map": 3}')
    with pytest.raises(SafetensorsError, match="is not a safetensors index"):
        load_safetensors(tmp_path, {})


def test_a_dtype_unknown_to_torch_is_named_with_its_tensor(tmp_path: Path) -> None:
    header = json.dumps({"scale": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / ONE).write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(SafetensorsError, match=r"model\.safetensors: tensor `scale` is F8_E8M0; expected one of BOOL, U8"):
        SafetensorsArchive(tmp_path).tensors()


def test_a_truncated_file_is_refused_by_its_name(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(100)}, tmp_path / ONE)
    raw = (tmp_path / ONE).read_bytes()
    for length in (0, 5, 30, len(raw) - 1):
        (tmp_path / ONE).write_bytes(raw[:length])
        with pytest.raises(SafetensorsError, match=r"model\.safetensors: "):
            load_safetensors(tmp_path, {"w": torch.zeros(100)})


def test_a_safetensors_archive_lists_and_reads_its_tensors(tmp_path: Path) -> None:
    safetensors.torch.save_file(MIXED, tmp_path / ONE)
    archive = SafetensorsArchive(tmp_path)
    assert archive.tensors() == Tensors(MIXED).tensors()
    assert all(same(archive.tensor(name), tensor) for name, tensor in MIXED.items())
