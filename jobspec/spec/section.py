"""Defines what all parts of a spec have in common: frozen, no unknown fields, no silent conversions, documented fields."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

API_VERSION = "headway/v1alpha1"

# A DNS label (RFC 1123): it becomes part of directory, job and host names.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
Name = Annotated[str, StringConstraints(pattern=rf"^{_LABEL}$")]


def is_name(text: str) -> bool:
    """Return whether it is a DNS label, as names are."""
    return re.fullmatch(_LABEL, text) is not None


class Section(BaseModel):
    """A part of a spec. It is validated from JSON (`model_validate_json`): then lists fill tuples, and `"8"` is no integer."""

    # Pydantic compiles a model when the first document needs it: most are needed by none.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    @classmethod
    def model_rebuild(
        cls,
        *,
        force: bool = False,
        raise_errors: bool = True,
        _parent_namespace_depth: int = 2,
        _types_namespace: Mapping[str, Any] | None = None,
    ) -> bool | None:
        """Compile the models of omitted sections, which their defaults need, before this one: pydantic reuses what is compiled."""
        for info in cls.model_fields.values():
            if isinstance(info.default_factory, type) and issubclass(info.default_factory, Section):
                info.default_factory.model_rebuild()
        return super().model_rebuild(
            force=force,
            raise_errors=raise_errors,
            _parent_namespace_depth=_parent_namespace_depth + 1,
            _types_namespace=_types_namespace,
        )


class Ignore(Section):
    """A problem that is accepted."""

    code: str = Field(pattern=r"^HW[0-9]{3}$", examples=["HW427"])
    """Code of the problem: a warning, or one of the errors that can be ignored (docs/guide.md)."""
    field: str | None = Field(None, examples=["layout.tp"])
    """Field at or below which it is accepted, as messages name it; the whole document when left out."""
    reason: str = Field(min_length=1, max_length=500, examples=["measured on this cluster: 71 GiB"])
    """Why it may stay; reports of `headway check` quote it."""
