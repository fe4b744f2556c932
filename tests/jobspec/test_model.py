"""A model's spec: a config.json gives the parameters that transformers builds; explicit values override; contradictions are found."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.jobspec.catalog.huggingface import FAMILIES, LEFT_OUT, MAX_BYTES
from headway.jobspec.catalog.models import models
from headway.jobspec.check.model import check_model
from headway.jobspec.document import Path as DocumentPath
from headway.jobspec.resolve.model import MissingSizeError, UnknownPresetError, as_decoder, described, resolve_model
from headway.jobspec.spec.model import Model
from headway.runner import contract
from headway.runner.train.model import Transformer

NOWHERE = Path("/nonexistent")

SHAPE = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
MOE = {**SHAPE, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
LATENT = {
    **SHAPE,
    "num_key_value_heads": 6,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "first_k_dense_replace": 1,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
}
LLAMA_4 = {
    **SHAPE,
    "intermediate_size": 64,
    "intermediate_size_mlp": 200,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "head_dim": 16,
}
NO_KV_HEADS = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"}
GPT_2 = {"vocab_size": 320, "n_positions": 128, "n_embd": 96, "n_layer": 4, "n_head": 6}


def _shape(vocabulary: int, hidden: int, layers: int, heads: int, kv_heads: int) -> dict[str, int]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


# A config.json, and all and active parameters of the model that transformers 5.23 builds from it (on torch's meta device).
CONFIGS: dict[str, tuple[dict[str, Any], int, int]] = {
    "llama": ({"model_type": "llama", **SHAPE}, 455520, 455520),
    "llama, tied": ({"model_type": "llama", **SHAPE, "tie_word_embeddings": True}, 424800, 424800),
    "llama, biased, with wide heads": (
        {"model_type": "llama", **SHAPE, "attention_bias": True, "mlp_bias": True, "head_dim": 32},
        557920,
        557920,
    ),
    "mistral": ({"model_type": "mistral", **SHAPE}, 455520, 455520),
    "mixtral": ({"model_type": "mixtral", **SHAPE, "num_local_experts": 4, "num_experts_per_tok": 2}, 1341792, 751968),
    "qwen2": ({"model_type": "qwen2", **SHAPE}, 456160, 456160),
    "qwen3": ({"model_type": "qwen3", **SHAPE}, 1144672, 1144672),
    "qwen3_moe": ({"model_type": "qwen3_moe", **MOE}, 439520, 255200),
    "qwen3_moe, each second block": ({"model_type": "qwen3_moe", **MOE, "decoder_sparse_step": 2}, 447584, 355424),
    "qwen3_moe, two dense blocks": ({"model_type": "qwen3_moe", **MOE, "mlp_only_layers": [0, 1]}, 447584, 355424),
    "deepseek_v3": ({"model_type": "deepseek_v3", **LATENT, "q_lora_rank": 36}, 528144, 389904),
    "deepseek_v3, queries not compressed": ({"model_type": "deepseek_v3", **LATENT, "q_lora_rank": None}, 548736, 410496),
    "llama4": ({"model_type": "llama4", "text_config": {**LLAMA_4, "interleave_moe_layer_step": 2}}, 460896, 350304),
    "llama4, blocks listed": ({"model_type": "llama4_text", **LLAMA_4, "moe_layers": [0, 1, 2, 3]}, 530784, 309600),
    "nemotron": ({"model_type": "nemotron", **SHAPE}, 358080, 358080),
    "gpt2": ({"model_type": "gpt2", **GPT_2}, 490560, 490560),
    "phi3": ({"model_type": "phi3", **SHAPE}, 455520, 455520),
    "granite": ({"model_type": "granite", **SHAPE}, 455520, 455520),
    "granite, biased": ({"model_type": "granite", **SHAPE, "attention_bias": True, "mlp_bias": True}, 458976, 458976),
    "smollm3": ({"model_type": "smollm3", **NO_KV_HEADS, "num_attention_heads": 8}, 437088, 437088),
    "smollm3, not tied": ({"model_type": "smollm3", **SHAPE, "tie_word_embeddings": False}, 455520, 455520),
    "starcoder2": ({"model_type": "starcoder2", **SHAPE}, 329792, 329792),
    "starcoder2, no biases": (
        {"model_type": "starcoder2", **SHAPE, "use_bias": False, "tie_word_embeddings": False},
        358080,
        358080,
    ),
    "gpt_neox": ({"model_type": "gpt_neox", **NO_KV_HEADS}, 410176, 410176),
    "deepseek_v2": ({"model_type": "deepseek_v2", **LATENT, "q_lora_rank": 36}, 528144, 389904),
    "deepseek_v2, queries not compressed": ({"model_type": "deepseek_v2", **LATENT, "q_lora_rank": None}, 548736, 410496),
}

# Shapes of published models, and the parameters of the model that transformers 5.23 builds from each; if the sizes omit something,
# they differ by less than 0.04 %.
BUILT: dict[str, tuple[dict[str, Any], int]] = {
    "gemma-2b": (
        {"model_type": "gemma", **_shape(256000, 2048, 18, 8, 1), "head_dim": 256, "intermediate_size": 16384},
        2506172416,
    ),
    "gemma-2-9b": (
        {"model_type": "gemma2", **_shape(256000, 3584, 42, 16, 8), "head_dim": 256, "intermediate_size": 14336},
        9241705984,
    ),
    "gemma-3-12b": (
        {"model_type": "gemma3", "text_config": {**_shape(262208, 3840, 48, 16, 8), "head_dim": 256, "intermediate_size": 15360}},
        11766034176,
    ),
    "olmo-2-7b": ({"model_type": "olmo2", **_shape(100352, 4096, 32, 32, 32), "intermediate_size": 11008}, 7298617344),
    "olmo-3-7b": ({"model_type": "olmo3", **_shape(100278, 4096, 32, 32, 32), "intermediate_size": 11008}, 7298011136),
    "olmoe-1b-7b": (
        {
            "model_type": "olmoe",
            **_shape(50304, 2048, 16, 16, 16),
            "intermediate_size": 1024,
            "num_experts": 64,
            "num_experts_per_tok": 8,
        },
        6919161856,
    ),
    "qwen1.5-moe-a2.7b": (
        {
            "model_type": "qwen2_moe",
            **_shape(151936, 2048, 24, 16, 16),
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts": 60,
            "num_experts_per_tok": 4,
        },
        14315784192,
    ),
    "gpt-oss-20b": (
        {
            "model_type": "gpt_oss",
            **_shape(201088, 2880, 24, 64, 8),
            "head_dim": 64,
            "intermediate_size": 2880,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
        },
        20914757184,
    ),
    "falcon-7b": ({"model_type": "falcon", **_shape(65024, 4544, 32, 71, 71), "multi_query": True}, 6921720704),
    "falcon-40b": (
        {"model_type": "falcon", **_shape(65024, 8192, 60, 128, 128), "num_kv_heads": 8, "new_decoder_architecture": True},
        41303293952,
    ),
    "bloom": ({"model_type": "bloom", "vocab_size": 250880, "hidden_size": 14336, "n_layer": 70, "n_head": 112}, 176247271424),
    # transformers has no such type; the count follows from the published config, which has deepseek_v3's keys.
    "kimi-k2": (
        {
            "model_type": "kimi_k2",
            **_shape(163840, 7168, 61, 64, 64),
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 384,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        1026408209408,
    ),
}

# Keys and values of published configurations; each must equal the catalog's entry.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "model_type": "llama",
        "attention_bias": False,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "attention_bias": False,
        "first_k_dense_replace": 3,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000,
        "tie_word_embeddings": False,
        "v_head_dim": 128,
        "vocab_size": 129280,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "vocab_size": 151936,
    },
    "llama-4-maverick": {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text",
            "attention_bias": False,
            "head_dim": 128,
            "hidden_size": 5120,
            "interleave_moe_layer_step": 2,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_attention_heads": 40,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "num_local_experts": 128,
            "rms_norm_eps": 1e-05,
            "rope_theta": 500000.0,
            "use_qk_norm": False,
            "vocab_size": 202048,
        },
    },
}

TINY = {"vocab_size": 256, "layers": 2, "hidden": 64, "heads": 4, "ffn_hidden": 176}
EXPERTS = {"count": 4, "top_k": 2, "ffn_hidden": 32}
LATENT_ATTENTION = {"kv_rank": 16, "nope_head": 8, "rope_head": 4, "value_head": 8}


def model(**values: Any) -> Model:
    return Model.model_validate_json(json.dumps(values))


def config_model(folder: Path, config: object, **own: Any) -> Model:
    (folder / "config.json").write_text(json.dumps(config))
    return model(config="config.json", **own)


def found(checked: Model, folder: Path = NOWHERE) -> list[tuple[str, DocumentPath]]:
    return [(problem.code, problem.path) for problem in check_model(checked, folder)]


def refusal(folder: Path, content: bytes) -> str:
    """Return the message about a config.json of these bytes, which is reported once, at `config`."""
    (folder / "config.json").write_bytes(content)
    (problem,) = check_model(model(config="config.json"), folder)
    assert (problem.code, problem.path) == ("HW310", ("model", "config"))
    assert problem.hint
    return problem.message


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_of_a_config_match_transformers(name: str, tmp_path: Path) -> None:
    config, parameters, active = CONFIGS[name]
    described_by_config = config_model(tmp_path, config)
    assert found(described_by_config, tmp_path) == []
    sizes = resolve_model(described_by_config, tmp_path)
    assert (sizes.parameters, sizes.active_parameters) == (parameters, active)


@pytest.mark.parametrize("name", BUILT)
def test_parameters_of_a_family_match_except_for_listed_parts(name: str, tmp_path: Path) -> None:
    config, parameters = BUILT[name]
    checked = config_model(tmp_path, config)
    apart = abs(resolve_model(checked, tmp_path).parameters / parameters - 1)
    assert apart < (0.0004 if config["model_type"] in LEFT_OUT else 1e-15)
    assert list(check_model(checked, tmp_path, of_script=True)) == []
    by_builtin = [problem.code for problem in check_model(checked, tmp_path)]
    assert by_builtin == (["HW310"] if config["model_type"] in LEFT_OUT else [])


def test_every_family_has_a_config_built_by_transformers() -> None:
    tested = {config["model_type"] for config, *_ in CONFIGS.values()} | {config["model_type"] for config, _ in BUILT.values()}
    assert set(FAMILIES) - tested == {"gemma3_text"}
    assert set(LEFT_OUT) <= set(FAMILIES)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_equals_the_preset(name: str, tmp_path: Path) -> None:
    assert resolve_model(config_model(tmp_path, PUBLISHED[name]), tmp_path) == resolve_model(model(preset=name), NOWHERE)


def test_rope_base_is_read_from_its_field_in_transformers_5(tmp_path: Path) -> None:
    config = {"model_type": "llama", **SHAPE, "rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}}
    assert resolve_model(config_model(tmp_path, config), tmp_path).rope_theta == 250000.0


def test_config_path_is_relative_to_the_document(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps({"model_type": "llama", **SHAPE}))
    assert resolve_model(model(config="llama/config.json"), tmp_path).hidden == 96


def test_value_next_to_a_preset_replaces_only_that_value() -> None:
    own = described(model(preset="qwen3-30b-a3b", layers=4, experts=EXPERTS), NOWHERE)
    preset = models()["qwen3-30b-a3b"].model
    assert (own.layers, own.hidden, own.head_dim) == (4, preset.hidden, preset.head_dim)
    assert own.experts == model(experts=EXPERTS).experts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "`config.json` is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b'{"vocab_size": NaN}', "`config.json` is not JSON: NaN is not a JSON number"),
        (b"\xff\xfe\xff", "`config.json` is not UTF-8 text"),
        (b"[1, 2]", "`config.json` does not hold a JSON object"),
        (b"[" * 200_000, "`config.json` is nested too deep"),
        (b" " * (MAX_BYTES + 1), "`config.json` is larger than 1048576 bytes"),
        (b"{}", "`config.json` has no `model_type`"),
        (b'{"model_type": "mamba2"}', '`config.json`: headway does not read the model_type `"mamba2"`'),
        (b'{"model_type": ["llama"]}', "`config.json`: `model_type` must be text, found a list"),
        (b'{"model_type": "llama4", "text_config": []}', "`config.json`: `text_config` is missing"),
    ],
    ids=lambda value: value[:24].decode(errors="replace") if isinstance(value, bytes) else "",
)
def test_file_that_is_not_a_config_is_rejected_with_the_reason(content: bytes, message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, content) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None, "vocab_size": None}, "`config.json`: `vocab_size` is missing; `hidden_size` is missing"),
        ({"hidden_size": "96"}, '`config.json`: `hidden_size` must be an integer of at least 1, found `"96"`'),
        ({"hidden_size": True}, "`config.json`: `hidden_size` must be an integer of at least 1, found `true`"),
        ({"num_hidden_layers": 10**9}, "`config.json`: `num_hidden_layers` must be an integer of 1 to 10000, found `1000000000`"),
        ({"head_dim": -1}, "`config.json`: `head_dim` must be an integer of at least 1, found `-1`"),
        ({"rope_theta": "ten"}, '`config.json`: `rope_theta` must be a number above 0, found `"ten"`'),
        ({"rms_norm_eps": 0}, "`config.json`: `rms_norm_eps` must be a number above 0, found `0`"),
        ({"tie_word_embeddings": 1}, "`config.json`: `tie_word_embeddings` must be true or false, found `1`"),
        (
            {"attention_bias": True},
            "`config.json`: `attention_bias` and `mlp_bias` differ; headway's models have a bias in both or in neither",
        ),
    ],
)
def test_wrong_value_is_reported_with_the_expected_form(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, json.dumps({"model_type": "llama", **SHAPE, **change}).encode()) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"mlp_only_layers": [1]},
            "`config.json`: `mlp_only_layers` does not put experts into every n-th block from some block on",
        ),
        (
            {"mlp_only_layers": [0, 1, 2, 3]},
            "`config.json`: `mlp_only_layers` does not put experts into every n-th block from some block on",
        ),
        ({"mlp_only_layers": "0"}, "`config.json`: `mlp_only_layers` must be a list of block indices"),
        ({"num_experts": 1}, "`config.json`: `experts.count` would be `1`, and input should be greater than or equal to 2"),
    ],
)
def test_experts_that_the_language_cannot_describe_are_rejected(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, json.dumps({"model_type": "qwen3_moe", **MOE, **change}).encode()) == message


def test_missing_config_or_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert [problem.message for problem in check_model(model(config="a.json"), tmp_path)] == ["there is no file `a.json`"]
    assert [problem.message for problem in check_model(model(config="folder"), tmp_path)] == ["`folder` is not a file"]
    assert [problem.code for problem in check_model(model(config="a\0b"), tmp_path)] == ["HW310"]
    assert [problem.code for problem in check_model(model(config="a" * 5000), tmp_path)] == ["HW310"]


KEYS = sorted({key for config, _, _ in CONFIGS.values() for key in config} | set(LLAMA_4) | {"moe_layers", "rope_parameters"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=5) | st.sampled_from(["llama", "gpt2"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(CONFIGS)), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_no_value_in_a_config_raises(tmp_path_factory: pytest.TempPathFactory, name: str, change: dict[str, Any]) -> None:
    folder = tmp_path_factory.getbasetemp()
    checked = config_model(folder, {**CONFIGS[name][0], **change})
    if not found(checked, folder):
        assert resolve_model(checked, folder).parameters > 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [("HW311", ("model",))]),
        ({"layers": 2, "experts": EXPERTS}, [("HW311", ("model",))]),
        ({**TINY, "preset": "llama-3-8b", "config": "x"}, [("HW210", ("model", "config"))]),
        ({"preset": "llama-3-9b"}, [("HW309", ("model", "preset"))]),
        ({**TINY, "heads": 3}, [("HW302", ("model", "hidden"))]),
        ({**TINY, "heads": 3, "head_dim": 16}, []),
        ({**TINY, "kv_heads": 3}, [("HW303", ("model", "kv_heads"))]),
        ({**TINY, "hidden": 60}, [("HW304", ("model", "hidden"))]),
        ({**TINY, "hidden": 60, "positions": "none"}, []),
        ({**TINY, "head_dim": 15}, [("HW304", ("model", "head_dim"))]),
        ({"preset": "llama-3-8b", "heads": 30}, [("HW303", ("model", "heads")), ("HW302", ("model", "heads"))]),
        ({"preset": "llama-3-8b", "kv_heads": 3}, [("HW303", ("model", "kv_heads"))]),
        ({**TINY, "positions": "learned"}, [("HW311", ("model", "positions"))]),
        ({**TINY, "positions": "learned", "max_positions": 128}, []),
        ({**TINY, "max_positions": 128}, [("HW210", ("model", "max_positions"))]),
        ({**TINY, "positions": "none", "rope_theta": 10000.0}, [("HW210", ("model", "rope_theta"))]),
        ({**TINY, "experts": EXPERTS}, [("HW210", ("model", "ffn_hidden"))]),
        ({**TINY, "experts": {**EXPERTS, "first_dense": 1}}, []),
        ({**TINY, "experts": {**EXPERTS, "top_k": 5, "every": 2}}, [("HW311", ("model", "experts", "top_k"))]),
        ({**TINY, "experts": {**EXPERTS, "first_dense": 2}}, [("HW311", ("model", "experts", "first_dense"))]),
        ({**TINY, "experts": {**EXPERTS, "every": 3}}, [("HW311", ("model", "experts", "every"))]),
        (
            {**TINY, "experts": {**EXPERTS, "every": 2, "shared_ffn_hidden": 8}},
            [("HW210", ("model", "experts", "shared_ffn_hidden"))],
        ),
        ({**TINY, "latent_attention": LATENT_ATTENTION}, []),
        (
            {**TINY, "latent_attention": LATENT_ATTENTION, "kv_heads": 3, "head_dim": 16},
            [("HW210", ("model", "kv_heads")), ("HW210", ("model", "head_dim"))],
        ),
        (
            {**TINY, "latent_attention": {**LATENT_ATTENTION, "rope_head": 5}},
            [("HW304", ("model", "latent_attention", "rope_head"))],
        ),
        ({"preset": "deepseek-v3", "layers": 3}, [("HW311", ("model", "layers"))]),
    ],
)
def test_each_contradiction_is_reported_at_its_field(values: dict[str, Any], expected: list[tuple[str, DocumentPath]]) -> None:
    assert found(model(**values)) == expected


def test_all_missing_sizes_are_reported_at_once() -> None:
    (problem,) = check_model(model(hidden=64), NOWHERE)
    assert problem.message == "the model is missing `vocab_size`, `layers`, `heads`, `ffn_hidden`"


def test_rejected_model_cannot_be_resolved() -> None:
    with pytest.raises(MissingSizeError, match="vocab_size, layers, hidden, heads, ffn_hidden"):
        resolve_model(model(), NOWHERE)
    with pytest.raises(UnknownPresetError, match="llama-9"):
        resolve_model(model(preset="llama-9"), NOWHERE)


@given(layers=st.integers(1, 40), first_dense=st.integers(0, 40), every=st.integers(1, 9))
def test_number_of_blocks_with_experts_matches_their_list(layers: int, first_dense: int, every: int) -> None:
    experts = {**EXPERTS, "first_dense": first_dense, "every": every}
    sizes = resolve_model(model(**{**TINY, "layers": layers}, experts=experts), NOWHERE)
    assert sizes.expert_layers == sum(sizes.has_experts(layer) for layer in range(layers))
    assert not any(sizes.has_experts(layer) for layer in range(min(layers, first_dense)))


def test_parameters_of_an_expert_are_counted_once_per_expert() -> None:
    one, two = (resolve_model(model(**TINY, experts={**EXPERTS, "count": count}), NOWHERE) for count in (4, 5))
    assert two.parameters - one.parameters == 2 * (one.expert_parameters + 64)
    assert two.active_parameters - one.active_parameters == 2 * 64
    assert one.expert_parameters == 3 * 64 * 32


@pytest.mark.parametrize("name", ["llama-2-70b", "llama-3.1-8b", "llama-3.2-1b"])
def test_builtin_trainer_builds_the_counted_parameters(name: str) -> None:
    sizes = resolve_model(model(preset=name), NOWHERE)
    decoder = as_decoder(sizes)
    assert isinstance(decoder, contract.Model)
    with torch.device("meta"):
        built = Transformer(decoder)
    assert sum(parameter.numel() for parameter in built.parameters()) == sizes.parameters


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"preset": "mixtral-8x7b"}, "experts"),
        ({"preset": "deepseek-v3"}, "experts, latent attention"),
        ({"preset": "gpt-3-6.7b"}, "a plain MLP, LayerNorm, learned positions, biases"),
        ({"preset": "qwen3-0.6b"}, "a norm of queries and keys, heads that do not make up `hidden`"),
        ({**TINY, "qkv_bias": True}, "biases"),
        ({**TINY, "positions": "none"}, "no positions"),
    ],
)
def test_field_that_the_builtin_trainer_cannot_build_is_reported(values: dict[str, Any], reason: str) -> None:
    assert as_decoder(resolve_model(model(**values), NOWHERE)) == reason


def test_defaults_match_the_decoder_of_the_runner() -> None:
    decoder = contract.Model(vocab_size=256, layers=2, hidden=64, heads=4, kv_heads=4, ffn_hidden=176)
    assert as_decoder(resolve_model(model(**TINY), NOWHERE)) == decoder
