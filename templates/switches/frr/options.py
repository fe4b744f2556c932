"""Defines the options of FRR on a fabric's switches."""

from pydantic import Field

from headway.jobspec.spec.section import Section
from headway.templates.switches.options import RoutingOptions


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
