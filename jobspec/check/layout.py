"""Checks a layout against the model and the batch: divisibility, and the stages and microbatches of a pipeline schedule.

The rules of the pipeline schedules are those of torch 2.13 (torch/distributed/pipelining/schedules.py).
"""

from collections.abc import Iterator
from math import gcd, lcm

from headway.jobspec.catalog.huggingface import ConfigError
from headway.jobspec.check.multiples import divisors, listed_numbers, nearest_multiples
from headway.jobspec.notation import counted
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.resolve.batch import global_sequences
from headway.jobspec.resolve.model import MissingSizeError, ModelSizes, UnknownPresetError, resolve_model
from headway.jobspec.spec.batch import Batch
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.layout import Layout, Schedule
from headway.runner.contract import Mesh

# Stages that a rank holds under each schedule, at least and at most. (torch would take one stage under a schedule made for several;
# pytorch/torchtitan:torchtitan/distributed/pipeline_parallel.py does not.)
_STAGES = {
    "GPipe": (1, 1),
    "1F1B": (1, 1),
    "Interleaved1F1B": (2, 256),
    "LoopedBFS": (2, 256),
    "InterleavedZeroBubble": (2, 256),
    "ZBVZeroBubble": (2, 2),
    "DualPipeV": (2, 2),
}
# NVIDIA/Megatron-LM: megatron/training/tokenizer, `_vocab_size_with_padding`: the vocabulary is padded to a multiple of
# `--make-vocab-size-divisible-by` x tp in every run.
_PADS = frozenset({"megatron", "megatron-fsdp", "megatron-2021", "megatron-deepspeed"})
# NVIDIA/Megatron-LM: megatron/core/transformer/transformer_config.py, `num_layers_in_first_pipeline_stage`,
# `pipeline_model_parallel_layout`.
_LAYS_OUT = frozenset({"megatron", "megatron-fsdp"})
# Embedding and output layer count as a layer each, or only one of them, or none.
_ENDS = range(3)
# Hints name no more stages of a rank than these.
_MOST_VIRTUAL = 8
# One round for every `pp` microbatches, as far as they go.
_IN_ROUNDS = ("Interleaved1F1B", "InterleavedZeroBubble")


def sizes_of(job: Parsed[TrainingJob]) -> ModelSizes | None:
    """Return the sizes of the job's model, as far as they are known; `check_model` reports why they are not."""
    if not job.has(("model",)) or job.spec.model is None:
        return None
    try:
        return resolve_model(job.spec.model, job.document.folder(("model", "config")))
    except (UnknownPresetError, ConfigError, MissingSizeError):
        return None


def check_layout(
    layout: Layout, sizes: ModelSizes | None, batch: Batch | None, framework: str | None = None
) -> Iterator[Problem]:
    """Check the rules that need no cluster: `sizes` and `batch` are None if they are unknown, `framework` if none is stated."""
    yield from _check_company(layout, sizes)
    yield from _check_schedule(layout)
    uneven = [] if sizes is None else list(_check_split(layout, sizes))
    yield from uneven
    # An error of `tp` is reported once.
    even = layout.model_copy(update={"tp": 1}) if uneven else layout
    if sizes is not None:
        yield from _check_copies(even, sizes, framework)
        yield from _check_layers(layout, sizes, framework)
        yield from _check_experts(layout, sizes)
    if batch is not None:
        yield from _check_sequence(even, batch)
    if sizes is not None and batch is not None:
        yield from _check_positions(sizes, batch)


def check_mesh(layout: Layout, mesh: Mesh, sizes: ModelSizes | None, batch: Batch | None) -> Iterator[Problem]:
    """Check the rules that need all degrees, and so the number of ranks."""
    yield from _check_fold(layout, mesh, sizes)
    if batch is not None:
        yield from check_microbatches(layout, mesh, batch)


def _check_company(layout: Layout, sizes: ModelSizes | None) -> Iterator[Problem]:
    """Report settings that have no effect alone."""
    if layout.virtual_stages > 1 and layout.pp == 1:
        message = f"`virtual_stages` is {layout.virtual_stages}, but there is no pipeline to interleave: `pp` is 1"
        yield Problem("HW210", JOB, ("layout", "virtual_stages"), message, "set `pp`, or leave `virtual_stages` out", at_key=True)
    if layout.schedule is not None and layout.pp == 1:
        message = f"the schedule `{layout.schedule}` orders the stages of a pipeline, but `pp` is 1"
        yield Problem("HW210", JOB, ("layout", "schedule"), message, "set `pp`, or leave `schedule` out", at_key=True)
    if layout.sequence_parallel and layout.tp == 1:
        message = "sequence parallelism splits over the ranks of `tp`, but `tp` is 1"
        yield Problem("HW210", JOB, ("layout", "sequence_parallel"), message, "set `tp`, or leave it out", at_key=True)
    if layout.ep > 1 and sizes is not None and sizes.experts is None:
        message = f"`ep` spreads experts over {layout.ep} ranks, but the model has none"
        yield Problem("HW210", JOB, ("layout", "ep"), message, "leave `ep` out, or describe `experts` in the model", at_key=True)


def _check_schedule(layout: Layout) -> Iterator[Problem]:
    """Check the schedule. The trainer may choose any schedule for these stages when it is omitted."""
    schedule = layout.schedule
    if layout.pp == 1 or schedule is None:
        return
    least, most = _STAGES[schedule]
    if least <= layout.virtual_stages <= most:
        return
    wanted = {(1, 1): "one stage", (2, 2): "exactly 2 stages"}.get((least, most), f"{least} stages or more")
    message = f"`{schedule}` needs {wanted} per rank, but `virtual_stages` is {layout.virtual_stages}"
    others = [name for name, (low, high) in _STAGES.items() if low <= layout.virtual_stages <= high]
    hint = f"set `virtual_stages: {least}`, or one of the schedules {', '.join(others)}"
    yield Problem("HW319", JOB, ("layout", "schedule"), message, hint)


def _check_split(layout: Layout, sizes: ModelSizes) -> Iterator[Problem]:
    """Check that each rank of `tp` computes whole heads and an equal part of each width.

    Key and value heads may also be fewer, if each is then held by equally many ranks (NVIDIA/Megatron-LM#6434,
    `num_query_groups`).
    """
    uneven = [f"`{name}` {number}" for name, number in _split_by_tp(layout, sizes) if number % layout.tp]
    is_grouped = sizes.kv_heads != sizes.heads and sizes.heads % sizes.kv_heads == 0
    if is_grouped and not _shares_kv_heads(layout.tp, sizes.kv_heads):
        uneven.append(f"`kv_heads` {sizes.kv_heads}")
    if uneven:
        fitting = [tp for tp in divisors(sizes.heads) if _splits(tp, layout, sizes)]
        message = f"`tp` {layout.tp} does not divide {', '.join(uneven)}"
        yield Problem("HW314", JOB, ("layout", "tp"), message, f"`tp` can be {listed_numbers(fitting)}")


def _splits(tp: int, layout: Layout, sizes: ModelSizes) -> bool:
    return _shares_kv_heads(tp, sizes.kv_heads) and all(number % tp == 0 for _, number in _split_by_tp(layout, sizes))


def _shares_kv_heads(tp: int, kv_heads: int) -> bool:
    return kv_heads % tp == 0 or tp % kv_heads == 0


def _split_by_tp(layout: Layout, sizes: ModelSizes) -> Iterator[tuple[str, int]]:
    """Yield the widths that are split over `tp`. With expert parallelism, experts are spread whole: `ep` folds over `tp` too."""
    yield "heads", sizes.heads
    if sizes.ffn_hidden:
        yield "ffn_hidden", sizes.ffn_hidden
    if sizes.experts is not None and layout.ep == 1:
        yield "experts.ffn_hidden", sizes.experts.ffn_hidden
    if sizes.experts is not None and sizes.experts.shared:
        yield "experts.shared_ffn_hidden", sizes.experts.shared_ffn_hidden


def _check_copies(layout: Layout, sizes: ModelSizes, framework: str | None) -> Iterator[Problem]:
    """Check what ranks of `tp` hold twice. A single key and value head is meant to be copied (arXiv 1911.02150)."""
    tp, kv_heads = layout.tp, sizes.kv_heads
    if tp > kv_heads > 1 and tp % kv_heads == 0:
        message = f"{kv_heads} key and value heads for {tp} ranks of `tp`: {tp // kv_heads} ranks hold and compute the same head"
        shards = shards_with(layout, kv_heads)
        example = "" if shards is None else f", for example {shards},"
        hint = f"set `tp` to {kv_heads} or less{example} to avoid the copies, which not every trainer supports"
        yield Problem("HW315", JOB, ("layout", "tp"), message, hint, Severity.WARNING)
    if sizes.vocab_size % tp and framework not in _PADS:
        message = (
            f"the vocabulary of {sizes.vocab_size} tokens does not divide over {tp} ranks of "
            f"`tp`: the last rank has fewer, or padding"
        )
        hint = f"the next multiple is {nearest_multiples(sizes.vocab_size, tp)[-1]}"
        yield Problem("HW315", JOB, ("layout", "tp"), message, hint, Severity.WARNING)


def shards_with(layout: Layout, tp: int) -> str | None:
    """Return a smaller `tp` with the `dp_shard` that leaves the number of ranks as it is; None where that one follows from the nodes."""
    if layout.dp_shard is None or layout.tp % tp:
        return None
    return f"`tp: {tp}, dp_shard: {layout.dp_shard * layout.tp // tp}`"


def _check_layers(layout: Layout, sizes: ModelSizes, framework: str | None) -> Iterator[Problem]:
    """Check the layers. Embedding and output layer, one of them or both, may count as a layer each, on a separate
    stage: 126 layers are 128 stages of one (arXiv 2407.21783, section 3.3.2; torchtitan,
    generate_llm_fqn_per_model_part)."""
    stages, layers = layout.pp * layout.virtual_stages, sizes.layers
    if layout.pp == 1:
        return
    if stages > layers + 2:
        message = f"{stages} stages ({_stages(layout)}) are more than the model's {counted(layers, 'layer')}"
        hint = f"`pp` x `virtual_stages` can be {listed_numbers(divisors(layers))}"
        at, chunks = "pp", [each for each in divisors(layers) if layout.pp * each <= layers and layers % (layout.pp * each) == 0]
        if layout.schedule is not None:
            fewest, most = _STAGES[layout.schedule]
            chunks = [each for each in chunks if fewest <= each <= most]
        if layout.virtual_stages > 1 and chunks:
            # The layers divide over `pp` alone.
            at, hint = "virtual_stages", f"`virtual_stages` can be {listed_numbers(chunks)}"
        yield Problem("HW317", JOB, ("layout", at), message, hint)
    elif not _divides(stages, layers):
        each, more = divmod(layers, stages)
        message = f"{layers} layers do not divide over {stages} stages: {more} with {each + 1} and {stages - more} with {each}"
        hint = f"all stages wait for the slowest; {_even(layout, layers)}"
        if framework in _LAYS_OUT:
            hint += "; Megatron shortens the stages of the ends by `--decoder-first-pipeline-num-layers` and `--decoder-last-...`"
        yield Problem("HW318", JOB, ("layout", "pp"), message, hint, Severity.WARNING)


def _even(layout: Layout, layers: int) -> str:
    """Return what to set so that all stages have the same number of layers: another of the two numbers, if one will do.

    Other degrees of `pp` are divisors or multiples of the present one, which are likely to fit the same number of GPUs.
    """
    pp, virtual = layout.pp, layout.virtual_stages
    least, most = _STAGES[layout.schedule] if layout.schedule else (1, _MOST_VIRTUAL)
    held = [each for each in range(least, min(most, _MOST_VIRTUAL) + 1) if _divides(pp * each, layers)]
    near = (each for each in (*divisors(pp), 2 * pp, 4 * pp) if pp // 4 <= each <= 4 * pp)
    degrees = [each for each in near if each > 1 and _divides(each * virtual, layers)]
    ways = [f"`{name}` {listed_numbers(each)}" for name, each in (("virtual_stages", held), ("pp", degrees)) if each]
    counted_or_not = "with embedding and output layer as a layer each, or not"
    if ways:
        return f"{counted_or_not}, {' or '.join(ways)} divides evenly"
    even = sorted({number for ends in _ENDS for number in divisors(layers + ends) if 1 < number <= layers})
    nearest = sorted(sorted(even, key=lambda number: abs(number - pp * virtual))[:4])
    return f"{counted_or_not}, `pp` x `virtual_stages` {listed_numbers(nearest)} divide evenly"


def _divides(stages: int, layers: int) -> bool:
    return 1 < stages <= layers + max(_ENDS) and any((layers + ends) % stages == 0 for ends in _ENDS)


def _stages(layout: Layout) -> str:
    return f"`pp` {layout.pp}" + (f" x `virtual_stages` {layout.virtual_stages}" if layout.virtual_stages > 1 else "")


def _check_experts(layout: Layout, sizes: ModelSizes) -> Iterator[Problem]:
    if sizes.experts is not None and sizes.experts.count % layout.ep:
        message = f"{sizes.experts.count} experts do not spread evenly over {layout.ep} ranks of `ep`"
        yield Problem("HW321", JOB, ("layout", "ep"), message, f"`ep` can be {listed_numbers(divisors(sizes.experts.count))}")


def _check_sequence(layout: Layout, batch: Batch) -> Iterator[Problem]:
    """Check the sequence. Causal attention over `cp` ranks is balanced by giving each an early and a late part (torch:
    _HeadTailLoadBalancer); sequence parallelism then splits the part of a rank of `cp` over `tp`."""
    parallel = layout.tp if layout.sequence_parallel is not False else 1
    divisor = lcm(2 * layout.cp, layout.cp * parallel) if layout.cp > 1 else parallel
    # Samples that are no sequences have the length 1.
    if batch.sequence_length % divisor == 0 or batch.sequence_length == 1:
        return
    over = [f"2 x {layout.cp} parts over `cp`"] if layout.cp > 1 else []
    over += [f"{parallel} ranks of `tp`"] if parallel > 1 else []
    message = f"a sequence of {batch.sequence_length} tokens is not a multiple of {divisor}, for {' and '.join(over)}"
    multiples = nearest_multiples(batch.sequence_length, divisor)
    tokens = batch.global_batch.tokens
    fitting = [] if tokens is None else [each for each in multiples if tokens % each == 0]
    if len(fitting) == 1:
        hint = f"write `{fitting[0]}`, which divides the global batch"
        yield Problem("HW316", JOB, ("batch", "sequence"), message, hint, fix=str(fitting[0]))
        return
    yield Problem("HW316", JOB, ("batch", "sequence"), message, f"the nearest multiple is {' or '.join(map(str, multiples))}")


def _check_positions(sizes: ModelSizes, batch: Batch) -> Iterator[Problem]:
    if sizes.max_positions is not None and batch.sequence_length > sizes.max_positions:
        message = f"a sequence of {batch.sequence_length} tokens is longer than the learned positions of the model, {sizes.max_positions}"
        hint = f"use at most {sizes.max_positions}, or raise the model's `max_positions`"
        yield Problem("HW322", JOB, ("batch", "sequence"), message, hint)


def _check_fold(layout: Layout, mesh: Mesh, sizes: ModelSizes | None) -> Iterator[Problem]:
    ranks = mesh.dp_shard * mesh.cp * mesh.tp
    if ranks % layout.ep:
        message = (
            f"`ep` {layout.ep} does not divide the ranks that it folds over: "
            f"`dp_shard` {mesh.dp_shard} x `cp` {mesh.cp} x `tp` {mesh.tp} = {ranks}"
        )
        experts = sizes.experts.count if sizes is not None and sizes.experts is not None else ranks
        yield Problem("HW321", JOB, ("layout", "ep"), message, f"`ep` can be {listed_numbers(divisors(gcd(ranks, experts)))}")


def check_microbatches(layout: Layout, mesh: Mesh, batch: Batch) -> Iterator[Problem]:
    """Check that a step has as many microbatches as the schedule of the layout needs."""
    sequences, schedule = global_sequences(batch), layout.schedule
    number, rest = divmod(sequences, batch.micro_sequences * mesh.dp_replicate * mesh.dp_shard)
    if layout.pp == 1 or schedule is None or rest or not number:
        return
    least = _least(layout, schedule)
    if number < least:
        message = f"`{schedule}` needs a microbatch for each of {least} stages, but a step has {number}"
        yield Problem(
            "HW320", JOB, ("batch", "global"), message, f"use at least {counted(least * sequences // number, 'sequence')}"
        )
    elif schedule in _IN_ROUNDS and number % max(1, number // layout.pp):
        message = f"`{schedule}` runs in rounds of equal size, but {number} microbatches do not divide into {number // layout.pp} rounds"
        nearest = " or ".join(str(count * sequences // number) for count in nearest_multiples(number, layout.pp))
        yield Problem("HW320", JOB, ("batch", "global"), message, f"use {nearest} sequences, a multiple of `pp` microbatches")


def check_idle_stages(layout: Layout, mesh: Mesh, batch: Batch) -> Iterator[Problem]:
    """Warn where the framework chooses the schedule, and a step has fewer microbatches than any schedule fills the stages with."""
    sequences = global_sequences(batch)
    number, rest = divmod(sequences, batch.micro_sequences * mesh.dp_replicate * mesh.dp_shard)
    if layout.schedule is None and not rest and 0 < number < layout.pp:
        passes = f"{number} microbatch{'' if number == 1 else 'es'}"
        message = f"a step has {passes} for {layout.pp} pipeline stages, some of which are always idle"
        hint = f"use at least {counted(layout.pp * sequences // number, 'sequence')}, a smaller `micro`, or `pp: {number}`"
        yield Problem("HW320", JOB, ("batch", "global"), message, hint, Severity.WARNING)


def _least(layout: Layout, schedule: Schedule) -> int:
    """Return the fewest microbatches that the schedule accepts."""
    stages = {"1F1B": layout.pp, "DualPipeV": layout.pp * layout.virtual_stages}
    return stages.get(schedule, 1)
