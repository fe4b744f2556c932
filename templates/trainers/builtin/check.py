"""Reports what the builtin trainer cannot do with a plan."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from posixpath import normpath
from typing import Any

from msgspec.structs import replace

from headway.jobspec.change import is_for_history
from headway.jobspec.check.layout import check_microbatches
from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.resolve.model import as_decoder
from headway.jobspec.spec.batch import Batch
from headway.jobspec.spec.layout import Layout
from headway.jobspec.suggest import joined_and
from headway.jobspec.units import Amount
from headway.runner import contract
from headway.templates.kind import Limited
from headway.templates.trainers.builtin.options import BuiltinOptions
from headway.templates.trainers.builtin.settings import execution_of, value

_BYTE_TOKENS = 256
_KILO = 1000

# Fields of which not every value is supported, and what the trainer does. An omitted field is always fine.
_ONLY: Limited = {
    ("layout", "ep"): ((1,), "builds no experts"),
    ("model", "experts"): ((), "builds no experts"),
    ("model", "latent_attention"): ((), "builds plain heads"),
    ("model", "mlp"): (("gated",), "builds gated MLPs"),
    ("model", "norm"): (("rms",), "builds RMSNorm"),
    ("model", "positions"): (("rotary",), "builds rotary positions"),
    ("model", "qkv_bias"): ((False,), "builds no biases"),
    ("model", "qk_norm"): ((False,), "does not norm queries and keys"),
    ("precision", "compute"): (("fp32", "bf16"), "computes in fp32 or bf16"),
    ("overlap", "parameters"): ((True,), "gathers parameters in parallel with computation"),
    ("overlap", "gradients"): ((True,), "reduces gradients in parallel with computation"),
    ("overlap", "tensor"): ((False,), "finishes a matrix product before it sends any of it"),
    ("overlap", "pipeline"): ((), "leaves sends and receives to the schedule"),
    ("overlap", "experts"): ((False,), "builds no experts"),
    ("resilience", "corruption", "compare"): ((), "computes steps again (`replay`) and does not compare replicas"),
}
# What to write in place of a field or value that is not supported, where leaving it out is not all.
_INSTEAD = {
    ("precision", "compute"): "write `bf16`",
    ("resilience", "corruption", "compare"): "write `replay` in place of `compare`",
}
# Fields that `history` may change from a step on (runner/history.py).
_NUMBERS = (field.name for field in fields(contract.Optimizer) if field.name not in ("schedule", "decay_steps"))
_CHANGED = ("steps", "batch.global", *(f"optimizer.{name}" for name in _NUMBERS))
ONLY: Limited = _ONLY


def check(options: BuiltinOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check that the plan trains a Llama-family decoder on bytes, in formats and on axes that go together (runner/train)."""
    for path, (values, deed) in _ONLY.items():
        found = value(plan.spec, path)
        if found is not None and found not in values:
            message = f"the trainer `builtin` {deed}, whatever `{'.'.join(path)}` says"
            written = _INSTEAD.get(path, f"leave `{path[-1]}` out")
            hint = f"{written}, or use the trainer `script` with a training script that does it"
            yield Problem("HW306", JOB, path, message, hint)
    yield from _check_model(plan)
    yield from _check_axes(plan)
    yield from _check_microbatches(plan)
    yield from _check_replay(plan)
    yield from _check_replica_recovery(plan)
    yield from _check_history(plan)
    yield from _check_weights(plan)
    yield from _check_corpora(plan)
    yield from _check_limit(plan)


def _check_axes(plan: JobPlan) -> Iterator[Problem]:
    """Report settings that the axes of the layout exclude."""
    mesh, layout, model = plan.mesh, plan.spec["layout"], plan.run.model
    if mesh.pp > 1 and layout["sharding"] in ("gradients", "parameters"):
        message = f"with a pipeline the trainer `builtin` keeps parameters and gradients whole during a step: not `{layout['sharding']}`"
        yield Problem("HW306", JOB, ("layout", "sharding"), message, "leave `sharding` out, or set `sharding: optimizer`")
    if model is None:
        return
    if mesh.pp > 1 and model.tie_embeddings:
        message = "the model's output layer is its embedding, and `pp` would put them on different ranks"
        is_written = plan.spec["model"]["tie_embeddings"] is not None
        at: Path = ("model", "tie_embeddings") if is_written else ("layout", "pp")
        yield Problem("HW306", JOB, at, message, "set `tie_embeddings: false` in the model, or `pp: 1`")
    if model.kv_heads % mesh.tp:
        message = f"the trainer `builtin` copies no key and value heads, and {model.kv_heads} do not divide over {mesh.tp} ranks of `tp`"
        yield Problem("HW306", JOB, ("layout", "tp"), message, f"set `tp` to a divisor of `kv_heads` {model.kv_heads}")
    if model.vocab_size % mesh.tp:
        message = (
            f"the trainer `builtin` splits the vocabulary evenly, and {mesh.tp} ranks of `tp` do not divide {model.vocab_size}"
        )
        yield Problem(
            "HW306",
            JOB,
            ("layout", "tp"),
            message,
            f"pad the model's `vocab_size` to a multiple of `tp`: {-(-model.vocab_size // mesh.tp) * mesh.tp}",
        )
    if model.dropout and mesh.cp > 1:
        message = (
            "the trainer `builtin` drops no attention weights of sequences that are split over `cp`, but the model has dropout"
        )
        yield Problem("HW306", JOB, ("layout", "cp"), message, "set `cp: 1`, or `dropout: 0` in the model")
    if model.dropout and mesh.tp > 1 and layout["sequence_parallel"] is False:
        message = "ranks of `tp` would drop different numbers of the same tokens, but the model has dropout"
        hint = "leave `sequence_parallel` out, or set `dropout: 0` in the model"
        yield Problem("HW306", JOB, ("layout", "sequence_parallel"), message, hint)


def _check_microbatches(plan: JobPlan) -> Iterator[Problem]:
    """Check the microbatches of the trainer's own schedule, and of each batch that `history` sets (jobspec/check/layout.py checks
    those of a schedule that the job names)."""
    batch = plan.run.batch
    if plan.mesh.pp == 1 or batch is None:
        return
    named = plan.spec["layout"]["schedule"] is not None
    layout = Layout.model_validate(
        {"pp": plan.mesh.pp, "virtual_stages": plan.spec["layout"]["virtual_stages"], "schedule": execution_of(plan).schedule}
    )
    amounts: list[tuple[Path, int]] = [] if named else [(("batch", "global"), batch.global_sequences)]
    amounts += [
        (("history", index, "set", "batch.global"), change.set["batch.global_sequences"])
        for index, change in enumerate(plan.run.history)
        if "batch.global_sequences" in change.set
    ]
    for path, sequences in amounts:
        changed = Batch.model_construct(
            global_batch=Amount(sequences=sequences),
            micro_sequences=batch.micro_sequences,
            sequence_length=batch.sequence_length,
        )
        for problem in check_microbatches(layout, plan.mesh, changed):
            yield replace(problem, path=path)


def _check_replay(plan: JobPlan) -> Iterator[Problem]:
    """Check that other ranks can compute a rank's results again, bit by bit: its share of a batch is its own."""
    checks = plan.spec["resilience"]["corruption"]
    names = [name for name in ("replay", "grad_norm_factor") if checks is not None and checks[name] is not None]
    if not names:
        return
    # Both have the same reason, which is one problem.
    path, leave = ("resilience", "corruption", names[0]), " and ".join(f"`{name}`" for name in names)
    reasons, mends = [], []
    if found := {axis: degree for axis in ("pp", "cp", "tp") if (degree := getattr(plan.mesh, axis)) > 1}:
        those = " and ".join(f"`{axis}` is {degree}" for axis, degree in found.items())
        reasons.append(f"computes steps again on data-parallel ranks only, but {those}")
        alone = " and ".join(f"`{axis}: 1`" for axis in found)
        if plan.mesh.dp_shard > 1:
            alone += f" with `dp_shard: {plan.mesh.dp_shard * math.prod(found.values())}`"
        mends.append(alone)
    if plan.spec["compile"]:
        reasons.append("traces gradients of blocks that are not compiled")
        mends.append("`compile: false`")
    if reasons:
        message = f"the trainer `builtin` {', and '.join(reasons)}"
        yield Problem("HW306", JOB, path, message, f"leave {leave} out, or set {', and '.join(mends)}")


def _check_replica_recovery(plan: JobPlan) -> Iterator[Problem]:
    """Check that the other replica groups can compute a lost one's share and get the same result."""
    if not plan.spec["resilience"]["replica_recovery"]:
        return
    path: Path = ("resilience", "replica_recovery")
    found = list(_against_replica_recovery(plan))
    if found:
        message = f"the trainer `builtin` cannot train on without a replica group: {'; '.join(why for why, _ in found)}"
        # A job on GPUs cannot become another one by a field.
        others = "" if plan.run.backend != "gloo" else f", or {joined_and([mend for _, mend in found])}"
        yield Problem("HW306", JOB, path, message, f"leave `replica_recovery` out{others}", at_key=True)


def _against_replica_recovery(plan: JobPlan) -> Iterator[tuple[str, str]]:
    """Yield what makes it impossible, and what would make it possible."""
    mesh, model = plan.mesh, plan.run.model
    if plan.run.backend != "gloo":
        yield f"that was not built for collectives of `{plan.run.backend}`", "run the job on CPUs"
    if mesh.dp_replicate == 1:
        yield "`dp_replicate` is 1, so there is no other group", "set `dp_replicate: 2` or more"
    if mesh.dp_replicate > contract.MOST_REPLICAS:
        most = contract.MOST_REPLICAS
        yield (
            f"`dp_replicate` is {mesh.dp_replicate}, and it keeps track of {most} groups",
            f"set `dp_replicate` to {most} or less",
        )
    if mesh.pp > 1:
        yield f"the microbatches of a pipeline are fixed, and `pp` is {mesh.pp}", "set `pp: 1`"
    if plan.run.min_slots is not None:
        yield "with `min_nodes` the number of groups may change", "leave `min_nodes` out"
    if model is not None and model.dropout:
        yield "another rank would draw other numbers for dropout", "set `dropout: 0` in the model"
    if plan.run.corruption is not None:
        yield "checks for silent corruption compare all ranks in each step", "leave `corruption` out"


def _check_history(plan: JobPlan) -> Iterator[Problem]:
    """Check `history`. Each step reads its own values again; data and model are fixed for the run."""
    for index, entry in enumerate(plan.spec["history"]):
        for name in entry["set"]:
            if is_for_history(name) and name not in _CHANGED:
                message = f"the trainer `builtin` does not change `{name}` during a run"
                hint = "start a new run; only `steps`, `batch.global`, and all of `optimizer` but its schedule can change"
                yield Problem("HW306", JOB, ("history", index, "set", name), message, hint, at_key=True)


def _check_weights(plan: JobPlan) -> Iterator[Problem]:
    """Check that each corpus gets a part of the samples."""
    if plan.run.data is None or plan.run.data.kind != "tokens":
        return
    weights = [corpus["weight"] for corpus in plan.run.data.options["corpora"]]
    try:
        contract.Mixture(weights)
    except ValueError as error:
        path = ("data", "options", "corpora", weights.index(min(weights)), "weight")
        yield Problem("HW330", JOB, path, str(error), "leave the corpus out, or raise its weight")


def _check_corpora(plan: JobPlan) -> Iterator[Problem]:
    """Warn of one corpus under two weights: its samples would be drawn from two orders of the same tokens."""
    if plan.run.data is None or plan.run.data.kind != "tokens":
        return
    paths = [normpath(corpus["path"]) for corpus in plan.run.data.options["corpora"]]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            weights = [
                corpus["weight"] for corpus, each in zip(plan.run.data.options["corpora"], paths, strict=True) if each == path
            ]
            message = f"the corpus `{path}` is listed twice"
            hint = f"write the path of the other corpus, or keep one entry with `weight: {sum(weights):g}`"
            place = ("data", "options", "corpora", index, "path")
            yield Problem("HW330", JOB, place, message, hint, Severity.WARNING)


def _check_limit(plan: JobPlan) -> Iterator[Problem]:
    """Check that the data that is read holds a sequence and the token after it: a token is a byte."""
    data, batch = plan.run.data, plan.run.batch
    limit = None if data is None else data.options.get("limit_bytes", data.options.get("limit"))
    if data is None or batch is None or data.kind == "tokens" or not isinstance(limit, int):
        return
    needed = batch.sequence_length + 1
    if limit < needed:
        message = (
            f"{limit} bytes of data hold no sequence of {batch.sequence_length} tokens, which are bytes, and the token after it"
        )
        hint = (
            f"read more, for example `limit: {limit}MB`, or leave `limit` out"
            if limit < _KILO
            else "read more, or leave `limit` out"
        )
        yield Problem("HW307", JOB, ("data", "options", "limit"), message, hint)
    elif limit < needed * batch.global_sequences and plan.run.steps is not None and plan.run.steps > 1:
        message = f"{limit} bytes of data are less than one step reads: {batch.global_sequences} sequences of {batch.sequence_length} bytes"
        hint = "read more, for example `limit: 8MB`, or leave `limit` out"
        yield Problem("HW307", JOB, ("data", "options", "limit"), message, hint, Severity.WARNING)


def _check_model(plan: JobPlan) -> Iterator[Problem]:
    """Report model features that a Llama does not have, if the preset or the config.json sets them."""
    if plan.model is None:
        return
    reads_bytes = plan.run.data is not None and plan.run.data.kind != "tokens"
    if reads_bytes and plan.model.vocab_size < _BYTE_TOKENS:
        message = f"a vocabulary of {plan.model.vocab_size} cannot hold the data's tokens, which are bytes"
        yield Problem("HW307", JOB, ("model", "vocab_size"), message, f"use at least {_BYTE_TOKENS}")
    decoder, source = as_decoder(plan.model), _source(plan.spec["model"])
    if isinstance(decoder, str) and source is not None and _is_taken(plan.spec, "model"):
        message = f"the trainer `builtin` builds decoders of the Llama family, but this model has {decoder}"
        hint = "use the trainer `script` with a training script that builds it"
        if source[-1] == "head_dim":
            hint = f"leave `head_dim` out, or {hint}"
        yield Problem("HW306", JOB, source, message, hint)


def _is_taken(spec: Mapping[str, Any], section: str) -> bool:
    """Return whether every written field of the section is supported."""
    fields = [(value(spec, path), values) for path, (values, _) in _ONLY.items() if path[0] == section]
    return all(found is None or found in values for found, values in fields)


def _source(written: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the field that sets sizes of another kind; None for an error that has a separate problem."""
    name = next((name for name in ("preset", "config", "head_dim") if written[name] is not None), None)
    return None if name is None else ("model", name)
