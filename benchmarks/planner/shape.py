"""Derives a model's sizes from a published row: what its columns print, completed by the model's family."""

import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.planner.columns import LeftOutError, number, whole
from headway.jobspec.resolve.model import NORM_EPS, ROPE_THETA, ExpertSizes, LatentAttentionSizes, ModelSizes

# Without printed heads or head width.
_HEAD_DIM = 128
# bigscience: train/tr11-176B-ml/chronicles-prequel.md: 64 if a table has none.
_HEADS = {r"-bs$": 64}
# A printed count of parameters names the model (a `13B` with a large vocabulary has 14.0) as often as it counts.
_NOMINAL = 0.1


class Shape(Struct, frozen=True):
    """The sizes, what of the blocks has windowed attention, and what was supplied here because the row does not print it."""

    sizes: ModelSizes
    window: int | None = None
    windowed_share: float = 0.0
    assumed: tuple[str, ...] = ()


class Family(Struct, frozen=True):
    """The settings that models of a name have in common: `tied` None where the printed count of parameters decides."""

    mlp: str
    norm: str
    positions: str
    biases: bool
    tied: bool | None


_GPT = Family("plain", "layer", "learned", biases=True, tied=True)
_LLAMA = Family("gated", "rms", "rotary", biases=False, tied=False)
_FAMILIES: tuple[tuple[str, Family], ...] = (
    (r"^bloom|-bs$", Family("plain", "layer", "none", biases=True, tied=True)),  # ALiBi
    (r"^(?:gpt-oss)", Family("gated", "rms", "rotary", biases=True, tied=False)),
    (r"^(?:gpt|megatron|mt-nlg|megascale|opt)", _GPT),
    (r"^mpt", Family("plain", "layer", "learned", biases=False, tied=True)),
    (r"^nemotron-?4?-\d|^nemotron4|^nemotron-\d", Family("plain", "layer", "rotary", biases=False, tied=False)),
    (r"^grok", Family("gated", "rms", "rotary", biases=False, tied=True)),
    (r"^gemma", Family("gated", "rms", "rotary", biases=False, tied=True)),
    (r"^nanotron", Family("gated", "rms", "rotary", biases=False, tied=None)),
    (r"^llama|^qwen|^deepseek|^kimi|^moonlight|^mixtral|^moe-|^internlm", _LLAMA),
)
_QK_NORM = re.compile(r"^qwen3|qkln|^olmo2")


def shape(row: Mapping[str, str]) -> Shape:
    """Return the model of a row. Raises LeftOutError."""
    moe = row.get("moe", "")
    if re.search(r"hybrid|mamba|gdn", f"{moe} {row.get('extras', '')}", re.IGNORECASE):
        raise LeftOutError("hybrid model", f"hybrid model: {moe}")
    sizes, assumed = _with_family(row, _columns(row))
    window = re.search(r"SWA\s*(\d+)", moe)
    if window is None:
        return Shape(sizes, assumed=assumed)
    return Shape(sizes, int(window[1]), 0.5 if "alternating" in moe else 1.0, assumed)


def _columns(row: Mapping[str, str]) -> ModelSizes:
    """Return what the columns print, as if of the Llama family."""
    needed = {name: whole(row.get(name)) for name in ("hidden", "layers", "vocab")}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise LeftOutError("not printed", f"the model's {', '.join(missing)} not printed")
    hidden, layers, vocab = (value or 0 for value in needed.values())
    experts = _experts(row.get("moe", ""))
    ffn = whole(row.get("ffn")) or _usual_ffn(row["model"], hidden)
    if not ffn and (experts is None or experts.first_dense or experts.every > 1):
        raise LeftOutError("not printed", "the model's ffn not printed")
    heads = whole(row.get("heads")) or _usual_heads(row["model"], hidden)
    latent = _latent(row.get("moe", ""))
    width = re.search(r"head_dim=(\d+)", row.get("moe", ""))
    return ModelSizes(
        vocab_size=vocab,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else whole(row.get("kv_heads")) or heads,
        head_dim=latent.nope_head + latent.rope_head if latent else int(width[1]) if width else hidden // heads,
        ffn_hidden=ffn if experts is None or experts.first_dense or experts.every > 1 else 0,
        mlp="gated",
        norm="rms",
        positions="rotary",
        rope_theta=ROPE_THETA,
        max_positions=None,
        norm_eps=NORM_EPS,
        dropout=0.0,
        tie_embeddings=False,
        qkv_bias=False,
        linear_bias=False,
        qk_norm=bool(_QK_NORM.search(row["model"].lower())),
        experts=experts,
        latent_attention=latent,
    )


def _usual_ffn(model: str, hidden: int) -> int:
    """Four times the width in models of GPT's family, where nothing is printed."""
    return 4 * hidden if _family(model) is _GPT else 0


def _family(model: str) -> Family | None:
    return next((family for pattern, family in _FAMILIES if re.search(pattern, model.lower())), None)


def _usual_heads(model: str, hidden: int) -> int:
    named = (heads for pattern, heads in _HEADS.items() if re.search(pattern, model))
    return next(named, max(1, hidden // _HEAD_DIM))


def _experts(moe: str) -> ExpertSizes | None:
    """Return the column `moe`: `E256 top8 moe_ffn=2048 shared1 dense_first=3 ...`. Raises LeftOutError for experts
    without sizes."""
    if not moe.strip():
        return None
    count, top_k, ffn = (re.search(pattern, moe) for pattern in (r"\bE(\d+)", r"top-?(\d+)", r"moe_ffn=(\d+)"))
    if count is None or top_k is None or ffn is None:
        raise LeftOutError("not printed", f"experts without their count, choice or width: {moe}")
    shared_ffn = re.search(r"shared_ffn=(\d+)", moe)
    return ExpertSizes(
        count=int(count[1]),
        top_k=int(top_k[1]),
        ffn_hidden=int(ffn[1]),
        shared=_number(r"shared=?(\d+)", moe, 0),
        shared_ffn_hidden=int(shared_ffn[1]) if shared_ffn else int(ffn[1]),
        first_dense=_number(r"dense_first=(\d+)", moe, 0),
        every=_number(r"(?:every|moe_every|interleave)[ =]?(\d+)", moe, 1),
    )


def _latent(moe: str) -> LatentAttentionSizes | None:
    """`MLA(q1536,kv512,nope128,rope64,v128)`; omitted parts are as in arXiv 2405.04434, where all models of this kind agree."""
    if "MLA" not in moe:
        return None
    query = re.search(r"MLA\([^)]*\bq(\d+)", moe)
    return LatentAttentionSizes(
        q_rank=int(query[1]) if query else None,
        kv_rank=_number(r"\bkv(\d+)", moe, 512),
        nope_head=_number(r"nope(\d+)", moe, 128),
        rope_head=_number(r"rope(\d+)", moe, 64),
        value_head=_number(r"\bv(\d+)", moe, 128),
    )


def _number(pattern: str, text: str, default: int) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else default


def _with_family(row: Mapping[str, str], sizes: ModelSizes) -> tuple[ModelSizes, tuple[str, ...]]:
    """Return the sizes with what the family has; where that is not known, as agrees best with the printed count of parameters."""
    supplied = (("heads", sizes.heads), ("ffn", sizes.ffn_hidden))
    assumed = tuple(f"{name} {size}" for name, size in supplied if size and not whole(row.get(name)))
    known = _family(row["model"])
    candidates = [known] if known else [_LLAMA, _GPT]
    tied = _tied(row)
    made = [
        _of_family(sizes, family, tie, whole(row.get("seq")) or 2048)
        for family in candidates
        for tie in (_ties(family) if tied is None else (tied,))
    ]
    printed = number(row.get("params_b"))
    if printed is None:
        return made[0], assumed if known else (*assumed, f"family of {row['model']}")
    best = min(made, key=lambda sized: abs(sized.parameters / 1e9 - printed))
    off = best.parameters / 1e9 / printed - 1
    return best, assumed if abs(off) <= _NOMINAL else (*assumed, f"parameters {off:+.0%} of those printed")


def _ties(family: Family) -> tuple[bool, ...]:
    return (False, True) if family.tied is None else (family.tied,)


def _tied(row: Mapping[str, str]) -> bool | None:
    """Return what the remarks say of the output layer."""
    notes = row.get("notes", "")
    if "untied embeddings" in notes:
        return False
    return True if "tied embeddings" in notes else None


def _of_family(sizes: ModelSizes, family: Family, tied: bool, seq: int) -> ModelSizes:
    return replace(
        sizes,
        mlp=family.mlp,
        norm=family.norm,
        positions=family.positions,
        max_positions=seq if family.positions == "learned" else None,
        tie_embeddings=tied,
        qkv_bias=family.biases,
        linear_bias=family.biases,
    )
