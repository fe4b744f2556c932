"""Defines the options of the provider `onprem`."""

from pydantic import Field

from headway.jobspec.spec.section import Section


class OnpremOptions(Section):
    """How every machine of the cluster is reached over SSH. There are no passwords."""

    user: str = Field("root", pattern=r"^[a-z_][-a-z0-9_]*$", examples=["headway"])
    """User to log in as; any but root needs `sudo` without a password."""
    identity: str | None = Field(None, min_length=1, examples=["~/.ssh/id_ed25519"])
    """File of the private key, without a passphrase; the keys of the agent when left out. Relative to the cluster's file."""
    known_hosts: str | None = Field(None, min_length=1, examples=["known_hosts"])
    """File with the hosts' keys, in ssh's format; ssh's default files when left out. Relative to the cluster's file."""
