"""Represents something that harms a training run, at a setting of a file."""

from msgspec import Struct


class Finding(Struct, frozen=True):
    """`key` is the setting's in the file, or the beginning of several; empty for the file as a whole. `doubtful`: it may be intended."""

    code: str
    file: str
    key: str
    message: str
    hint: str
    doubtful: bool = False
