"""Defines the options of the local scheduler."""

from headway.jobspec.spec.section import Section


class LocalOptions(Section):
    """The local scheduler has no options."""
