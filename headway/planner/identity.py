"""Defines records that are large and of which there is one each: they are compared and hashed by identity."""

from msgspec import Struct


class ByIdentity(Struct, frozen=True, eq=False):
    """A record that is equal only to itself, so that a cache can have it as a key at once. (`eq=False` alone hashes the fields.)"""

    __hash__ = object.__hash__
