"""Turns the constants of an accelerator and a framework into rates of computation and communication of one rank."""

import math
from functools import lru_cache

from msgspec.structs import replace

from headway.planner.identity import ByIdentity
from headway.planner.speed.collectives import Groups, Links, groups_of, links_of
from headway.planner.speed.cost import ACTIVATION
from headway.planner.speed.speed import ChipSpeed, Profile, Speed
from headway.planner.training import Degrees, Kernels, Training

# Tiles of a product that one multiprocessor computes, and what share of the best speed each attains: smaller ones read more for each
# operation (NVIDIA/cutlass: media/docs/cpp/efficient_gemm.md).
_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8))


def one_microbatch(training: Training) -> Training:
    """Return the training as far as a block's passes depend on it: many layouts share one."""
    degrees = training.degrees
    inner = Degrees(
        cp=degrees.cp, tp=degrees.tp, sequence_parallel=degrees.sequence_parallel, ep=degrees.ep, expert_tp=degrees.expert_tp
    )
    if degrees.ep > 1:
        inner = replace(inner, dp_shard=degrees.dp_shard, dp_replicate=degrees.dp_replicate)
    return replace(training, degrees=inner, accumulation=1)


class Rates(ByIdentity, frozen=True):
    """How fast one rank computes and communicates in this training."""

    linear: float
    """Operations a second of large matrix products in the format of the training."""
    plain: float
    """The same of those that stay in bf16: the output layer, the router."""
    depth: float
    multiprocessors: int
    attention_forward: float
    attention_backward: float
    memory: float
    cast: float
    kernels: Kernels
    """None of them is left open."""
    profile: Profile
    links: Links
    groups: Groups

    def matmul(self, m: float, n: float, k: float, plain: bool = False) -> float:
        """Seconds of [m, k] x [k, n]: longer by what whole waves of tiles leave idle and by what it takes to begin and end a
        tile, `depth` / k, and never faster than its matrices come from memory."""
        operations = 2 * m * n * (k + self.depth) / filled(m, n, self.multiprocessors)
        seconds = operations / (self.plain if plain else self.linear)
        return max(seconds, ACTIVATION * (m * n + n * k + m * k) / self.memory)

    def stream(self, size: float) -> float:
        """Return seconds of element-wise work that reads and writes `size` bytes."""
        return size / self.memory


@lru_cache(maxsize=65536)
def filled(m: float, n: float, multiprocessors: int) -> float:
    """Return the share of the multiprocessors' time that an [m, n] product uses, with the tiles that suit it best:
    whole tiles, in whole waves."""
    best = 0.0
    for height, width, share in _TILES:
        tiles = math.ceil(m / height) * math.ceil(n / width)
        best = max(best, share * m * n / (math.ceil(tiles / multiprocessors) * multiprocessors * height * width))
    return best


@lru_cache(maxsize=4096)
def rates_of(training: Training, speed: Speed) -> Rates:
    """Return the rates of one_microbatch(training)."""
    gpu, chip = training.gpu, speed.chip(training.gpu)
    profile = _compiled(speed.profile(training.framework), bool(training.kernels.compiled))
    kernels = _decided(training.kernels, profile)
    clock = speed.clocks.get(gpu.name, 1.0) / profile.drag
    bf16 = gpu.bf16_tflops * 1e12 * clock
    core = _attention_share(kernels, chip) * bf16
    compute = training.formats.compute
    return Rates(
        linear=_linear(training, speed) * 1e12 * clock,
        plain=bf16 * chip.matmul,
        depth=chip.depth,
        multiprocessors=chip.multiprocessors,
        attention_forward=core,
        attention_backward=core * chip.attention_backward,
        memory=gpu.memory_tb_s * 1e12 * chip.memory / profile.drag,
        cast=speed.casts.get(compute, 0.0) if gpu.fp8_tflops else 0.0,
        kernels=kernels,
        profile=profile,
        links=links_of(gpu, training.network, speed),
        groups=groups_of(training.degrees, training.network),
    )


def _linear(training: Training, speed: Speed) -> float:
    """10^12 operations a second that the format attains."""
    gpu, chip, compute = training.gpu, speed.chip(training.gpu), training.formats.compute
    whose, peak = gpu.rate_of(compute)
    attained = {"bf16": chip.matmul, "fp8": chip.matmul_fp8, "fp4": chip.matmul_fp4}[whose]
    # TF32, which replaces fp32, runs at half of bf16 (NVIDIA A100 Tensor Core GPU Architecture, table 3).
    return peak * attained * (0.5 if compute == "fp32" else 1.0)


def _compiled(profile: Profile, compiled: bool) -> Profile:
    """torch.compile makes one kernel of element-wise operations that follow each other."""
    return replace(profile, passes=min(1.0, profile.passes)) if compiled else profile


def _decided(kernels: Kernels, profile: Profile) -> Kernels:
    """Return the framework's own choice where none was made. torch.compile makes one kernel of norms."""
    return replace(
        kernels,
        attention=kernels.attention or profile.attention,
        norm=bool(kernels.compiled) or profile.norm if kernels.norm is None else kernels.norm,
        loss=profile.loss if kernels.loss is None else kernels.loss,
    )


def _attention_share(kernels: Kernels, chip: ChipSpeed) -> float:
    """Return the share of the peak; unused for attention that writes its scores."""
    return {"flash1": chip.flash1, "flash3": chip.flash3 or chip.flash2}.get(kernels.attention or "", chip.flash2)
