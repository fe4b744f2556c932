"""Reads the timeouts of a `headway torchrun` run from environment variables."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from headway.runner.contract import DEFAULT_TIMEOUTS, RunConfig, Timeout

PREFIX, GRACE = "HEADWAY_TIMEOUT_", "HEADWAY_GRACE"
# For a disabled timeout: a hundred years fit into any count of nanoseconds.
OFF_S = 100 * 365.0 * 86400
# A rank's activities: without these timeouts only a proven hang ends a generation.
SECTIONS = frozenset({"start", "data", "compute", "compile", "collective", "checkpoint", "evaluation", "busy"})
# Only the builtin trainer has replica groups that survive each other.
_TIMEOUTS = {name: timeout for name, timeout in DEFAULT_TIMEOUTS.items() if name != "replica"}
_UNITS = MappingProxyType({"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0})


def given(environment: Mapping[str, str]) -> dict[str, Timeout]:
    """Return the timeouts set by variables. Raises ValueError for an invalid one."""
    found = {}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in _TIMEOUTS or variable != variable_of(name):
            raise ValueError(f"{variable}: there is no such timeout; there are {', '.join(map(variable_of, _TIMEOUTS))}")
        can_be_off, least_s = name in SECTIONS, 0.0 if name == "replace" else None
        found[name] = Timeout(_seconds(variable, environment[variable], least_s, can_be_off=can_be_off), _TIMEOUTS[name].factor)
    return found


def grace_s(environment: Mapping[str, str]) -> float | None:
    """Return HEADWAY_GRACE, if it is set. Raises ValueError if it is invalid."""
    return _seconds(GRACE, environment[GRACE], 0.0) if GRACE in environment else None


def variable_of(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _seconds(variable: str, text: str, least_s: float | None = None, *, can_be_off: bool = False) -> float:
    """Parse seconds. `least_s` None: anything above 0."""
    if can_be_off and text.lower() in ("off", "inf"):
        return OFF_S
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhd]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else -1.0
    if not (seconds > 0 if least_s is None else seconds >= least_s) or seconds > OFF_S:
        more = ", or `off`" if can_be_off else ""
        raise ValueError(f"{variable}={text}: expected seconds, or a number with a unit such as 90s, 30m or 2h{more}")
    return seconds


def defaults() -> dict[str, str]:
    """Return the default of each variable. Several nodes wait for each other, and for a replacement, as long as under
    torchrun."""
    return {
        **{variable_of(name): _shown(timeout) for name, timeout in _TIMEOUTS.items()},
        GRACE: _shown(Timeout(RunConfig.grace_s)),
    }


def _shown(timeout: Timeout) -> str:
    seconds = timeout.floor_s
    unit, size = (
        ("h", 3600) if seconds >= 3600 and seconds % 3600 == 0 else ("m", 60) if seconds >= 60 and seconds % 60 == 0 else ("s", 1)
    )
    return f"{seconds / size:g}{unit}" + (f", or {timeout.factor:g} x usual" if timeout.factor != 1 else "")
