"""Reads speed.yaml: the constants of the time model."""

import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from msgspec import field

from headway.jobspec.catalog.gpus import Gpu
from headway.planner.identity import ByIdentity
from headway.planner.speed.experts.speed import ExpertSpeed, expert_constants
from headway.planner.speed.intervals import Intervals, intervals

FILE = Path(__file__).with_name("speed.yaml")


class ChipSpeed(ByIdentity, frozen=True):
    """The rates that an architecture attains, as shares of its peaks.

    `matmul`, `matmul_fp8`, `matmul_fp4`: of large matrix products; `depth` is what beginning and ending a tile of them costs, in elements
    of the dimension that is summed over. `flash1` to `flash3`: forward attention that never writes its scores; `attention_backward` times
    that backward. `memory`: of the bandwidth, by kernels that stream.
    """

    matmul: float
    depth: float
    flash1: float
    flash2: float
    attention_backward: float
    memory: float
    multiprocessors: int
    flash3: float = 0.0
    """0 where its kernels do not run: flash2's do then."""
    matmul_fp8: float = 0.0
    matmul_fp4: float = 0.0


class LinkSpeed(ByIdentity, frozen=True):
    """Links inside a scale-up domain: the share of their speed that a ring attains, how much more an all-reduce does that the switch
    adds up, the share an all-to-all attains of a ring's; in microseconds the latency of a collective, and of each hop of it."""

    bandwidth: float
    in_switch: float
    all_to_all: float
    latency_us: float
    hop_us: float


class NetworkSpeed(ByIdentity, frozen=True):
    """Adapters: the shares of their speed that a ring and an all-to-all attain, and the latency of one hop in microseconds."""

    bandwidth: float
    all_to_all: float
    hop_us: float


class Profile(ByIdentity, frozen=True):
    """The costs of a step under a framework.

    Kernels: `attention` by name (training.Kernels), whether the `norm` and the `loss` are one kernel and the loss is split over
    tensor-parallel ranks, and `passes`: how often the other element-wise work reads and writes memory, relative to one kernel for each.
    `launch_us` are the host's microseconds for a block's forward, `stall_us` those in which the accelerator always waits for it. `drag`
    multiplies the time of all kernels: what the parts do not explain. `partition` is what pipeline stages have equally many of: `blocks`,
    `parameters`, or `entries` of a list that has the ends too.

    Tensor-parallel communication is `tensor` times the least. Shares hidden behind computation: of that, forward and backward; of
    context-parallel exchange, of gradients and parameters that data-parallel ranks exchange, of pipeline transfers.

    `exchange` is the share of their bandwidth that data-parallel collectives attain, `bucket_mb` the size of one of them in 10^6 bytes.
    Bytes: `reduce` of a gradient that is exchanged, `accumulate` that each microbatch reads and writes of a parameter's gradient, and
    `optimizer` that a step reads and writes of its state. `each_microbatch`: whether gradients are exchanged after every one. `step` is
    what a step takes besides, in seconds.
    """

    attention: str
    norm: bool
    loss: bool
    loss_split: bool
    passes: float
    launch_us: float
    stall_us: float
    drag: float
    partition: str
    tensor: float
    tensor_forward: float
    tensor_backward: float
    context: float
    gradients: float
    parameters: float
    pipeline: float
    exchange: float
    bucket_mb: float
    reduce: float
    accumulate: float
    optimizer: float
    each_microbatch: bool
    step: float


class Speed(ByIdentity, frozen=True):
    """All constants.

    `clocks` are of accelerators that hold another clock than their peak is stated for, `casts` the bytes that the format of a matrix
    product costs for each number of its inputs. `interference` is how much of what computation hides still costs, of its time at the speed
    of scale-up links. `likeness` is what calibrate.py takes measured steps to share.
    """

    chips: Mapping[str, ChipSpeed]
    links: Mapping[str, LinkSpeed]
    networks: Mapping[str, NetworkSpeed]
    profiles: Mapping[str, Profile]
    clocks: Mapping[str, float]
    casts: Mapping[str, float]
    interference: float
    likeness: Mapping[str, float]
    experts: ExpertSpeed = field(default_factory=expert_constants)
    intervals: Intervals = field(default_factory=intervals)

    def chip(self, gpu: Gpu) -> ChipSpeed:
        """Return the constants of the GPU's architecture."""
        return self.chips[gpu.arch]

    def link(self, gpu: Gpu) -> LinkSpeed:
        """Return the constants of the GPU's scale-up links."""
        return self.links[gpu.arch]

    def network(self, transport: str) -> NetworkSpeed:
        """Return the constants of adapters on this transport."""
        return self.networks[transport]

    def profile(self, framework: str) -> Profile:
        """Return the profile of the framework. Raises KeyError."""
        return self.profiles[framework]


@cache
def constants() -> Speed:
    """Return the committed constants."""
    return speed_of(read())


def read() -> dict[str, Any]:
    """speed.yaml as it is, every constant with where it is from."""
    found: dict[str, Any] = yaml.load(FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return found


def speed_of(tables: Mapping[str, Any]) -> Speed:
    """Return the tables of speed.yaml as records."""
    return Speed(
        chips=_records(ChipSpeed, tables["chips"]),
        links=_records(LinkSpeed, tables["links"]),
        networks=_records(NetworkSpeed, tables["networks"]),
        profiles=_records(Profile, tables["profiles"]),
        clocks=_values(tables["clocks"]),
        casts=_values(tables["casts"]),
        interference=tables["interference"]["value"],
        likeness=_values(tables["likeness"]),
    )


def _records(kind: type[Any], table: Mapping[str, Any]) -> Mapping[str, Any]:
    return types.MappingProxyType({name: kind(**_values(_whole(table, name))) for name in table})


def _whole(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the row with what it takes from the row that it is `like`."""
    row = dict(table[name])
    like = row.pop("like", None)
    return row if like is None else _whole(table, like) | row


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: constant["value"] for name, constant in row.items()}
