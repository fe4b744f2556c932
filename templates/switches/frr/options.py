"""Defines the options of FRR on a fabric's switches."""

from pydantic import Field

from headway.jobspec.spec.section import Section


class RoutingOptions(Section):
    """How soon a switch declares a silent neighbour dead."""

    bfd_ms: int | None = Field(300, ge=10, le=60000, examples=[300])
    """Milliseconds between two BFD packets; no BFD when null."""
    bfd_multiplier: int = Field(3, ge=2, le=255, examples=[3])
    """Missing BFD packets in a row that end a link."""
    hold_s: int = Field(9, ge=3, le=3600, examples=[9])
    """Seconds without a BGP message that end a session; keepalives are sent three times as often."""


class SwitchLogin(Section):
    """How `headway push` logs in to the switches over SSH, at the addresses that an inventory has. Omitted values come from \
~/.ssh/config, as for ssh; there are no passwords."""

    user: str = Field("", pattern=r"^([A-Za-z_][-A-Za-z0-9_.]*)?$", examples=["root"])
    """User to log in as; any but root needs `sudo` without a password. That of ~/.ssh/config, or of this machine, when left out."""
    jump: str | None = Field(None, pattern=r"^[A-Za-z0-9_.:@,\[\]-]+$", examples=["bastion.example.com"])
    """Hosts that the connection goes through, as `[user@]host[:port]`, separated by commas; those of ~/.ssh/config when left out."""
    identity: str | None = Field(None, min_length=1, examples=["~/.ssh/id_ed25519"])
    """File of a private key for all hosts on the way, tried before those of the agent and of ~/.ssh. Relative to the cluster's file."""
    known_hosts: str | None = Field(None, min_length=1, examples=["known_hosts"])
    """File with the hosts' keys, in ssh's format; ssh's files when left out. Relative to the cluster's file."""


class FrrOptions(RoutingOptions):
    """How soon a switch declares a silent neighbour dead, and how `headway push` reaches the switches."""

    login: SwitchLogin | None = Field(None, examples=[{"user": "root", "jump": "bastion.example.com"}])
    """How `headway push` logs in to the switches; as ssh would when left out."""
