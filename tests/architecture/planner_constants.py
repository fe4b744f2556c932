"""Writes the planner's constants as Markdown: value, published value, and the source or the rows of the fit."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from headway.jobspec.markdown import code, table
from headway.planner.memory import profiles as memory_profiles
from headway.planner.speed import intervals, speed
from headway.planner.speed.experts import speed as experts_speed

MEMORY = Path(memory_profiles.__file__).with_name("memory.yaml")

# Tables of speed.yaml and their headings.
TABLES = {
    "chips": "Accelerators, as shares of their peaks",
    "links": "Links inside an NVLink domain",
    "networks": "Networks between nodes",
}


# Meaning of a profile in memory.yaml that gives no bytes.
_UNSTATED = {"parameter": "as matrices are multiplied", "gradient": "as the parameter"}


# Sources of tables in speed.yaml that give their source in a comment only.
_SOURCES_IN_COMMENTS = {
    "likeness": "standard deviations of logarithms, of sources that a fit did not see",
    "distance": "assumed: doublings over which likeness falls to a third",
}


class Constant(NamedTuple):
    """A constant as a cell, and its source."""

    name: str
    cell: str
    source: str


def constants_markdown() -> str:
    """Return all constants of speed.yaml, experts.yaml, intervals.yaml and memory.yaml."""
    parts = [_of_time(speed.read()), _of_experts(experts_speed.read()), _of_intervals(intervals.read()), _of_memory(_memory())]
    return "\n\n".join(line for part in parts for line in part)


def _memory() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MEMORY.read_text(encoding="utf-8"))
    return found


def _of_time(tables: Mapping[str, Any]) -> Iterator[str]:
    for name, title in TABLES.items():
        yield f"### {title}"
        yield _side_by_side(tables[name])
        yield _sources(tables[name])
    yield "### For all accelerators and frameworks"
    shared = {name: each for name, each in tables.items() if name not in {*TABLES, "profiles"}}
    yield table(("constant", "value", "from"), _alone(shared))
    yield "### Frameworks: time"
    yield table(("framework", "constants", "from"), _profiles({name: _row(row) for name, row in tables["profiles"].items()}))


def _of_experts(tables: Mapping[str, Any]) -> Iterator[str]:
    yield "### Models with experts"
    yield table(("constant", "value", "from"), _alone(tables))


# The steps of each class of intervals.yaml.
_CLASSES = {
    "usual": "all others",
    "accelerator": "on an accelerator without a measured step",
    "architecture": "on an accelerator of an architecture without a measured step",
    "gpus": "on more GPUs than any measured step",
    "ep": "at a larger ep than any measured step",
}


def _of_intervals(tables: Mapping[str, Any]) -> Iterator[str]:
    yield "### Intervals of the time"
    rows = (
        (kind, _CLASSES[name], _written(row["interval"]), str(row["rows"]), str(row["sources"]))
        for kind, classes in tables["classes"].items()
        for name, row in classes.items()
    )
    yield table(("models", "steps", "measured over estimated time", "from rows", "of sources"), rows)
    yield " ".join(_most(kind, row) for kind, row in tables["measured"].items())


def _most(kind: str, row: Mapping[str, Any]) -> str:
    ep = f" and ep {row['ep']}" if "ep" in row else ""
    return f"Measured steps ({kind}) are on {', '.join(row['accelerators'])}, on {row['gpus']:,} GPUs{ep} at most."


def _of_memory(tables: Mapping[str, Any]) -> Iterator[str]:
    yield "### Memory, for all frameworks"
    yield table(("constant", "value", "from"), _alone(tables["constants"]))
    yield "### Frameworks: memory"
    yield table(("framework", "constants", "from"), _profiles({name: _habits(row) for name, row in tables["frameworks"].items()}))


def _side_by_side(tables: Mapping[str, Any]) -> str:
    """Return a table with a column for each accelerator or network."""
    names = dict.fromkeys(name for row in tables.values() for name in row)
    rows = ((code(name), *(_cell(row[name]) if name in row else "-" for row in tables.values())) for name in names)
    return table(("constant", *tables), rows)


def _sources(tables: Mapping[str, Any]) -> str:
    """Return each source once, with all constants from it."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for owner, row in tables.items():
        for name, constant in row.items():
            found[_source(constant)][owner].append(code(name))
    return table(("from", "constants"), ((source, _owned(owners)) for source, owners in found.items()))


def _owned(owners: Mapping[str, list[str]]) -> str:
    """Return accelerators or networks that take the same constants from a source as one group."""
    alike: dict[str, list[str]] = defaultdict(list)
    for owner, names in owners.items():
        alike[" ".join(names)].append(owner)
    return "; ".join(f"{', '.join(together)}: {names}" for names, together in alike.items())


def _alone(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield a row for each constant; the name of its table comes first."""
    for name, constant in tables.items():
        if "value" in constant:
            yield (
                code(f"{above}: {name}" if above else name),
                _cell(constant),
                _source(constant) or _SOURCES_IN_COMMENTS.get(name) or _SOURCES_IN_COMMENTS[above],
            )
        else:
            yield from _alone(constant, name)


def _profiles(rows: Mapping[str, tuple[str, list[Constant]]]) -> Iterator[tuple[str, str, str]]:
    """Yield one row for consecutive constants of a framework that have the same source."""
    for framework, (like, constants) in rows.items():
        head = f"{code(framework)}{f', else as {code(like)}' if like else ''}"
        if not constants:
            yield head, "", ""
        for source, group in groupby(constants, lambda constant: constant.source):
            yield head, ", ".join(f"{code(each.name)} {each.cell}" for each in group), source
            head = ""


def _row(row: Mapping[str, Any]) -> tuple[str, list[Constant]]:
    """Return a profile of speed.yaml."""
    own = {name: constant for name, constant in row.items() if name != "like"}
    return row.get("like", ""), [Constant(name, _cell(constant), _source(constant)) for name, constant in own.items()]


def _habits(row: Mapping[str, Any]) -> tuple[str, list[Constant]]:
    """Return a profile of memory.yaml, where `the same` means the previous source."""
    found, source = [], ""
    for name, value in row.items():
        if name not in {"like", "why"}:
            source = source if row["why"][name] == "the same" else row["why"][name]
            found.append(Constant(name, _UNSTATED[name] if value is None else _written(value), source))
    return row.get("like", ""), found


def _cell(constant: Mapping[str, Any]) -> str:
    """Return fitted values in bold, with the published value in parentheses."""
    value = _written(constant["value"])
    if "prior" in constant:
        return f"**{value}** ({_written(constant['prior'])})"
    return f"**{value}**" if "fitted" in constant else value


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " to ".join(f"{math.exp(end):.3g}" for end in value)
    if isinstance(value, str):
        return value
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _source(constant: Mapping[str, Any]) -> str:
    found: str = (
        constant.get("source") or constant.get("why") or (f"fitted: {constant['fitted']}" if "fitted" in constant else "")
    )
    return found.strip()
