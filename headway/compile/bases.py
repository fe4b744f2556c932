"""Reads the bases of a cluster's switches: files of the site, which headway's tables are merged into."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem
from headway.templates.cluster import SwitchOptions
from headway.templates.switches import SWITCHES


def read_bases(plan: ClusterPlan, options: SwitchOptions, document: Path) -> tuple[SwitchOptions, list[Problem]]:
    """Return the options with the bases of all switches, and what is wrong with those that cannot be read.

    A base's path is relative to the folder of `document`, the cluster's file.
    """
    found = dict(options)
    problems: list[Problem] = []
    for (fabric, kind), chosen in options.items():
        bases: dict[str, Any] = {}
        read: dict[str, Any] = {}
        for switch in (each for each in plan.switches if each.fabric == fabric):
            file = SWITCHES[kind].base(chosen, switch)
            if file is not None and file not in read:
                read[file] = _tables(document.parent / file)
                problems += _problems(plan, switch, kind, file, read[file])
            if file is not None and isinstance(read[file], Mapping):
                bases[switch.name] = read[file]
        found[fabric, kind] = SWITCHES[kind].with_bases(chosen, bases)
    return found, problems


def _tables(path: Path) -> Mapping[str, Mapping[str, Mapping[str, Any]]] | str:
    """Return the tables in the file, or what is wrong with it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        return f"line {error.lineno} is not JSON: {error.msg}"
    except (OSError, ValueError, RecursionError) as error:
        return getattr(error, "strerror", None) or str(error)
    if not isinstance(document, dict):
        return "it is not a JSON object"
    for name, rows in document.items():
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            return f"`{name}` is not a table of rows"
    return document


def _problems(plan: ClusterPlan, switch: SwitchPlan, kind: str, file: str, found: Any) -> Iterator[Problem]:
    if isinstance(found, str):
        fabric = plan.fabric(switch.fabric)
        os = ("fabrics", plan.fabrics.index(fabric), "switches", "os", fabric.os.index(kind))
        message = f"the base `{file}` of `{switch.name}` cannot be read: {found}"
        hint = "copy /etc/sonic/config_db.json of the switch there; the path is relative to this file"
        if "{" in file or "}" in file:
            hint = "write `{switch}` for the name of a switch: no other name in braces is filled in"
        yield Problem("HW513", CLUSTER, (*os, "options", "base"), message, hint)
