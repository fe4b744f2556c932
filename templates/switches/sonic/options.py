"""Defines the options of SONiC on a fabric's switches."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.spec.section import Section

# A folder of sonic-buildimage's device/ tree.
Folder = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,254}$")]
Lanes = Annotated[str, StringConstraints(pattern=r"^[0-9]+(,[0-9]+)*$", max_length=128)]


class SonicOptions(Section):
    """The hardware under SONiC, by the names of SONiC's device tree, and how soon a neighbour is declared dead."""

    platform: Folder = Field("x86_64-nvidia_sn5400-r0", examples=["x86_64-nvidia_sn5400-r0"])
    """Platform, as `show platform summary` prints it."""
    hwsku: Folder = Field("ACS-SN5400", examples=["ACS-SN5400"])
    """HwSKU, as `show platform summary` prints it."""
    buffer_model: Literal["dynamic", "traditional"] = Field("dynamic", examples=["dynamic"])
    """`dynamic`: SONiC computes every port's headroom, on NVIDIA's switches; `traditional`: the platform has tables for it."""
    egress_pool_bytes: int = Field(158229504, ge=1, le=1 << 40, examples=[158229504])
    """Dynamic model: size of the egress pool of lossless traffic, from `buffers_defaults_t0.j2` of the HwSKU, in bytes."""
    lanes: tuple[Lanes, ...] = Field((), examples=[["1,2,3,4,5,6,7,8", "9,10,11,12,13,14,15,16"]])
    """Lanes of every port in their order, from `port_config.ini` of the HwSKU; numbered from 0 when left out, as on NVIDIA's switches."""
    bfd: bool = Field(True, examples=[False])
    """Whether BFD watches the links between switches: 3 packets, 300 ms apart."""
    hold_s: int = Field(9, ge=3, le=3600, examples=[9])
    """Seconds without a BGP message that end a session; keepalives are sent three times as often."""
