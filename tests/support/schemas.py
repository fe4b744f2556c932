"""Builds the JSON schemas of documents once for all tests."""

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from headway.cli.verbs.schema import TABLES
from headway.jobspec.schema import document_schema


@cache
def schema_of(kind: str | None = None) -> dict[str, Any]:
    """Return the schema of a kind, or that of any document."""
    return document_schema(TABLES, kind)


@cache
def validator_of(kind: str | None = None) -> Draft202012Validator:
    return Draft202012Validator(schema_of(kind))
