"""Defines `TextEnum`: enum.StrEnum, which Python 3.10 does not have."""

from enum import Enum


class TextEnum(str, Enum):
    """Members are text: printed, formatted, compared and written to JSON as their values."""

    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]  # typeshed names another parameter
