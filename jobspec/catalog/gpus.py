"""Describes GPU models: memory, peak rates, and the network that connects them inside a node or rack."""

import types
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from headway.jobspec.catalog.table import rows

# Formats that matrices are multiplied in, by whose rate they run; all others run at that of bf16.
_NARROW = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}


class Gpu(Struct, frozen=True):
    """A GPU model. Rates are peaks of dense matrices in 10^12 operations a second; `fp8_tflops` and `fp4_tflops` are
    None where it has no such format. `memory_tb_s` is the bandwidth of its memory.

    `usable_gib` is the memory that frameworks report, if it was published. `scale_up_gb_s` is the exchange rate of one
    GPU with the others of its NVLink (or Infinity Fabric) domain, both directions together, and `scale_up_domain` how
    many they usually are. `host_arch` is set where the GPU comes with its host processor.
    """

    name: str
    vendor: str
    arch: str
    memory_gib: int
    memory_tb_s: float
    bf16_tflops: float
    scale_up_domain: int
    scale_up_gb_s: float
    source: str
    usable_gib: float | None = None
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    host_arch: str | None = None

    @property
    def memory_bytes(self) -> int:
        """Return what a job can use: the memory as reported, else as named."""
        return int((self.memory_gib if self.usable_gib is None else self.usable_gib) * (1 << 30))

    def rate_of(self, compute: str) -> tuple[str, float]:
        """Return the rate at which matrices in the format `compute` are multiplied: the rate's format (`bf16`, `fp8`,
        `fp4`), and its peak in 10^12 operations a second.

        A format without a rate is computed in the next wider one.
        """
        wanted = _NARROW.get(compute, "bf16")
        if wanted == "fp4" and self.fp4_tflops:
            return wanted, self.fp4_tflops
        if wanted != "bf16" and self.fp8_tflops:
            return "fp8", self.fp8_tflops
        return "bf16", self.bf16_tflops

    def supports(self, compute: str) -> bool:
        """Return whether the GPU multiplies matrices in the format in hardware.

        `mxfp8` came together with formats of 4 bits, in Blackwell and CDNA 4 (OCP Microscaling Formats 1.0); `nvfp4` is NVIDIA's own
        format of 4 bits.
        """
        if compute == "nvfp4":
            return self.fp4_tflops is not None and self.vendor == "NVIDIA"
        if compute == "mxfp8":
            return self.fp4_tflops is not None
        return compute != "fp8" or self.fp8_tflops is not None


@cache
def gpus() -> Mapping[str, Gpu]:
    """Return the GPU models by name."""
    return types.MappingProxyType({name: Gpu(name, **row) for name, row in rows("gpus").items()})
