"""Defines the Inventory document: observations of a cluster's machines, written by tools and read into its plan."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.spec.nodes import AdapterName, Host
from headway.jobspec.spec.section import API_VERSION, Name, Section

PortName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_/.:]{0,62}$")]
# Printable ASCII, as on the sticker.
Serial = Annotated[str, StringConstraints(pattern=r"^[!-~]([ -~]{0,126}[!-~])?$")]


class ObservedNic(Section):
    """An adapter and the other end of its cable."""

    name: AdapterName = Field(examples=["mlx5_0"])
    """Its name, as `ibv_devices` prints it."""
    mac: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")] | None = Field(
        None, examples=["b8:3f:d2:00:00:01"]
    )
    """Its hardware address."""
    switch: Name | None = Field(None, examples=["rails-leaf-1"])
    """Switch that its cable leads to, with the `port`. When left out it follows from the cluster: the next port of the rail's leaf."""
    port: PortName | None = Field(None, examples=["Ethernet0"])
    """Port of that switch."""


class ObservedNode(Section):
    """A node of the cluster, by its name in the plan."""

    name: Name = Field(examples=["h100-1"])
    """Name in the plan: its group and a number."""
    host: Host | None = Field(None, examples=["10.0.0.11"])
    """SSH address, with `:PORT` unless it is 22."""
    serial: Serial | None = Field(None, examples=["DGXH100-00417"])
    """Serial number of the machine."""
    nics: tuple[ObservedNic, ...] = Field((), examples=[[{"name": "mlx5_0", "switch": "rails-leaf-1", "port": "Ethernet0"}]])
    """Its adapters."""


class ObservedSwitch(Section):
    """A switch of the cluster, by its name in the plan."""

    name: Name = Field(examples=["rails-leaf-1"])
    """Name in the plan."""
    host: Host | None = Field(None, examples=["10.0.1.1"])
    """Address of its management port."""
    serial: Serial | None = Field(None, examples=["MT2345X01234"])
    """Serial number."""
    guid: Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{16}$")] | None = Field(None, examples=["0xb83fd20300000001"])
    """InfiniBand: its node GUID, as `ibswitches` prints it."""


class Inventory(Section):
    """An Inventory document. A cluster may have several: one for each scalable unit, for example."""

    apiVersion: Literal["headway/v1alpha1"] = Field(examples=[API_VERSION])  # noqa: N815 (the document's spelling)
    """Version of the spec's language."""
    kind: Literal["Inventory"] = Field(examples=["Inventory"])
    """Kind of document."""
    name: Name = Field(examples=["two-h100-nodes-unit-1"])
    """Name of the inventory."""
    cluster: Name = Field(examples=["two-h100-nodes"])
    """Name of its cluster, whose document is in the same folder or, when this folder is called `inventory`, above it."""
    nodes: tuple[ObservedNode, ...] = Field((), examples=[[{"name": "h100-1", "host": "10.0.0.11"}]])
    """Nodes, each once in all inventories of the cluster."""
    switches: tuple[ObservedSwitch, ...] = Field((), examples=[[{"name": "rails-leaf-1", "host": "10.0.1.1"}]])
    """Switches, each once in all inventories of the cluster."""
