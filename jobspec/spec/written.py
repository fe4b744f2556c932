"""Values that may be written in a shorter way than they are kept, or that are known and not decided yet."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

UNDECIDED = "undecided"


def one_or_many(value: Any) -> Any:
    """A single text in place of a list of one."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _decided(value: Any) -> Any:
    if value == "auto":
        raise PydanticCustomError(UNDECIDED, "auto")
    return value


# Refuses `auto`, which nothing turns into a number yet.
DECIDED = BeforeValidator(_decided)

_Base = Annotated[str, StringConstraints(min_length=1)]
_Bases = Annotated[tuple[_Base, ...], Field(max_length=8)]

# Documents that one extends, by their paths from it.
Bases = Annotated[_Bases, BeforeValidator(one_or_many, json_schema_input_type=_Base | _Bases)]
