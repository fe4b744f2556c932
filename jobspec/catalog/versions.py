"""Knows which versions of driver, CUDA, NCCL and PyTorch work with each other and with which GPUs."""

import types
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from headway.jobspec.catalog.table import rows


class Architecture(Struct, frozen=True):
    """GPU models of one architecture, the first CUDA that makes code for them, and the oldest driver, where it is known."""

    name: str
    gpus: tuple[str, ...]
    cuda: str
    source: str
    driver: str | None = None


class GpuDriver(Struct, frozen=True):
    """The oldest driver of one GPU model."""

    driver: str
    source: str


class RenamedVariable(Struct, frozen=True):
    """The first torch that reads a variable by its new name, and the name `before`, which the older ones read."""

    since: str
    before: str
    source: str


class NcclFault(Struct, frozen=True):
    """A fault of NCCL `first` to `last`, and the version that fixes it."""

    first: str
    last: str
    fixed: str
    what: str
    source: str


class TorchRelease(Struct, frozen=True):
    """The NCCL that the wheel on PyPI pins, and the CUDA versions that wheels are published for; none where that is not known."""

    nccl: str
    source: str
    cuda: tuple[str, ...] = ()


class Compatibility(Struct, frozen=True):
    """Oldest drivers by major (`family_drivers`) and by major and minor version of CUDA (`toolkit_drivers`); the rest by name."""

    family_drivers: Mapping[str, str]
    toolkit_drivers: Mapping[str, str]
    architectures: tuple[Architecture, ...]
    gpu_drivers: Mapping[str, GpuDriver]
    nccl_since: Mapping[str, str]
    torch_variables: Mapping[str, RenamedVariable]
    nccl_faults: tuple[NcclFault, ...]
    torch: Mapping[str, TorchRelease]

    def architecture_of(self, gpu: str) -> Architecture | None:
        """Return the architecture of a GPU model; None when it is not NVIDIA's or not known."""
        return next((each for each in self.architectures if gpu in each.gpus), None)

    def oldest_driver(self, gpu: str) -> str | None:
        """Return the oldest driver of a GPU model: its own, else that of its architecture; None where none is known."""
        if gpu in self.gpu_drivers:
            return self.gpu_drivers[gpu].driver
        architecture = self.architecture_of(gpu)
        return architecture.driver if architecture is not None else None

    def before_renaming(self, variable: str, torch: str) -> RenamedVariable | None:
        """Return the older name of a variable, if this version of torch reads only that."""
        renamed = self.torch_variables.get(variable)
        return renamed if renamed is not None and is_older(torch, renamed.since) else None


@cache
def compatibility() -> Compatibility:
    """Return the tables, read once."""
    tables = rows("versions")
    return Compatibility(
        family_drivers=types.MappingProxyType(tables["families"]["drivers"]),
        toolkit_drivers=types.MappingProxyType(tables["toolkits"]["drivers"]),
        architectures=tuple(_architecture(name, **row) for name, row in tables["architectures"].items()),
        gpu_drivers=types.MappingProxyType({name: GpuDriver(**row) for name, row in tables["drivers"].items()}),
        nccl_since=types.MappingProxyType(tables["nccl_variables"]["since"]),
        torch_variables=types.MappingProxyType({name: RenamedVariable(**row) for name, row in tables["torch_variables"].items()}),
        nccl_faults=tuple(NcclFault(**row) for row in tables["nccl_faults"].values()),
        torch=types.MappingProxyType({name: _torch(**row) for name, row in tables["torch"].items()}),
    )


def is_older(version: str, other: str) -> bool:
    """Return whether `version` comes before `other`; `12.8` and `12.8.0` are the same, and any `580.x` is not older
    than `580`."""
    return ordering_key(version) < ordering_key(other)


def major_minor(version: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def ordering_key(version: str) -> tuple[int, ...]:
    """Return what versions are ordered by: their numbers, without zeros at the end."""
    numbers = [int(number) for number in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _architecture(name: str, *, gpus: list[str], cuda: str, source: str, driver: str | None = None) -> Architecture:
    return Architecture(name, tuple(gpus), cuda, source, driver)


def _torch(*, nccl: str, source: str, cuda: tuple[str, ...] | list[str] = ()) -> TorchRelease:
    return TorchRelease(nccl, source, tuple(cuda))
