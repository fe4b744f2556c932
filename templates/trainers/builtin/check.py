"""Reports what the builtin trainer cannot do with a plan."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from headway.jobspec.change import is_for_history
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.resolve.model import as_decoder
from headway.runner import contract
from headway.templates.kind import Limited
from headway.templates.trainers.builtin.options import BuiltinOptions

_AXES = ("pp", "dp_replicate", "cp", "tp")
_BYTE_TOKENS = 256

# Fields with a single supported value, and what the trainer does. An omitted field is always fine.
_ONLY: Limited = {
    ("layout", "sharding"): (("parameters",), "splits parameters, gradients and optimizer over `dp_shard`"),
    ("layout", "ep"): ((1,), "builds no experts"),
    ("model", "experts"): ((), "builds no experts"),
    ("model", "latent_attention"): ((), "builds plain heads"),
    ("model", "mlp"): (("gated",), "builds gated MLPs"),
    ("model", "norm"): (("rms",), "builds RMSNorm"),
    ("model", "positions"): (("rotary",), "builds rotary positions"),
    ("model", "qkv_bias"): ((False,), "builds no biases"),
    ("model", "qk_norm"): ((False,), "does not norm queries and keys"),
    ("precision", "parameters"): (("fp32",), "keeps parameters in fp32"),
    ("precision", "compute"): (("fp32",), "computes in fp32"),
    ("precision", "reduce"): (("fp32",), "sums gradients in fp32"),
    ("recompute",): (("none",), "does not recompute activations"),
    ("compile",): ((False,), "does not compile"),
    ("overlap", "parameters"): ((), "leaves the order of communication to FSDP2"),
    ("overlap", "gradients"): ((), "leaves the order of communication to FSDP2"),
    ("overlap", "tensor"): ((False,), "does not split matrices"),
    ("overlap", "pipeline"): ((False,), "has no pipeline"),
    ("overlap", "experts"): ((False,), "builds no experts"),
    ("optimizer", "schedule"): (("cosine",), "decays along a cosine"),
    ("resilience", "corruption", "compare"): ((), "holds each parameter once, so there is no replica to compare"),
}
# Fields that `history` may change from a step on (runner/history.py).
_CHANGED = ("steps", "batch.global", *(f"optimizer.{field.name}" for field in fields(contract.Optimizer)))
ONLY: Limited = {**{("layout", axis): ((1,), "splits over `dp_shard` alone") for axis in _AXES}, **_ONLY}


def check(options: BuiltinOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check that the plan shards a Llama-family decoder over `dp_shard`, computes in fp32, and reads bytes as tokens
    (runner/train)."""
    for axis in _AXES:
        degree = getattr(plan.mesh, axis)
        if degree > 1:
            message = f"the trainer `builtin` does not split over `{axis}`, but the layout has {degree}"
            yield Problem("HW306", JOB, ("layout", axis), message, f"leave `{axis}` out, so that all ranks go to `dp_shard`")
    for path, (values, deed) in _ONLY.items():
        found = _value(plan.spec, path)
        if found is not None and found not in values:
            message = f"the trainer `builtin` {deed}, whatever `{'.'.join(path)}` says"
            hint = f"leave `{path[-1]}` out, or use the trainer `script` with a training script that does it"
            yield Problem("HW306", JOB, path, message, hint)
    yield from _check_model(plan)
    yield from _check_history(plan)


def _check_history(plan: JobPlan) -> Iterator[Problem]:
    """Check `history`. Each step reads its own values again; data and model are fixed for the run."""
    for index, entry in enumerate(plan.spec["history"]):
        for name in entry["set"]:
            if is_for_history(name) and name not in _CHANGED:
                message = f"the trainer `builtin` does not change `{name}` during a run"
                hint = "start a new run; only `steps`, `batch.global`, and all of `optimizer` but its schedule can change"
                yield Problem("HW306", JOB, ("history", index, "set", name), message, hint, at_key=True)


def _check_model(plan: JobPlan) -> Iterator[Problem]:
    """Report model features that a Llama does not have, if the preset or the config.json sets them."""
    if plan.model is None:
        return
    if plan.model.vocab_size < _BYTE_TOKENS:
        message = f"a vocabulary of {plan.model.vocab_size} cannot hold the data's tokens, which are bytes"
        yield Problem("HW307", JOB, ("model", "vocab_size"), message, f"use at least {_BYTE_TOKENS}")
    decoder, source = as_decoder(plan.model), _source(plan.spec["model"])
    if isinstance(decoder, str) and source is not None and _is_taken(plan.spec, "model"):
        message = f"the trainer `builtin` builds decoders of the Llama family, but this model has {decoder}"
        yield Problem("HW306", JOB, source, message, "use the trainer `script` with a training script that builds it")


def _is_taken(spec: Mapping[str, Any], section: str) -> bool:
    """Return whether every written field of the section is supported."""
    fields = [(_value(spec, path), values) for path, (values, _) in _ONLY.items() if path[0] == section]
    return all(found is None or found in values for found, values in fields)


def _source(written: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the field that sets sizes of another kind; None for an error that has a separate problem."""
    name = next((name for name in ("preset", "config", "head_dim") if written[name] is not None), None)
    return None if name is None else ("model", name)


def _value(spec: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the spec's value; None if there is none."""
    found: Any = spec
    for key in path:
        found = None if found is None else found[key]
    return found
