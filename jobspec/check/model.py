"""Checks a model against itself: its preset or config.json, and missing or contradictory sizes."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.jobspec.catalog.huggingface import ConfigError, UnknownTypeError, left_out
from headway.jobspec.catalog.models import models
from headway.jobspec.check.multiples import divisors, listed_numbers, nearest_multiples
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.resolve.model import UnknownPresetError, described, expert_layers, has_dense_layers, missing_sizes
from headway.jobspec.spec.model import Model
from headway.jobspec.suggest import Hint, did_you_mean, listed, nearest

_EXAMPLE = "llama-3.1-8b"
# `llama-3.1-70b`, `qwen3-30b-a3b`: the family, its version, the size in billions of parameters, and the active ones.
_PRESET = re.compile(r"(?P<family>[a-z]+-?)(?P<version>[0-9.]+)?-(?P<size>[0-9.]+)b(?P<more>-.*)?")
# Whether a hyphen is between a family and its version.
_DASH = {"llama": "-", "gpt": "-", "nemotron": "-"}


def check_model(model: Model, folder: Path, *, of_script: bool = False, are_sizes_needed: bool = True) -> Iterator[Problem]:
    """Yield every problem of the model; `folder` is the document's, which `config` is a path from. Only a script that gets no sizes can
    train a model whose type is unknown."""
    if model.preset is not None and model.config is not None:
        hint = "keep one of them; sizes set beside it override its sizes"
        yield Problem("HW210", JOB, ("model", "config"), "`config` and `preset` are both set", hint, at_key=True)
        return
    try:
        whole = described(model, folder)
    except UnknownPresetError as error:
        near = _meant_preset(str(error))
        yield Problem("HW309", JOB, ("model", "preset"), f"the catalogue has no model `{error}`", near.text, fix=near.fix)
        return
    except UnknownTypeError as error:
        message = (
            str(error)
            if are_sizes_needed
            else f"{error}, so the model's sizes are unknown: neither memory nor time can be estimated"
        )
        instead = (
            ""
            if not of_script
            else f"give its sizes in place of `config`{'' if are_sizes_needed else ', or leave `model` out'}; "
        )
        hint = f"{instead}{error.hint}"
        yield Problem("HW310", JOB, ("model", "config"), message, hint, Severity.ERROR if are_sizes_needed else Severity.WARNING)
        return
    except ConfigError as error:
        yield Problem("HW310", JOB, ("model", "config"), str(error), error.hint)
        return
    missing = None if model.config is None or of_script else left_out(folder, model.config)
    if missing is not None:
        message = f"the builtin trainer does not build a `{missing[0]}`: its sizes leave out {missing[1]}"
        hint = "train it with a script: `run: [train.py]`; `plan` and `check` estimate it from these sizes"
        yield Problem("HW310", JOB, ("model", "config"), message, hint)
    for rule in _RULES:
        yield from rule(model, whole)


def _meant_preset(name: str) -> Hint:
    """Return the hint for a preset that the catalogue does not have: its name there; else the one of the same size and the nearest
    version, or of the same version and the nearest size."""
    from headway.jobspec import form_repair  # noqa: PLC0415 (most presets are known)

    stem = form_repair.preset(name)
    stem = re.sub(
        r"^([a-z]+)-?([0-9.]+)-([0-9])", lambda found: f"{found[1]}{_DASH.get(found[1], '')}{found[2]}-{found[3]}", stem
    )
    if stem in models():
        return Hint(f"write `{stem}`", stem)
    # The size of a mixture is followed by that of its active parameters.
    longer = [each for each in models() if each.replace("-", "").startswith(stem.replace("-", "")) and re.search("[0-9]b$", stem)]
    if len(longer) == 1:
        return Hint(f"write `{longer[0]}`", longer[0])
    meant, known = _PRESET.fullmatch(stem), [found for each in models() if (found := _PRESET.fullmatch(each)) is not None]
    if meant is not None and meant["size"]:
        family = [
            each for each in known if each["family"].rstrip("-") == meant["family"].rstrip("-") and each["more"] == meant["more"]
        ]
        same_size = [each for each in family if each["size"] == meant["size"]]
        near = min(same_size, key=lambda each: abs(_number(each["version"]) - _number(meant["version"])), default=None)
        if near is None:
            same_version = [each for each in family if each["version"] == meant["version"]]
            near = min(
                same_version, key=lambda each: abs(math.log(_number(each["size"]) / (_number(meant["size"]) or 1))), default=None
            )
        if near is not None:
            return Hint(f"the nearest is `{near[0]}`; for other sizes, set `config` or the sizes themselves", near[0])
    families = sorted({found["family"].rstrip("-") for found in known})
    word = re.match("[a-z]+", stem)
    is_known = any(each.startswith(stem) for each in models()) or nearest(stem, models()) is not None
    if word is not None and not is_known and nearest(word[0], families) is None:
        return Hint(f"set `config`, the path of its config.json, or its sizes; the catalogue has {listed(families)}")
    return did_you_mean(stem, models(), "models")


def _number(text: str | None) -> float:
    return float(text) if text and re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else 0.0


def _check_missing(model: Model, whole: Model) -> Iterator[Problem]:
    missing = missing_sizes(whole)
    if missing == ["max_positions"]:
        message = "learned positions need `max_positions`, the longest sequence that they cover"
        yield Problem("HW311", JOB, _place(model, "positions"), message, "for example `max_positions: 2048`")
    elif missing == ["ffn_hidden"] and whole.experts is not None and whole.layers is not None and expert_layers(whole) == 0:
        # The blocks were meant to have experts, which is the problem.
        return
    elif missing:
        sizes = ", ".join(f"`{name}: {_usual(name, whole)}`" for name in missing)
        hint = f"add for example {sizes}; or start from a published model: `preset: {_EXAMPLE}`"
        yield Problem("HW311", JOB, ("model",), f"the model is missing {listed(missing)}", hint, at_key=True)


def _usual(name: str, whole: Model) -> int:
    """Return a size that fits the others: heads of 128 or 64, and blocks as wide as those of published models."""
    hidden = whole.hidden or 4096
    if name == "heads":
        heads = next((hidden // each for each in (128, 64, 32) if hidden % each == 0), 1)
        return heads if heads % (whole.kv_heads or 1) == 0 else whole.kv_heads or 1
    if name == "ffn_hidden":
        return 4 * hidden if whole.mlp == "plain" else max(256, round(hidden * 8 / 3 / 256) * 256)
    if name == "hidden":
        return 128 * (whole.heads or 32)
    found: int = Model.model_fields[name].examples[0]  # type: ignore[index]
    return found


def _check_idle(model: Model, whole: Model) -> Iterator[Problem]:
    """Report fields of the document that have no effect with the rest of the model."""
    for name, reason in _idle(whole).items():
        if getattr(model, name) is not None:
            yield Problem("HW210", JOB, ("model", name), f"`{name}` has no effect: {reason}", "leave it out", at_key=True)


def _idle(whole: Model) -> dict[str, str]:
    found: dict[str, str] = {}
    if whole.latent_attention is not None:
        found |= dict.fromkeys(("kv_heads", "head_dim", "qkv_bias", "qk_norm"), "`latent_attention` has heads of its own")
    if whole.positions is not None and whole.positions != "rotary":
        found["rope_theta"] = f"the positions are not rotary but `{whole.positions}`"
    if whole.positions != "learned":
        found["max_positions"] = f"the positions are not learned but `{whole.positions or 'rotary'}`"
    if not has_dense_layers(whole):
        found["ffn_hidden"] = "every block has experts, and their width is `experts.ffn_hidden`"
    return found


def _check_experts(model: Model, whole: Model) -> Iterator[Problem]:
    experts = whole.experts
    if experts is None:
        return
    path = _place(model, "experts")
    if experts.top_k > experts.count:
        message = f"each token goes through {experts.top_k} experts, but there are {experts.count}"
        yield Problem("HW311", JOB, (*path, "top_k"), message, f"use at most {experts.count}")
    if experts.shared == 0 and experts.shared_ffn_hidden is not None:
        message = "`shared_ffn_hidden` has no effect: there are no shared experts"
        yield Problem(
            "HW210", JOB, (*path, "shared_ffn_hidden"), message, "set their number, for example `shared: 1`", at_key=True
        )
    if whole.layers is not None and expert_layers(whole) == 0:
        message = f"none of the {whole.layers} blocks has experts"
        place = "first_dense" if experts.first_dense and experts.every <= whole.layers else "every"
        most = max(0, whole.layers - experts.every) if place == "first_dense" else whole.layers - experts.first_dense
        hint = f"the first to have them is block {experts.first_dense + experts.every}, `first_dense` + `every`: use at most {most} here"
        at = (
            (*path, place)
            if model.experts is not None and place in experts.model_fields_set
            else _place(model, "experts", "layers")
        )
        yield Problem("HW311", JOB, at, message, hint, at_key=True)


def _check_groups(model: Model, whole: Model) -> Iterator[Problem]:
    if whole.heads is None or whole.kv_heads is None or whole.latent_attention is not None:
        return
    if whole.heads % whole.kv_heads:
        message = f"{whole.heads} query heads are not a multiple of the {whole.kv_heads} key and value heads"
        hint = f"`kv_heads` must divide `heads`: {listed_numbers(divisors(whole.heads))}"
        yield Problem("HW303", JOB, _place(model, "kv_heads", "heads"), message, hint)


def _check_width(model: Model, whole: Model) -> Iterator[Problem]:
    if whole.hidden is None or whole.heads is None or whole.head_dim is not None or whole.latent_attention is not None:
        return
    if whole.hidden % whole.heads:
        message = f"`hidden` {whole.hidden} is not a multiple of `heads` {whole.heads}"
        fitting = [each for each in divisors(whole.hidden) if each % (whole.kv_heads or 1) == 0 and whole.hidden // each % 2 == 0]
        near = sorted(sorted(fitting, key=lambda each: abs(each - (whole.heads or 1)))[:2])
        hint = f"`hidden` can be {listed_numbers(nearest_multiples(whole.hidden, whole.heads))}"
        if near:
            hint = f"set `heads` to {listed_numbers(near)}; or {hint}"
        yield Problem("HW302", JOB, _place(model, "hidden", "heads"), message, hint)


def _check_rotary(model: Model, whole: Model) -> Iterator[Problem]:
    if whole.positions not in (None, "rotary"):
        return
    for path, width, hint in _rotary_heads(model, whole):
        if width % 2:
            message = f"an attention head has {width} dimensions; rotary positions rotate them in pairs"
            yield Problem("HW304", JOB, path, message, hint)


def _rotary_heads(model: Model, whole: Model) -> Iterator[tuple[tuple[str, ...], int, str]]:
    """Return the source of the rotated width, the width, and the remedy."""
    if whole.latent_attention is not None:
        path = (*_place(model, "latent_attention"), "rope_head")
        yield path, whole.latent_attention.rope_head, "make `rope_head` even"
    elif whole.head_dim is not None:
        yield _place(model, "head_dim"), whole.head_dim, "make `head_dim` even"
    elif whole.hidden is not None and whole.heads is not None and whole.hidden % whole.heads == 0:
        yield _place(model, "hidden", "heads"), whole.hidden // whole.heads, "make `hidden` / `heads` even"


def _place(model: Model, *names: str) -> tuple[str, ...]:
    """Return the first of the fields that the document has; else the source of its value; else the model."""
    for name in (*names, "preset", "config"):
        if getattr(model, name) is not None:
            return ("model", name)
    return ("model",)


_Rule = Callable[[Model, Model], Iterator[Problem]]
_RULES: tuple[_Rule, ...] = (
    _check_missing,
    _check_idle,
    _check_experts,
    _check_groups,
    _check_width,
    _check_rotary,
)
