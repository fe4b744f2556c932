"""Defines the options of the builtin trainer and of the data that it reads."""

import types
from collections.abc import Mapping
from typing import Literal

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


class TokenCorpus(Section):
    """A corpus of tokens."""

    path: str = Field(min_length=1, examples=["corpora/web"])
    """Its folder, made by `headway prepare`; a relative one starts where the job is submitted."""
    weight: float = Field(1.0, gt=0, le=1e9, allow_inf_nan=False, examples=[0.7])
    """Its share of the samples, in proportion to the other weights."""
    epochs: int = Field(1, ge=1, examples=[4])
    """Largest number of passes over it; the job is refused if its steps need more."""


class Tokens(Section):
    """Corpora of tokens that `headway prepare` has made, mixed by weight (docs/data.md)."""

    corpora: tuple[TokenCorpus, ...] = Field(min_length=1, max_length=64, examples=[[{"path": "corpora/web"}]])
    """The corpora; of one tokenizer."""
    document_mask: bool = Field(False, examples=[True])
    """Whether tokens attend to their own document only, and positions start again in each document."""
    verify: Literal["job", "node", "sizes"] = Field("job", examples=["node"])
    """Where shards are compared with their hashes before the first step: once in the `job`, on each `node`, or nowhere, only their
    `sizes` (docs/data.md)."""


DATA: Mapping[str, DataKind] = types.MappingProxyType(
    {"python-stdlib": DataKind(PythonStdlib), "files": DataKind(Files), "tokens": DataKind(Tokens)}
)
