"""Parses the free-text columns of published runs, each column's spellings in one small table."""

import re
from collections.abc import Iterator
from fractions import Fraction

from msgspec import Struct, field
from msgspec.structs import replace

from headway.jobspec.spec.layout import Sharding
from headway.planner.memory.ledger import GIB
from headway.planner.training import Formats, Kernels, Overlaps, Recompute

# Parts of a block, by the words that sources have for them. `matmuls` is torchtitan's per-operator policy: attention and every second
# matrix product are kept, all else is computed again (pytorch/torchtitan: torchtitan/distributed/activation_checkpoint.py).
_PARTS = (
    (r"selective-op|every 2nd matmul", "matmuls"),
    (r"core_attn|attn core|core attention", "attention"),
    (r"mla_up_proj", "mla_up_proj"),
    (r"norm", "norm"),
    (r"shared_expert", "shared_experts"),
    (r"moe_act|\bact\b|activation func", "activation"),
    (r"\bmoe\b|experts\b", "experts"),
    (r"\bmlp\b", "mlp"),
)
_UNKNOWN = re.compile(r"^$|unknown|recipe-dependent|not stated|not published|\?")
_BLOCK_SHARES = (r"every (\d+)(?:st|nd|rd|th) (?:layer|block)", r"\b1 (?:of|in) (\d+) (?:blocks|layers)", r"\b1/(\d+)")


class Recomputing(Struct, frozen=True):
    """The recomputation: how, in which share of the blocks, which parts; `known` is false if the source does not specify it."""

    mode: Recompute = "none"
    share: float = 1.0
    parts: tuple[str, ...] = ()
    known: bool = True


def recomputing(text: str, mfu_pct: float | None = None, hfu_pct: float | None = None) -> Recomputing:
    """Return the column `act_ckpt`.

    A share that is not printed ("1 of N blocks") follows from what is: full recomputation adds a third to the
    operations of the hardware.
    """
    said = text.strip().lower()
    if said.startswith(("recipe (none", "recipe (mostly none", "none")) or said in {"no", "off", "false"}:
        return Recomputing()
    if _UNKNOWN.search(said):
        return Recomputing(known=False)
    share = _block_share(said)
    if share is not None:
        return Recomputing("full", share)
    if "1 of n blocks" in said and mfu_pct and hfu_pct:
        return Recomputing("full", min(1.0, max(0.0, 3 * (hfu_pct / mfu_pct - 1))))
    if said.startswith("full") or said in {"yes", "on", "true"}:
        return Recomputing("full")
    parts = _parts(said)
    if said.startswith("selective") or parts:
        return Recomputing("selective", parts=parts or ("attention",))
    return Recomputing(known=False)


def _block_share(said: str) -> float | None:
    counted = re.search(r"(\d+) of (\d+) (?:layers|blocks)", said)
    if counted:
        return float(Fraction(int(counted[1]), int(counted[2])))
    every = next((found for pattern in _BLOCK_SHARES if (found := re.search(pattern, said))), None)
    return 1 / int(every[1]) if every else None


def _parts(said: str) -> tuple[str, ...]:
    return tuple(part for pattern, part in _PARTS if re.search(pattern, said))


class DataParallel(Struct, frozen=True):
    """The split over the ranks that read different data, and over how many of them (None: over all)."""

    sharding: Sharding | None
    group: int | None = None


def data_parallel(text: str, gpus_per_node: int) -> DataParallel | None:
    """Return the column `dp_kind`; no sharding where it is empty, None for a value that no table here has."""
    said = text.strip().lower()
    if not said:
        return DataParallel(None)
    group = re.search(r"group=(\d+)", said)
    size = int(group[1]) if group else None
    for pattern, sharding in _SHARDINGS:
        if re.search(pattern, said):
            return DataParallel(sharding, gpus_per_node if "hsdp" in said and size is None else size)
    return None


_SHARDINGS: tuple[tuple[str, Sharding], ...] = (
    (r"reshard_after_forward off|no reshard|grad-op|zero-?2|shard_grad", "gradients"),
    (r"dist-optimizer|distributed optimizer|zero-?1", "optimizer"),
    (r"fsdp|zero-?3|hsdp", "parameters"),
    (r"^none|^ddp|zero-?0|no zero", "none"),
)


def formats(text: str, *, block_scaled: bool) -> Formats | None:
    """Return the column `precision`; `block_scaled`: whether the GPU multiplies MX formats (Blackwell, CDNA4).
    None: not understood."""
    said = text.strip().lower()
    compute = next((name for pattern, name in _COMPUTE if re.search(pattern, said)), None)
    if compute is None:
        return None
    if compute == "mxfp8" and not block_scaled:
        compute = "fp8"
    reduce = next((name for pattern, name in _REDUCE if re.search(pattern, said)), None)
    return Formats(compute, "bf16" if "bf16 params" in said else None, reduce)


_COMPUTE = (
    (r"nvfp4|mxfp4|\bfp4", "nvfp4"),
    (r"mxfp8|fp8-mx|fp8 mx", "mxfp8"),
    (r"fp8|float8", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"tf32|fp32|float32", "fp32"),
)
# Composer's mixed precision DEFAULT reduces in fp32, PURE as it computes.
_REDUCE = ((r"fp16 grad", "fp16"), (r"fp32 (?:grad|reduce)|mp default", "fp32"), (r"bf16 (?:grad|reduce)|mp pure", "bf16"))


class Extras(Struct, frozen=True):
    """A row's kernels and overlaps, and the words that change nothing here or are not understood."""

    kernels: Kernels = field(default_factory=Kernels)
    overlaps: Overlaps = field(default_factory=Overlaps)
    not_modelled: tuple[str, ...] = ()


_KERNELS: tuple[tuple[str, str, str | bool], ...] = (
    (r"^kernel=torch", "attention", "unfused"),
    (r"^kernel=fused|fused softmax", "attention", "fused"),
    (r"flash_?(?:attention)?[_ -]?(?:v)?3", "attention", "flash3"),
    (r"flash_?(?:attention)?[_ -]?(?:v)?2|torchsdpa|flexattn|\bsdpa\b", "attention", "flash2"),
    (r"^kernel=flash_attention(?:v1.*)?$|flash_attentionv1", "attention", "flash1"),
    (r"rms kernel", "norm", True),
    (r"ce fusion|fused ce|fused cross|fused loss", "loss", True),
    (r"torch\.compile|\+compile\b", "compiled", True),
    (r"^eager\b", "compiled", False),
    (r"no cuda graphs?", "graphs", False),
    (r"cuda graphs?", "graphs", True),
)
_OVERLAPS: tuple[tuple[str, str, bool], ...] = (
    (r"asynctp|async tp|tp-comm-overlap", "tensor", True),
    (r"a2a overlap=on|1f1b a2a overlap|a2a overlap$", "experts", True),
    (r"a2a overlap=off", "experts", False),
    (r"grad(?:ient)?-?(?: )?(?:reduce )?overlap=off|no overlap-grad-reduce", "gradients", False),
)
# Remarks that do not affect the cost, or are in every row of their source.
_NO_COST = re.compile(
    r"^(?:backend=|job \d|vboost|force-balanced|fake balanced|no grad clip|te\b|pack_sample|eager$|95 gib visible|dropless|\d\d-\d\d$)"
)


def extras(column: str, notes: str = "") -> Extras:
    """Return the column `extras`, and those remarks in `notes` that name a dispatcher or an overlap."""
    found = Extras()
    for word in _words(column):
        found = _with_word(found, word)
    for word in _words(notes):
        if re.search(r"^deepep\b|a2a dispatcher|a2a overlap", word):
            found = _with_word(found, word)
    return found


def _words(text: str) -> Iterator[str]:
    for word in re.split(r"[;,]", text.lower()):
        if word.strip():
            yield word.strip()


def _with_word(found: Extras, word: str) -> Extras:
    kernels = {name: value for pattern, name, value in reversed(_KERNELS) if re.search(pattern, word)}
    if word.startswith("kernel="):
        kernels.setdefault("norm", "rms kernel" in word)
    dispatcher = _dispatcher(word)
    if dispatcher:
        kernels["dispatcher"] = dispatcher
    overlaps = {name: value for pattern, name, value in _OVERLAPS if re.search(pattern, word)}
    if not kernels and not overlaps and not _NO_COST.search(word):
        return replace(found, not_modelled=(*found.not_modelled, word))
    return replace(found, kernels=replace(found.kernels, **kernels), overlaps=replace(found.overlaps, **overlaps))


def _dispatcher(word: str) -> str | None:
    named = re.search(r"dispatcher=([\w-]+)", word)
    if named:
        return {"nccl-a2a": "alltoall"}.get(named[1], named[1])
    if "hybridep" in word or "hybrid-ep" in word:
        return "hybridep"
    if "deepep" in word:
        return "deepep"
    return "alltoall" if "a2a dispatcher" in word else None


_TRANSPORTS = (
    (r"efa", "efa"),
    (r"tcpx|fastrak", "tcpxo"),
    (r"roce|rdma|spectrum-x", "roce"),
)
_ADAPTERS = re.compile(r"(\d+)\s*x\s*(?:NDR|HDR|EDR)?\s*(\d+)", re.IGNORECASE)
# GB/s are of NVLink.
_RATES = ((r"(\d+)\s*(?:Gb/s|Gbps|Gbit/s|Gbit)", 1.0), (r"([\d.]+)\s*(?:Tb/s|Tbps|Tbit/s)", 1000.0))
# Gbit/s: more is the sum of a node's adapters.
_OF_A_GPU = 800


def transport(fabric: str) -> str:
    """Return what the column `fabric` names; InfiniBand where it names none, and for Omni-Path, which is as lossless."""
    return next((name for pattern, name in _TRANSPORTS if re.search(pattern, fabric.lower())), "infiniband")


def adapter_gbit_s(fabric: str, gpus_per_node: int) -> float | None:
    """Gbit/s of one GPU's share of its node's adapters, where the column `fabric` prints it."""
    several = _ADAPTERS.search(fabric)
    if several:
        return int(several[1]) * int(several[2]) / gpus_per_node
    rate = next((float(found[1]) * unit for pattern, unit in _RATES if (found := re.search(pattern, fabric))), None)
    if rate is None:
        return None
    per_node = rate > _OF_A_GPU or re.search(r"per node|/node|Gb/s node|Gbps node", fabric)
    return rate / gpus_per_node if per_node else rate


def adapters(fabric: str, gpus_per_node: int) -> int:
    """Adapters of a node: as many as the column `fabric` counts, else one a GPU."""
    several = _ADAPTERS.search(fabric)
    return int(several[1]) if several else gpus_per_node


class MemoryKind(Struct, frozen=True):
    """The scope of a printed peak: the tensors (`allocated`), the allocator (`reserved`), or the whole GPU (`device`)."""

    kind: str
    gib: float


def memory_kind(text: str) -> MemoryKind:
    """Return the column `mem_kind`: its kind, and how many GiB one of its units is.

    A decimal GB is one only where the tool is known to divide by 10^9 (Megatron-Bridge:
    src/megatron/bridge/training/utils/train_utils.py); nvidia-smi and rocm-smi print what others call GiB, and so do
    the logs of nanotron and torchtitan.
    """
    said = text.lower()
    decimal = "gb peak allocated" in said
    if "reserved" in said or "percent" in said:
        return MemoryKind("reserved", 1.0)
    if "alloc" in said:
        return MemoryKind("allocated", 1e9 / GIB if decimal else 1.0)
    if "nanotron" in said:
        return MemoryKind("reserved", 1.0)
    return MemoryKind("device", 1.0)
