"""Reads the bases of a cluster's switches: files of the site, which headway's settings are merged into."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem
from headway.jobspec.suggest import file_like
from headway.templates.cluster import SwitchOptions
from headway.templates.switches import SWITCHES
from headway.templates.switches.options import SiteOptions


def read_bases(plan: ClusterPlan, options: SwitchOptions, document: Path) -> tuple[SwitchOptions, list[Problem]]:
    """Return the options with the bases of all switches, and what is wrong with those that cannot be read.

    A base's path is relative to the folder of `document`, the cluster's file.
    """
    found = dict(options)
    problems: list[Problem] = []
    for (fabric, kind), chosen in options.items():
        if not isinstance(chosen, SiteOptions):
            continue
        bases: dict[str, Any] = {}
        # What was read of each file, or what is wrong with it.
        read: dict[str, tuple[Any, str | None]] = {}
        unread: list[tuple[SwitchPlan, str, str]] = []
        for switch in (each for each in plan.switches if each.fabric == fabric):
            file = chosen.base_file(switch)
            if file is None:
                continue
            if file not in read:
                read[file] = _read(document.parent / file, SWITCHES[kind].read_base)
                if (reason := read[file][1]) is not None:
                    unread.append((switch, file, reason))
            base, wrong = read[file]
            if wrong is None:
                bases[switch.name] = base
        problems += _problems(plan, kind, unread, document.parent)
        found[fabric, kind] = chosen.with_bases(bases)
    return found, problems


def base_files(plan: ClusterPlan, options: SwitchOptions, document: Path) -> Iterator[Path]:
    """Yield the bases of all switches: files next to the cluster's that are used, and no documents."""
    for (fabric, _), chosen in options.items():
        if isinstance(chosen, SiteOptions):
            files = (chosen.base_file(switch) for switch in plan.switches if switch.fabric == fabric)
            yield from (document.parent / file for file in dict.fromkeys(files) if file is not None)


def _read(path: Path, reader: Callable[[str], Any]) -> tuple[Any, str | None]:
    try:
        return reader(path.read_text(encoding="utf-8")), None
    except (OSError, ValueError) as error:
        return None, getattr(error, "strerror", None) or str(error)


def _problems(plan: ClusterPlan, kind: str, unread: list[tuple[SwitchPlan, str, str]], folder: Path) -> Iterator[Problem]:
    """Report the files that cannot be read: one problem for each reason, however many switches have it."""
    for reason in dict.fromkeys(wrong for _, _, wrong in unread):
        same = [(switch, file) for switch, file, wrong in unread if wrong == reason]
        switch, file = same[0]
        fabric = plan.fabric(switch.fabric)
        os = ("fabrics", plan.fabrics.index(fabric), "switches", "os", fabric.os.index(kind))
        others = f", nor those of {len(same) - 1} more" if len(same) > 1 else ""
        message = f"the base `{file}` of `{switch.name}` cannot be read{others}: {reason}"
        hint = f"copy {SWITCHES[kind].running} of the switch there; the path is relative to this file"
        if "{" in file or "}" in file:
            hint = "write `{switch}` for the name of a switch: no other name in braces is filled in"
        elif near := _near(folder, file):
            hint = f"did you mean `{near.replace(switch.name, '{switch}') if same[1:] else near}`? Else {hint}"
        yield Problem("HW513", CLUSTER, (*os, "options", "base"), message, hint)


def _near(folder: Path, file: str) -> str | None:
    """Return the file of a similar name in the same folder, or of this name in a folder of a similar one."""
    return None if (folder / file).is_file() else file_like(folder, file)
