"""Reads published runs as rows: what each ran, as the planner sees it, what was measured, and why a row is left out.

A row is complete when its layout, batch and model are printed and its recomputation is known. Nothing here raises for a row: one that
cannot be understood keeps its id and a reason.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.planner.columns import Lacks, LeftOutError, number, whole
from benchmarks.planner.hosts import accelerator, gpus_per_node, network
from benchmarks.planner.profiles import Profile, profile_of
from benchmarks.planner.shape import Shape, shape
from benchmarks.planner.texts import DataParallel, Extras, Recomputing, data_parallel, extras, formats, memory_kind, recomputing
from headway.jobspec.catalog.gpus import Gpu
from headway.planner.training import Degrees, Formats, Training

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "published-runs.csv"

OWN_LINE = "vtrain-single"
"""1,440 short runs of one node and one source: in a line of its own, or it would be half of every mean."""

_BLOCK_SCALED = re.compile(r"B200|B300|MI355")
_FINE_TUNING = re.compile(r"-ft\b|\bsft\b|-sft|lora|fine-?tun", re.IGNORECASE)
# Micro-batches per pipeline stage if the batch is not printed: enough to reach the peak of memory.
_ACCUMULATED = 2


class Peak(Struct, frozen=True):
    """A printed peak of memory in GiB (2^30 bytes), and of what: `allocated`, `reserved` (both torch's), or the whole `device`."""

    gib: float
    kind: str


class Row(Struct, frozen=True):
    """`training` is there wherever the columns make one up, also where the recomputation is not known and none is taken for it, or where
    the batch is not printed, on which a peak of memory hardly depends.

    The field `lacks` is empty for a row that counts; else it is the kind of what is missing, and `reason` describes it. `not_modelled` are
    remarks of the source that a Training cannot express, `assumed` what was supplied because the row does not print it.
    """

    id: str
    source: str
    model: str
    gpu: str
    training: Training | None
    step_s: float | None
    peak: Peak | None
    out_of_memory: bool
    moe: bool
    lacks: Lacks = ""
    reason: str = ""
    not_modelled: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the row counts: its training is known, recomputation included."""
        return not self.lacks

    @property
    def timed(self) -> bool:
        """Whether it has the time of a step."""
        return self.complete and self.step_s is not None and not self.out_of_memory


def read(paths: Iterable[Path] = (PUBLISHED,)) -> list[Row]:
    """Return the rows of the files, in order. Raises OSError."""
    return [row for path in paths for row in _read(path)]


def _read(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, columns in enumerate(csv.DictReader(file), start=2):
            yield as_row({name: (value or "").strip() for name, value in columns.items() if name}, f"{path.name}:{number}")


def as_row(columns: Mapping[str, str], place: str = "") -> Row:
    """Return one row; `place` names a row that has no id."""
    measured = Row(
        id=columns.get("id") or place,
        source=columns.get("source", ""),
        model=columns.get("model", ""),
        gpu=columns.get("gpu", ""),
        training=None,
        step_s=_step_s(columns),
        peak=_peak(columns),
        out_of_memory=columns.get("outcome", "").upper() == "OOM",
        moe=bool(re.search(r"\bE\d+", columns.get("moe", ""))),
    )
    if _is_fine_tuning(columns):
        return replace(measured, lacks="fine-tuning", reason="fine-tuning, not training")
    try:
        return _understood(measured, columns)
    except LeftOutError as error:
        return replace(measured, lacks=error.lacks, reason=str(error))
    except (ValueError, KeyError, ZeroDivisionError) as error:
        return replace(measured, lacks="not understood", reason=f"{type(error).__name__}: {error}")


def _is_fine_tuning(columns: Mapping[str, str]) -> bool:
    return any(_FINE_TUNING.search(columns.get(name, "")) for name in ("source", "model", "extras", "notes"))


def _understood(measured: Row, columns: Mapping[str, str]) -> Row:
    """Return the row with its training. Raises LeftOutError."""
    described = shape(columns)
    gpu = accelerator(measured.gpu)
    recompute = recomputing(columns.get("act_ckpt", ""), number(columns.get("mfu_pct")), number(columns.get("hfu_pct")))
    said = extras(columns.get("extras", ""), columns.get("notes", ""))
    training = _training(columns, described, gpu, recompute, said)
    _check_layout(training, columns)
    lacks, reason = _missing(columns, recompute)
    return replace(
        measured,
        training=training,
        lacks=lacks,
        reason=reason,
        not_modelled=said.not_modelled + _remarks(columns, recompute),
        assumed=described.assumed + _assumed(columns),
    )


def _missing(columns: Mapping[str, str], recompute: Recomputing) -> tuple[Lacks, str]:
    """Return what is missing in a row with a training."""
    if not recompute.known:
        return "recompute not known", f"recomputation not known: `{columns.get('act_ckpt', '')}`"
    if not whole(columns.get("gbs_seqs")):
        return "not printed", "gbs_seqs not printed"
    return "", ""


def _training(columns: Mapping[str, str], described: Shape, gpu: Gpu, recompute: Recomputing, said: Extras) -> Training:
    profile = profile_of(columns)
    degrees = _degrees(columns, profile)
    micro, sequences = _needed(columns, "mbs"), whole(columns.get("gbs_seqs")) or 0
    sequences = sequences or micro * degrees.dp * _ACCUMULATED * degrees.pp
    if sequences % (micro * degrees.dp):
        raise LeftOutError("layout", f"a batch of {sequences} is not whole micro-batches of {micro} on {degrees.dp} ranks")
    return Training(
        model=described.sizes,
        gpu=gpu,
        network=network(columns, gpu),
        degrees=degrees,
        micro=micro,
        accumulation=sequences // (micro * degrees.dp),
        sequence=_needed(columns, "seq"),
        framework=profile.name,
        supposed=not profile.listed,
        formats=_formats(columns, profile),
        recompute=recompute.mode,
        recomputed_share=recompute.share,
        recomputed_parts=recompute.parts,
        kernels=said.kernels,
        overlaps=said.overlaps,
        window=described.window,
        windowed_share=described.windowed_share,
    )


def _needed(columns: Mapping[str, str], name: str) -> int:
    value = whole(columns.get(name))
    if not value:
        raise LeftOutError("not printed", f"{name} not printed")
    return value


def _formats(columns: Mapping[str, str], profile: Profile) -> Formats:
    text = columns.get("precision", "")
    found = formats(text, block_scaled=bool(_BLOCK_SCALED.search(columns.get("gpu", ""))))
    if found is None:
        raise LeftOutError("not understood" if text else "not printed", f"precision `{text}`")
    return replace(found, reduce=found.reduce or profile.formats.reduce, moments=found.moments or profile.formats.moments)


def _degrees(columns: Mapping[str, str], profile: Profile) -> Degrees:
    dp, tp = _needed(columns, "dp"), _needed(columns, "tp")
    split = data_parallel(columns.get("dp_kind", ""), gpus_per_node(columns))
    if split is None:
        raise LeftOutError("not understood", f"data parallelism `{columns['dp_kind']}`")
    group = min(split.group or _group_of_experts(columns, profile, split) or dp, dp)
    if dp % group:
        raise LeftOutError("layout", f"groups of {group} do not divide {dp} data-parallel ranks")
    chunks = _chunks(columns)
    return Degrees(
        pp=_needed(columns, "pp"),
        chunks=chunks,
        schedule=_schedule(columns, chunks),
        dp_replicate=dp // group,
        dp_shard=group,
        cp=whole(columns.get("cp")) or 1,
        tp=tp,
        sequence_parallel=tp > 1 and _sequence_parallel(columns, profile),
        ep=whole(columns.get("ep")) or _deepep_ranks(columns),
        # Megatron-Core's default where experts fold (arXiv 2504.14960).
        expert_tp=whole(columns.get("etp")) or 1,
        sharding=split.sharding or profile.sharding,
    )


def _group_of_experts(columns: Mapping[str, str], profile: Profile, split: DataParallel) -> int | None:
    """Return the ranks of FSDP's groups where these are the ranks that share experts."""
    return whole(columns.get("ep")) if profile.groups_of_experts and split.sharding == "parameters" else None


def _deepep_ranks(columns: Mapping[str, str]) -> int:
    """Return ranks over which experts are spread where the row names DeepEP, which does nothing else, and not over how
    many: as many as can be."""
    experts = re.match(r"E(\d+)", columns.get("moe", ""))
    if experts is None or "deepep" not in columns.get("extras", "").lower():
        return 1
    return min(int(experts[1]), whole(columns.get("n_gpus")) or 1)


def _chunks(columns: Mapping[str, str]) -> int:
    text = columns.get("vp", "")
    chunks = whole(text) if text else 1
    if not chunks:
        raise LeftOutError("not printed", f"virtual stages `{text}`")
    return chunks if (whole(columns.get("pp")) or 1) > 1 else 1


def _schedule(columns: Mapping[str, str], chunks: int) -> str:
    said = columns.get("pp_schedule", "").lower()
    if re.search(r"v-?half|v-?min", said):
        raise LeftOutError("layout", f"schedule {said}: torch.distributed.pipelining has no such one")
    if "gpipe" in said:
        return "GPipe"
    if "zbv" in said:
        return "ZBVZeroBubble"
    if "dualpipe" in said:
        return "DualPipeV"
    if "zero-bubble" in said or "zero bubble" in said:
        return "InterleavedZeroBubble"
    return "Interleaved1F1B" if chunks > 1 else "1F1B"


def _sequence_parallel(columns: Mapping[str, str], profile: Profile) -> bool:
    said = columns.get("sp", "").lower()
    return profile.sequence_parallel if not said else said in {"yes", "true", "1", "on"}


def _check_layout(training: Training, columns: Mapping[str, str]) -> None:
    printed = _needed(columns, "n_gpus")
    if training.gpus != printed:
        raise LeftOutError("layout", f"{printed} GPUs, but tp x pp x cp x dp is {training.gpus}")
    experts = training.model.experts
    ranks = training.degrees.dp * training.degrees.cp * training.degrees.tp
    if experts is not None and (
        experts.count % training.degrees.ep or ranks % (training.degrees.ep * training.degrees.expert_tp)
    ):
        raise LeftOutError(
            "layout", f"ep {training.degrees.ep} divides not both {experts.count} experts and {ranks} ranks of a stage"
        )


def _remarks(columns: Mapping[str, str], recompute: Recomputing) -> tuple[str, ...]:
    """Remarks outside of the extras that a Training cannot say."""
    recomputed, notes = columns.get("act_ckpt", "").lower(), columns.get("notes", "").lower()
    words = tuple(word for word in ("offload", "w/ mtp", "tokendrop", "real routing") if word in f"{recomputed}; {notes}")
    uncounted = recompute.mode == "full" and recompute.share == 1 and re.search(r"\d", recomputed)
    return (*words, recomputed) if uncounted else words


def _assumed(columns: Mapping[str, str]) -> tuple[str, ...]:
    return () if profile_of(columns).listed else (f"framework of source {columns.get('source', '')}",)


def _step_s(columns: Mapping[str, str]) -> float | None:
    """Return seconds of a step: printed, or from the printed tokens a second of one GPU."""
    printed = number(columns.get("step_time_s"))
    if printed:
        return printed
    rate, sequences, seq, gpus_ = (number(columns.get(name)) for name in ("tokens_s_gpu", "gbs_seqs", "seq", "n_gpus"))
    if not (rate and sequences and seq and gpus_):
        return None
    return sequences * seq / gpus_ / rate


def _peak(columns: Mapping[str, str]) -> Peak | None:
    printed = number(columns.get("peak_mem_gib"))
    if not printed:
        return None
    kind = memory_kind(columns.get("mem_kind", ""))
    return Peak(printed * kind.gib, kind.kind)
