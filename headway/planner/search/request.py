"""Defines the request of a search: a model on GPUs, and the parts of its layout that the caller has fixed."""

from msgspec import Struct, field

from headway.jobspec.catalog.gpus import Gpu
from headway.jobspec.resolve.model import ModelSizes
from headway.jobspec.spec.layout import Schedule, Sharding
from headway.planner.framework import Framework
from headway.planner.search.frameworks import abilities
from headway.planner.training import (
    Degrees,
    Formats,
    Kernels,
    Network,
    Overlaps,
    Recompute,
    Training,
)

DEFAULT_TOP = 10


class Allowed(Struct, frozen=True):
    """The values that each part of a layout may take, for the caller; None leaves a part open. One value fixes it.

    `sharding` is the request's alone where it is None.
    """

    tp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    chunks: tuple[int, ...] | None = None
    schedule: tuple[Schedule, ...] | None = None
    dp_replicate: tuple[int, ...] | None = None
    dp_shard: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    sequence_parallel: tuple[bool, ...] | None = None
    micro: tuple[int, ...] | None = None
    recompute: tuple[Recompute, ...] | None = None
    sharding: tuple[Sharding, ...] | None = None


class Request(Struct, frozen=True):
    """`sequences` of `sequence` tokens a step on `gpus` GPUs; the `top` fastest layouts are wanted.

    `sharding` and the fields from `formats` on are as in Training, and the same for all layouts. Without `tight`, a layout whose memory
    may or may not suffice is left out.
    """

    model: ModelSizes
    gpu: Gpu
    network: Network
    gpus: int
    sequences: int
    sequence: int
    framework: Framework
    sharding: Sharding = "parameters"
    formats: Formats = field(default_factory=Formats)
    recomputed_share: float = 1.0
    recomputed_parts: tuple[str, ...] = ()
    kernels: Kernels = field(default_factory=Kernels)
    overlaps: Overlaps = field(default_factory=Overlaps)
    window: int | None = None
    windowed_share: float = 0.0
    supposed: bool = False
    allowed: Allowed = field(default_factory=Allowed)
    top: int = DEFAULT_TOP
    tight: bool = True

    def training(self, degrees: Degrees, micro: int, accumulation: int, recompute: Recompute) -> Training:
        """Return the step with this layout."""
        return Training(
            model=self.model,
            gpu=self.gpu,
            network=self.network,
            degrees=degrees,
            micro=micro,
            accumulation=accumulation,
            sequence=self.sequence,
            framework=self.framework,
            formats=self.formats,
            recompute=recompute,
            recomputed_share=self.recomputed_share,
            recomputed_parts=(self.recomputed_parts or abilities(self.framework).selective) if recompute == "selective" else (),
            kernels=self.kernels,
            overlaps=self.overlaps,
            window=self.window,
            windowed_share=self.windowed_share,
            supposed=self.supposed,
        )


def request_like(training: Training, allowed: Allowed | None = None, top: int = DEFAULT_TOP) -> Request:
    """Return a search for what the training does, on as many GPUs and with as large a batch, in whatever layout is allowed."""
    return Request(
        model=training.model,
        gpu=training.gpu,
        network=training.network,
        gpus=training.gpus,
        sequences=training.sequences,
        sequence=training.sequence,
        framework=training.framework,
        sharding=training.degrees.sharding,
        formats=training.formats,
        recomputed_share=training.recomputed_share,
        recomputed_parts=training.recomputed_parts,
        kernels=training.kernels,
        overlaps=training.overlaps,
        window=training.window,
        windowed_share=training.windowed_share,
        supposed=training.supposed,
        allowed=allowed or Allowed(),
        top=top,
    )
