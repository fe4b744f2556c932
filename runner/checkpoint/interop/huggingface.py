"""Writes and reads safetensors in Hugging Face's layout; the builtin model under the names of LlamaForCausalLM.

The layout of a file: https://huggingface.co/docs/safetensors (8 bytes little-endian length, a JSON header, the elements row-major).
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from headway.runner.checkpoint.interop.archive import Archive, Described
from headway.runner.checkpoint.tensors import dtype_named, local_tensor, to_bytes
from headway.runner.checkpoint.tools.inspect import ForeignError
from headway.runner.contract import Model
from headway.runner.posix import appearing, write_durable

SHARD_BYTES = 5_000_000_000
"""The limit of transformers' save_pretrained for years (its docs: max_shard_size "5GB")."""
ONE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"

# https://github.com/huggingface/safetensors, enum Dtype.
_DTYPES: Mapping[str, str] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
# LlamaForCausalLM (transformers, models/llama/modeling_llama.py). Both rotate the halves of a head, so no row has to
# move.
_LAYER_NAMES: Mapping[str, str] = {
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
_OTHER_NAMES: Mapping[str, str] = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.weight")


class SafetensorsError(ForeignError):
    """Files cannot be read or written; the message names the tensor or the field, what was found and what was expected."""


# --- the builtin model under Llama's names ----------------------------------------------------------------------------


def llama_name(name: str) -> str:
    """Return the name of a builtin model's parameter in LlamaForCausalLM. Raises SafetensorsError for one that has none."""
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise SafetensorsError(f"`{name}` is not a parameter of the builtin model, so it has no name in LlamaForCausalLM")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"


def llama_config(model: Model, sequence_length: int | None, dtype: str) -> dict[str, Any]:
    """Return config.json. `rope_theta` is in it twice: before version 5 transformers read it at the top, since then in
    rope_parameters."""
    length = {} if sequence_length is None else {"max_position_embeddings": sequence_length}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.hidden // model.heads,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": model.tie_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": dtype,
        **length,
    }


def llama_differences(config: Mapping[str, Any], model: Model) -> Iterator[str]:
    """Yield the settings of config.json that the builtin model with these numbers would not compute."""
    expected = llama_config(model, None, "float32")
    rope = config.get("rope_parameters") or {"rope_type": "default"}
    found = {
        "rope_theta": rope.get("rope_theta", 10_000.0),
        "head_dim": config.get("hidden_size", 0) // config.get("num_attention_heads", 1),
    }
    found |= {"tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", **config}
    names = (
        "model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim"
    )
    for name in f"{names} hidden_act rms_norm_eps rope_theta tie_word_embeddings attention_bias mlp_bias".split():
        if found.get(name) != expected[name]:
            yield f"`{name}` is {found.get(name)!r}, but the job's model has {expected[name]!r}"
    if config.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        yield "it scales its rotary positions, which the builtin model does not"


def read_config(directory: Path) -> dict[str, Any]:
    """Return config.json of `directory`. Raises SafetensorsError."""
    try:
        found = json.loads((directory / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise SafetensorsError(f"{directory / CONFIG}: {error}; it describes the tensors beside it") from None
    if not isinstance(found, dict):
        raise SafetensorsError(f"{directory / CONFIG}: expected an object, found a {type(found).__name__}")
    return found


# --- export -----------------------------------------------------------------------------------------------------------


def export_safetensors(
    archive: Archive, directory: Path, names: Mapping[str, str], config: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write the tensors that are keys of `names` under the names given there; return the files. One tensor is in memory
    at a time.

    `directory` need not exist; it appears once all files are complete. Raises FileExistsError, OSError,
    SafetensorsError.
    """
    if directory.exists():
        raise FileExistsError(f"{directory} exists; pass a directory that does not exist yet")
    described = archive.tensors()
    shards = list(_shards({name: described[name] for name in names}))
    with appearing(directory) as temporary:
        _write_files(temporary, shards, names, archive)
        if config is not None:
            write_durable(temporary / CONFIG, json.dumps(config, indent=2).encode() + b"\n")
    return sorted(directory.iterdir())


def _write_files(directory: Path, shards: list[dict[str, Described]], names: Mapping[str, str], archive: Archive) -> None:
    files = _file_names(len(shards))
    for file, shard in zip(files, shards, strict=True):
        _write_shard(directory / file, shard, names, archive)
    if len(files) > 1:
        where = {names[name]: file for file, shard in zip(files, shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": sum(d.bytes for shard in shards for d in shard.values())}, "weight_map": where}
        write_durable(directory / INDEX, json.dumps(index, indent=2, sort_keys=True).encode() + b"\n")


def _file_names(count: int) -> list[str]:
    return [ONE] if count == 1 else [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _shards(tensors: Mapping[str, Described]) -> Iterator[dict[str, Described]]:
    """Yield shards in the order of names, each at most SHARD_BYTES unless one tensor is larger; one empty shard if
    there is no tensor."""
    shard: dict[str, Described] = {}
    for name, described in tensors.items():
        if shard and sum(d.bytes for d in shard.values()) + described.bytes > SHARD_BYTES:
            yield shard
            shard = {}
        shard[name] = described
    yield shard


def _write_shard(path: Path, shard: Mapping[str, Described], names: Mapping[str, str], archive: Archive) -> None:
    # Widest elements first, as safetensors' own writer does: every tensor then begins at a multiple of its element.
    order = sorted(shard, key=lambda name: (-dtype_named(shard[name].dtype).itemsize, names[name]))
    with path.open("wb") as file:
        file.write(_header(shard, names, order))
        for name in order:
            file.write(to_bytes(archive.tensor(name)))
        file.flush()
        os.fsync(file.fileno())


def _header(shard: Mapping[str, Described], names: Mapping[str, str], order: list[str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in order:
        described = shard[name]
        if described.dtype not in _DTYPES:
            raise SafetensorsError(f"`{name}` is {described.dtype}, a type that safetensors does not have")
        ends = [offset, offset := offset + described.bytes]
        entries[names[name]] = {"dtype": _DTYPES[described.dtype], "shape": list(described.shape), "data_offsets": ends}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


# --- import -----------------------------------------------------------------------------------------------------------


def safetensors_files(directory: Path) -> dict[str, Path]:
    """Return the file of each tensor, from the index or the only file. Raises SafetensorsError."""
    index = directory / INDEX
    try:
        if index.exists():
            return {name: directory / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SafetensorsError(f"{index} is not a safetensors index: {error}") from None
    files = sorted(directory.glob("*.safetensors"))
    if len(files) != 1:
        raise SafetensorsError(f"{directory} has {len(files)} *.safetensors files and no {INDEX}; expected one file or an index")
    with _opened(files[0]) as file:
        return dict.fromkeys(file.keys(), files[0])


def load_safetensors(directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill `tensors` in place from the files' tensors of the same names; each rank reads only its elements of a
    DTensor.

    Elements are converted to the dtype of the target. The files carry no checksum. Raises SafetensorsError, by name,
    for a tensor that is missing or has another shape.
    """
    files = safetensors_files(directory)
    if missing := [name for name in tensors if name not in files]:
        raise SafetensorsError(
            f"{directory} has no tensor `{missing[0]}`" + (f" and {len(missing) - 1} more" if missing[1:] else "")
        )
    for path in dict.fromkeys(files[name] for name in tensors):
        with _opened(path) as file:
            for name, tensor in tensors.items():
                if files[name] == path:
                    _fill(file, path, name, tensor)


def _fill(file: Any, path: Path, name: str, tensor: torch.Tensor) -> None:
    stored, local = file.get_slice(name), local_tensor(tensor)
    if (shape := tuple(stored.get_shape())) != local.shape:
        raise SafetensorsError(f"{path}: tensor `{name}` is {list(shape)}; expected {list(local.shape)}")
    if 0 in local.box.shape:
        return
    place = tuple(slice(offset, offset + length) for offset, length in zip(local.box.offset, local.box.shape, strict=True))
    with torch.no_grad():
        local.data.copy_(stored[place] if place else file.get_tensor(name))


def _opened(path: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415  an extra that only imports need
    except ImportError:
        raise SafetensorsError("reading safetensors needs its package; install headway with its extra `huggingface`") from None
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise SafetensorsError(f"{path}: {error}") from None


class SafetensorsArchive:
    """A directory of safetensors, read tensor by tensor; it has no objects."""

    def __init__(self, directory: Path) -> None:
        self._files = safetensors_files(directory)

    def tensors(self) -> dict[str, Described]:
        return dict(self._described())

    def tensor(self, name: str) -> torch.Tensor:
        with _opened(self._files[name]) as file:
            found: torch.Tensor = file.get_tensor(name)
        return found

    def objects(self) -> dict[str, Any]:
        return {}

    def _described(self) -> Iterator[tuple[str, Described]]:
        codes = {code: name for name, code in _DTYPES.items()}
        for path in dict.fromkeys(self._files.values()):
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118  it cannot be iterated over
                    stored = file.get_slice(name)
                    if (code := stored.get_dtype()) not in codes:
                        raise SafetensorsError(f"{path}: tensor `{name}` is {code}; expected one of {', '.join(codes)}")
                    yield name, Described(codes[code], tuple(stored.get_shape()))
