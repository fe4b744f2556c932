"""Defines the options of the builtin trainer and of the data that it reads."""

import types
from collections.abc import Mapping

from pydantic import Field

from headway.jobspec.spec.section import Section
from headway.jobspec.units import Bytes
from headway.templates.kind import DataKind


class BuiltinOptions(Section):
    """The builtin trainer has no options."""


class PythonStdlib(Section):
    """The source files of Python's standard library, byte by byte: a corpus that every machine has."""

    limit_bytes: Bytes | None = Field(None, alias="limit", ge=1, examples=["8MB"])
    """Largest number of bytes to read; everything when left out."""


class Files(Section):
    """Files, byte by byte."""

    paths: tuple[str, ...] = Field(min_length=1, examples=[["corpus/*.txt"]])
    """Files by glob patterns; relative ones start where the job is submitted."""
    limit_bytes: Bytes | None = Field(None, alias="limit", ge=1, examples=["8MB"])
    """Largest number of bytes to read; everything when left out."""


DATA: Mapping[str, DataKind] = types.MappingProxyType({"python-stdlib": DataKind(PythonStdlib), "files": DataKind(Files)})
