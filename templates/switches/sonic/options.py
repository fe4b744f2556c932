"""Defines the options of SONiC on a fabric's switches."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from headway.templates.switches.options import SiteOptions

# A folder of sonic-buildimage's device/ tree.
Folder = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,254}$")]
Lanes = Annotated[str, StringConstraints(pattern=r"^[0-9]+(,[0-9]+)*$", max_length=128)]
PortName = Annotated[str, StringConstraints(pattern=r"^Ethernet[0-9]{1,4}$")]

# Table -> row -> field -> value, as in config_db.json.
Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]


class SonicOptions(SiteOptions):
    """The site's own configuration, what headroom is computed for, and how soon a neighbour is declared dead. The `model` of the switches
    decides the hardware; options of it that are set must agree."""

    base: str | None = Field(None, min_length=1, max_length=4096, examples=["base/{switch}.json"])
    """The site's `config_db.json`, which headway's tables are merged into: management, users, features, MAC address. `{switch}` is \
replaced by a switch's name, `{role}` by `leaf` or `spine`. Relative to the cluster's file."""
    keep_ports: tuple[PortName, ...] = Field((), max_length=1024, examples=[["Ethernet512"]])
    """Ports outside the fabric that stay as the base has them; headway shuts all others that it plans no cable for."""
    roce_mtu: Literal[1024, 2048, 4096] = Field(4096, examples=[4096])
    """Payload of a full RDMA packet in bytes, which the headroom of a paused queue has room for; adapters choose 4096 where their MTU \
is 4200 or more."""
    small_packet_percent: int = Field(100, ge=0, le=100, examples=[100])
    """NVIDIA: share of small packets that headroom is computed for. They fill the most cells, so 100 is the worst case and gives \
NVIDIA's published headroom; SONiC's own template has 50."""
    platform: Folder | None = Field(None, examples=["x86_64-nvidia_sn5400-r0"])
    """Platform, as `show platform summary` prints it."""
    hwsku: Folder | None = Field(None, examples=["ACS-SN5400"])
    """HwSKU, as `show platform summary` prints it."""
    buffer_model: Literal["dynamic", "traditional"] | None = Field(None, examples=["dynamic"])
    """`dynamic`: SONiC computes every port's headroom, on NVIDIA's switches; `traditional`: the HwSKU has tables for it."""
    egress_pool_bytes: int | None = Field(None, ge=1, le=1 << 40, examples=[158229504])
    """Dynamic model: size of the egress pool of lossless traffic, in bytes."""
    lanes: tuple[Lanes, ...] = Field((), examples=[["0,1,2,3,4,5,6,7", "8,9,10,11,12,13,14,15"]])
    """Lanes of the ports in their order, as `port_config.ini` of the HwSKU has them."""
