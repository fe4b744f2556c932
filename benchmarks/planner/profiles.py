"""Maps sources of published rows to framework profiles: sources.yaml."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from msgspec import Struct, field

from benchmarks.planner.columns import LeftOutError
from headway.jobspec.spec.layout import Sharding
from headway.planner.framework import Framework
from headway.planner.training import Formats

_FILE = Path(__file__).with_name("sources.yaml")


class Profile(Struct, frozen=True):
    """The profile of a row, and what its rows mean that do not print it."""

    name: Framework
    sequence_parallel: bool
    formats: Formats = field(default_factory=Formats)
    groups_of_experts: bool = False
    """Whether FSDP's groups are the ranks that share experts."""
    listed: bool = True

    @property
    def sharding(self) -> Sharding:
        """The split over the data-parallel ranks if the row does not specify it."""
        return "optimizer" if self.name.startswith("megatron") and self.name != "megatron-fsdp" else "parameters"


_BY_KIND: tuple[tuple[str, Framework], ...] = (
    ("megatron-fsdp", "megatron-fsdp"),
    ("fsdp2", "torchtitan"),
    ("fsdp1", "composer"),
    ("zero3", "deepspeed"),
    ("hsdp", "torchtitan"),
)


def profile_of(columns: Mapping[str, str]) -> Profile:
    """Return the profile by sources.yaml; of a source that is not listed, by the first word of its name, else by what
    it splits."""
    name = columns.get("source", "")
    source = _sources().get(name, _sources().get(name.split("-")[0]))
    if source is None:
        kind = columns.get("dp_kind", "").lower()
        return Profile(
            next((profile for has, profile in _BY_KIND if has in kind), "megatron"), sequence_parallel=True, listed=False
        )
    mixed = (rule["framework"] for rule in source.get("when", ()) if rule["has"] in columns.get(rule["column"], ""))
    framework = next(mixed, source["framework"])
    if framework not in get_args(Framework):
        raise LeftOutError("not understood", f"sources.yaml names the profile `{framework}`")
    return Profile(
        framework,
        bool(source.get("sequence_parallel")),
        Formats(**source.get("formats", {})),
        groups_of_experts=any(model in columns.get("model", "") for model in source.get("groups_of_experts", ())),
        listed=name in _sources(),
    )


@cache
def _sources() -> Mapping[str, Any]:
    found: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return found
