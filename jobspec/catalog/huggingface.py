"""Reads the sizes of a model from a Hugging Face `config.json`.

Keys and their defaults are those of transformers 5.23 (src/transformers/models/*/configuration_*.py). Settings that a
spec's model does not have are ignored: dropout, which is a setting of the training, scaling of rotary positions,
sliding and chunked windows, activations.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from headway.jobspec.spec.model import Model
from headway.jobspec.suggest import did_you_mean, file_like

MAX_BYTES = 1 << 20
_MAX_LAYERS = 10_000
_MAX_INTEGER = 2**63 - 1

Values = dict[str, Any]


class ConfigError(Exception):
    """A config.json that cannot be used. The text is the reason, `hint` the remedy."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class UnknownTypeError(ConfigError):
    """A `model_type` that headway does not read: a script may know it."""


def read_config(folder: Path, name: str) -> Model:
    """Return the sizes in the file `name`, a path from `folder`. Raises ConfigError."""
    config = _object(name, _content(folder / name, name))
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        _unknown_type(name, kind)
    keys = _Keys(config)
    values = FAMILIES[kind](keys)
    if keys.faults:
        raise ConfigError(
            f"`{name}`: {'; '.join(keys.faults)}", f"write it the way transformers saves the config of a `{kind}` model"
        )
    return _model(name, values)


def _content(path: Path, name: str) -> bytes:
    try:
        if not path.is_file():
            found = f"`{name}` is not a file" if path.exists() else f"there is no file `{name}`"
            near = file_like(Path(str(path).removesuffix(name)), name)
            meant = f"did you mean `{near}`?" if near is not None else None
            raise ConfigError(found, meant or "set the path of the config.json, relative to this document's folder")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"`{name}` cannot be read: {reason}", "check the path and its permissions") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(
            f"`{name}` is larger than {MAX_BYTES} bytes",
            "a config.json usually has a few thousand; check that this is the right file",
        )
    return content


def _object(name: str, content: bytes) -> Values:
    try:
        found = json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ConfigError(f"`{name}` is not UTF-8 text", "check that this is the right file") from None
    except RecursionError:
        raise ConfigError(
            f"`{name}` is nested too deep", "a config.json is nearly flat; check that this is the right file"
        ) from None
    except ValueError as error:
        raise ConfigError(f"`{name}` is not JSON: {error}", "check that this is the right file") from None
    if not isinstance(found, dict):
        raise ConfigError(f"`{name}` does not hold a JSON object", "check that this is the right file")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _unknown_type(name: str, kind: object) -> NoReturn:
    if kind is None:
        raise ConfigError(f"`{name}` has no `model_type`", "check that this is the config.json of a model")
    if not isinstance(kind, str):
        raise ConfigError(
            f"`{name}`: `model_type` must be text, found {_shown(kind)}", "check that this is the config.json of a model"
        )
    message = f"`{name}`: headway does not read the model_type {_shown(kind)}"
    raise UnknownTypeError(message, did_you_mean(kind, FAMILIES, "types").text)


def _model(name: str, values: Values) -> Model:
    try:
        return Model.model_validate_json(json.dumps({key: value for key, value in values.items() if value is not None}))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        message = f"`{name}`: `{place}` would be {_shown(first['input'])}, and {first['msg'].lower()}"
        raise ConfigError(message, "check that this is the config.json of a model") from None


class _Keys:
    """A config's keys by type. Missing or wrong ones are added to `faults`, and a harmless value is used instead."""

    def __init__(self, config: Values) -> None:
        self.config = config
        self.faults: list[str] = []

    def integer(self, *names: str, default: int | None = None, least: int = 1, most: int = _MAX_INTEGER) -> int:
        """Return the first of the keys that exists. Older files and newer ones may name one thing differently."""
        name, value = self._first(names)
        if value is None and default is not None:
            return default
        if value is None:
            self.faults.append(f"`{name}` is missing")
        elif not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            bound = f"at least {least}" if most == _MAX_INTEGER else f"{least} to {most}"
            self.faults.append(f"`{name}` must be an integer of {bound}, found {_shown(value)}")
        else:
            return value
        return least

    def optional(self, name: str) -> int | None:
        return None if self.config.get(name) is None else self.integer(name)

    def number(self, name: str, default: float) -> float:
        value = self.config.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self.faults.append(f"`{name}` must be a number above 0, found {_shown(value)}")
            return default
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.config.get(name)
        if isinstance(value, bool):
            return value
        if value is not None:
            self.faults.append(f"`{name}` must be true or false, found {_shown(value)}")
        return default

    def integers(self, name: str) -> list[int]:
        """Indices of blocks, in order; none when the key is missing."""
        value = self.config.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(item) is int and 0 <= item < _MAX_LAYERS for item in value):
            self.faults.append(f"`{name}` must be a list of block indices")
            return []
        return sorted(set(value))

    def rope_theta(self, default: float = 10_000.0) -> float:
        """Return the value from `rope_parameters` since transformers 5, from the top level before."""
        parameters = self.config.get("rope_parameters")
        if isinstance(parameters, dict) and "rope_theta" in parameters:
            inner = _Keys(parameters)
            theta = inner.number("rope_theta", default)
            self.faults += inner.faults
            return theta
        return self.number("rope_theta", default)

    def _first(self, names: Sequence[str]) -> tuple[str, Any]:
        present = (name for name in names if self.config.get(name) is not None)
        name = next(present, names[0])
        return name, self.config.get(name)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return f"`{text}`" if len(text) <= 40 else f"`{text[:37]}...`"


def _decoder(
    keys: _Keys,
    norm_eps: str = "rms_norm_eps",
    eps: float = 1e-6,
    theta: float = 10_000.0,
    *,
    kv_heads: int | None = None,
    tied: bool = False,
    own_biases: Values | None = None,
) -> Values:
    """Return the settings that the configs of most families share; a family with biases of its own passes `own_biases`."""
    heads = keys.integer("num_attention_heads")
    return {
        "vocab_size": keys.integer("vocab_size"),
        "layers": keys.integer("num_hidden_layers", most=_MAX_LAYERS),
        "hidden": keys.integer("hidden_size"),
        "heads": heads,
        "kv_heads": keys.integer("num_key_value_heads", default=heads if kv_heads is None else kv_heads),
        "head_dim": keys.optional("head_dim"),
        "rope_theta": keys.rope_theta(theta),
        "norm_eps": keys.number(norm_eps, eps),
        "tie_embeddings": keys.flag("tie_word_embeddings", tied),
        **(_biases(keys) if own_biases is None else own_biases),
    }


def _biases(keys: _Keys) -> Values:
    attention, mlp = keys.flag("attention_bias"), keys.flag("mlp_bias")
    if attention != mlp:
        keys.faults.append("`attention_bias` and `mlp_bias` differ; headway's models have a bias in both or in neither")
    return {"qkv_bias": attention, "linear_bias": mlp}


def _llama(keys: _Keys) -> Values:
    return {**_decoder(keys), "ffn_hidden": keys.integer("intermediate_size")}


def _phi3(keys: _Keys) -> Values:
    """Return the sizes. It has no biases: transformers ignores `attention_bias` (modeling_phi3.py)."""
    none = {"qkv_bias": False, "linear_bias": False}
    return {**_decoder(keys, eps=1e-5, own_biases=none), "ffn_hidden": keys.integer("intermediate_size")}


def _smollm3(keys: _Keys) -> Values:
    """Return the sizes. Its blocks without rotary positions (`no_rope_layers`) have the same parameters."""
    return {**_decoder(keys, kv_heads=4, tied=True), "ffn_hidden": keys.integer("intermediate_size")}


def _starcoder2(keys: _Keys) -> Values:
    has_biases = keys.flag("use_bias", True)
    biases = {"qkv_bias": has_biases, "linear_bias": has_biases}
    own = {"ffn_hidden": keys.integer("intermediate_size"), "mlp": "plain", "norm": "layer"}
    return {**_decoder(keys, "norm_epsilon", 1e-5, kv_heads=2, tied=True, own_biases=biases), **own}


def _gpt_neox(keys: _Keys) -> Values:
    if not keys.flag("attention_bias", True):
        keys.faults.append("`attention_bias` is false and the MLP has biases; headway's models have a bias in both or in neither")
    return {
        "vocab_size": keys.integer("vocab_size"),
        "layers": keys.integer("num_hidden_layers", most=_MAX_LAYERS),
        "hidden": keys.integer("hidden_size"),
        "heads": keys.integer("num_attention_heads"),
        "ffn_hidden": keys.integer("intermediate_size"),
        "mlp": "plain",
        "norm": "layer",
        # Files written before transformers 5 have `rotary_emb_base`.
        "rope_theta": keys.rope_theta(keys.number("rotary_emb_base", 10_000.0)),
        "norm_eps": keys.number("layer_norm_eps", 1e-5),
        "tie_embeddings": keys.flag("tie_word_embeddings"),
        "qkv_bias": True,
        "linear_bias": True,
    }


def _mixtral(keys: _Keys) -> Values:
    experts = {
        "count": keys.integer("num_local_experts"),
        "top_k": keys.integer("num_experts_per_tok"),
        "ffn_hidden": keys.integer("intermediate_size"),
    }
    return {**_decoder(keys, eps=1e-5, theta=1_000_000.0), "experts": experts}


def _qwen2(keys: _Keys) -> Values:
    return {**_llama(keys), "qkv_bias": True}


def _qwen3(keys: _Keys) -> Values:
    return {**_llama(keys), "head_dim": keys.integer("head_dim", default=128), "qk_norm": True}


def _qwen3_moe(keys: _Keys) -> Values:
    decoder = _decoder(keys)
    experts = {
        "count": keys.integer("num_experts", "num_local_experts"),
        "top_k": keys.integer("num_experts_per_tok"),
        "ffn_hidden": keys.integer("moe_intermediate_size"),
        **_sparse_blocks(keys, decoder["layers"]),
    }
    return {**decoder, "qk_norm": True, **_with_dense(keys, experts, "intermediate_size")}


def _sparse_blocks(keys: _Keys, layers: int) -> Values:
    """Qwen's rule: each `decoder_sparse_step`-th block has experts unless it is in `mlp_only_layers`."""
    step, dense = keys.integer("decoder_sparse_step", default=1), keys.integers("mlp_only_layers")
    if not dense:
        return {"every": step}
    return _pattern(keys, "mlp_only_layers", layers, [i for i in range(step - 1, layers, step) if i not in set(dense)])


def _pattern(keys: _Keys, name: str, layers: int, blocks: Sequence[int]) -> Values:
    """Return the blocks with experts as `first_dense` and `every`."""
    every = blocks[1] - blocks[0] if len(blocks) > 1 else 1
    first_dense = blocks[0] - every + 1 if blocks else -1
    if first_dense < 0 or list(range(blocks[0], layers, every)) != list(blocks):
        keys.faults.append(f"`{name}` does not put experts into every n-th block from some block on")
        return {}
    return {"first_dense": first_dense, "every": every}


def _with_dense(keys: _Keys, experts: Values, width: str) -> Values:
    """Return the experts, and the width of the plain MLP when some blocks have one."""
    if experts.get("first_dense", 0) == 0 and experts.get("every", 1) == 1:
        return {"experts": experts}
    return {"experts": experts, "ffn_hidden": keys.integer(width)}


def _deepseek_v3(keys: _Keys) -> Values:
    experts = {
        "count": keys.integer("n_routed_experts"),
        "top_k": keys.integer("num_experts_per_tok"),
        "ffn_hidden": keys.integer("moe_intermediate_size"),
        "shared": keys.integer("n_shared_experts", default=0, least=0),
        "first_dense": keys.integer("first_k_dense_replace", least=0),
        # Only the code published with the first weights reads it; transformers takes it for 1.
        "every": keys.integer("moe_layer_freq", default=1, most=1),
    }
    latent = {
        "q_rank": keys.optional("q_lora_rank"),
        "kv_rank": keys.integer("kv_lora_rank"),
        "nope_head": keys.integer("qk_nope_head_dim"),
        "rope_head": keys.integer("qk_rope_head_dim"),
        "value_head": keys.integer("v_head_dim"),
    }
    # `head_dim` and `num_key_value_heads` mean nothing in a model with latent attention.
    own = {"kv_heads": None, "head_dim": None, "latent_attention": latent}
    return {**_decoder(keys), **own, **_with_dense(keys, experts, "intermediate_size")}


def _gemma(keys: _Keys) -> Values:
    head = {"head_dim": keys.integer("head_dim", default=256)}
    return {**_decoder(keys, tied=True), **head, "ffn_hidden": keys.integer("intermediate_size")}


def _gemma3_text(keys: _Keys) -> Values:
    return {**_gemma(keys), "rope_theta": keys.rope_theta(1_000_000.0), "qk_norm": True}


def _gemma3(keys: _Keys) -> Values:
    return _of_text(keys, _gemma3_text)


def _olmo2(keys: _Keys) -> Values:
    return {**_decoder(keys, eps=1e-5, theta=500_000.0), "ffn_hidden": keys.integer("intermediate_size"), "qk_norm": True}


def _olmoe(keys: _Keys) -> Values:
    experts = {
        "count": keys.integer("num_experts"),
        "top_k": keys.integer("num_experts_per_tok"),
        "ffn_hidden": keys.integer("intermediate_size"),
    }
    return {**_decoder(keys, eps=1e-5), "experts": experts, "qk_norm": True}


def _qwen2_moe(keys: _Keys) -> Values:
    values = _qwen3_moe(keys)
    shared = {"shared": 1, "shared_ffn_hidden": keys.integer("shared_expert_intermediate_size")}
    return {**values, "qk_norm": None, "qkv_bias": keys.flag("qkv_bias", True), "experts": {**values["experts"], **shared}}


def _gpt_oss(keys: _Keys) -> Values:
    """Return the sizes; of the biases those of queries, keys and values."""
    experts = {
        "count": keys.integer("num_local_experts"),
        "top_k": keys.integer("num_experts_per_tok", "experts_per_token"),
        "ffn_hidden": keys.integer("intermediate_size"),
    }
    bias = {"qkv_bias": keys.flag("attention_bias", True), "linear_bias": False}
    return {**_decoder(keys, eps=1e-5, theta=150_000.0, own_biases=bias), "experts": experts}


def _falcon(keys: _Keys) -> Values:
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads", "n_head")
    grouped, single = keys.flag("new_decoder_architecture"), keys.flag("multi_query", True)
    biased = keys.flag("bias")
    return {
        "vocab_size": keys.integer("vocab_size"),
        "layers": keys.integer("num_hidden_layers", "n_layer", most=_MAX_LAYERS),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": keys.integer("num_kv_heads", "n_head_kv", default=heads) if grouped else 1 if single else heads,
        "ffn_hidden": keys.integer("ffn_hidden_size", default=4 * hidden),
        "mlp": "plain",
        "norm": "layer",
        "positions": "none" if keys.flag("alibi") else "rotary",
        "rope_theta": None if keys.flag("alibi") else keys.rope_theta(),
        "norm_eps": keys.number("layer_norm_epsilon", 1e-5),
        "tie_embeddings": keys.flag("tie_word_embeddings", True),
        "qkv_bias": biased,
        "linear_bias": biased,
    }


def _bloom(keys: _Keys) -> Values:
    hidden = keys.integer("hidden_size", "n_embed")
    return {
        "vocab_size": keys.integer("vocab_size"),
        "layers": keys.integer("n_layer", "num_hidden_layers", most=_MAX_LAYERS),
        "hidden": hidden,
        "heads": keys.integer("n_head", "num_attention_heads"),
        "ffn_hidden": 4 * hidden,
        "mlp": "plain",
        "norm": "layer",
        "positions": "none",
        "norm_eps": keys.number("layer_norm_epsilon", 1e-5),
        "tie_embeddings": keys.flag("tie_word_embeddings", True),
        "qkv_bias": True,
        "linear_bias": True,
    }


def _llama4(keys: _Keys) -> Values:
    return _of_text(keys, _llama4_text)


def _of_text(keys: _Keys, read: Callable[[_Keys], Values]) -> Values:
    """Return the sizes of the text part of a model of several parts."""
    text = keys.config.get("text_config")
    if not isinstance(text, dict):
        keys.faults.append("`text_config` is missing")
        return {}
    inner = _Keys(text)
    values = read(inner)
    keys.faults += inner.faults
    return values


def _llama4_text(keys: _Keys) -> Values:
    """Return the sizes. Its norm of queries and keys (`use_qk_norm`) has no weights, so it is not `qk_norm`."""
    decoder = _decoder(keys, eps=1e-5, theta=500_000.0)
    width, blocks = keys.integer("intermediate_size"), keys.integers("moe_layers")
    step = {"every": keys.integer("interleave_moe_layer_step", default=1)}
    experts = {
        "count": keys.integer("num_local_experts"),
        "top_k": keys.integer("num_experts_per_tok"),
        "ffn_hidden": width,
        "shared": 1,
        **(_pattern(keys, "moe_layers", decoder["layers"], blocks) if blocks else step),
    }
    return {**decoder, **_with_dense(keys, experts, "intermediate_size_mlp")}


def _nemotron(keys: _Keys) -> Values:
    decoder = _decoder(keys, "norm_eps", 1e-5)
    return {**decoder, "ffn_hidden": keys.integer("intermediate_size"), "mlp": "plain", "norm": "layer"}


def _gpt2(keys: _Keys) -> Values:
    hidden = keys.integer("n_embd")
    return {
        "vocab_size": keys.integer("vocab_size"),
        "layers": keys.integer("n_layer", most=_MAX_LAYERS),
        "hidden": hidden,
        "heads": keys.integer("n_head"),
        "ffn_hidden": keys.integer("n_inner", default=4 * hidden),
        "mlp": "plain",
        "norm": "layer",
        "positions": "learned",
        "max_positions": keys.integer("n_positions"),
        "norm_eps": keys.number("layer_norm_epsilon", 1e-5),
        "tie_embeddings": keys.flag("tie_word_embeddings", True),
        "qkv_bias": True,
        "linear_bias": True,
    }


# By `model_type`.
FAMILIES: Mapping[str, Callable[[_Keys], Values]] = {
    "bloom": _bloom,
    "deepseek_v2": _deepseek_v3,
    "deepseek_v3": _deepseek_v3,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3_text,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "granite": _llama,
    # The config of the published weights has the keys of deepseek_v3.
    "kimi_k2": _deepseek_v3,
    "llama": _llama,
    "llama4": _llama4,
    "llama4_text": _llama4_text,
    "mistral": _llama,
    "mixtral": _mixtral,
    "nemotron": _nemotron,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "olmoe": _olmoe,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _smollm3,
    "starcoder2": _starcoder2,
}

# Parts of a family that its sizes omit: far below one percent of the parameters, which estimates can do without, and a trainer cannot.
LEFT_OUT: Mapping[str, str] = {
    "bloom": "the norm after the embedding and the biases of the positions (ALiBi)",
    "falcon": "the parallel attention and MLP",
    "gemma2": "the norms after attention and MLP",
    "gemma3": "the norms after attention and MLP, and the parts that are not text",
    "gemma3_text": "the norms after attention and MLP",
    "gpt_oss": "the attention sinks and the experts' biases",
    "olmo2": "the place of the norms, and the width of those of queries and keys",
    "olmo3": "the place of the norms, and the width of those of queries and keys",
    "olmoe": "the width of the norms of queries and keys",
    "qwen2_moe": "the gate of the shared expert",
}


def left_out(folder: Path, name: str) -> tuple[str, str] | None:
    """Return the family of the config.json, and the parts that its sizes omit; None if there are none. Raises ConfigError."""
    kind = str(_object(name, _content(folder / name, name)).get("model_type"))
    return (kind, LEFT_OUT[kind]) if kind in LEFT_OUT else None
