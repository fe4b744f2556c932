"""Reads the systemd files next to headway-qos: the unit that runs it, and networkd.conf's settings; and finds the faults of each.

systemd.unit(5), systemd.service(5), networkd.conf(5).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import PurePath, PurePosixPath

from headway.templates.hosts.render import NETWORKD, SCRIPT, UNIT, is_script
from headway.templates.reading import Fault, Reading, Setting

# What may not start before the adapters are set up, of which a machine has one or the other.
_JOBS = ("slurmd.service", "kubelet.service")
_FOREIGN = ("ManageForeignRoutes", "ManageForeignRoutingPolicyRules")
_NO = frozenset({"no", "false", "off", "0"})


def is_unit(path: PurePath) -> bool:
    """Return whether a file has the name of headway's unit or of its settings of networkd."""
    return path.name == NETWORKD.name or (path.suffix == UNIT.suffix and is_script(path.stem))


def read(text: str) -> Reading:
    """Return every assignment as a setting, `Service|ExecStart`; the values of one with several are one text, in their order.

    ValueError, with the line, for a line that is neither a section, an assignment nor a comment.
    """
    settings: dict[str, Setting] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words[0] in "#;":
            continue
        name, equals, value = words.partition("=")
        if words[0] == "[" and words[-1] == "]":
            section = words[1:-1]
        elif not equals or not section:
            raise ValueError(f"line {number}: neither `[SECTION]` nor `NAME=VALUE`")
        else:
            key = f"{section}|{name.strip()}"
            before = settings.get(key)
            values = value.split() if before is None or not value.strip() else [*before.value.split(), *value.split()]
            settings[key] = Setting(" ".join(values), number if before is None else before.line)
    return Reading(settings, faults=partial(_faults, settings))


def _faults(settings: Mapping[str, Setting]) -> Iterator[Fault]:
    values = {name: setting.value for name, setting in settings.items()}
    if any(name.startswith("Service|") for name in values):
        yield from _of_unit(values)
    else:
        yield from _of_networkd(values)


def _of_unit(values: Mapping[str, str]) -> Iterator[Fault]:
    command = values.get("Service|ExecStart", "")
    if not any(is_script(PurePosixPath(word.lstrip("-@:+!")).name) for word in command.split()):
        message = f"it runs `{command}` and not {SCRIPT}; the adapters have no address, and their traffic is not paused"
        yield Fault("HW852", "Service|ExecStart", message, f"set `ExecStart={SCRIPT}`")
    if not values.get("Install|WantedBy") and not values.get("Install|RequiredBy"):
        message = "nothing starts it when the machine starts; after a restart the adapters have no address and no classes"
        yield Fault("HW852", "Service|ExecStart", message, "add `WantedBy=multi-user.target` below `[Install]`")
    early = [unit for unit in _JOBS if unit in values.get("Unit|After", "").split()]
    if early or not any(unit in values.get("Unit|Before", "").split() for unit in _JOBS):
        key = "Unit|After" if early else "Unit|Before" if "Unit|Before" in values else "Service|ExecStart"
        message = (
            f"jobs may start before it{f' (after {early[0]})' if early else ''}; their connections find no GID, or are not paused"
        )
        yield Fault("HW852", key, message, f"add `Before={' '.join(_JOBS)}`", doubtful=not early)


def _of_networkd(values: Mapping[str, str]) -> Iterator[Fault]:
    for name in _FOREIGN:
        value = values.get(f"Network|{name}")
        if value is None or value.lower() not in _NO:
            what = "routes" if name == _FOREIGN[0] else "rules"
            message = (
                f"systemd-networkd deletes {what} that no file of its own has ({name} is {value or 'not set'}); after a restart all rails "
                "leave by one adapter"
            )
            key = f"Network|{name}" if value is not None else next(iter(values), "")
            yield Fault("HW851", key, message, f"set `{name}=no`")
