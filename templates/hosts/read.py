"""What a `headway-qos` script really does to each adapter."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headway.templates.reading import QosView, Reading, Setting

_PRIORITIES = range(8)


@dataclass(frozen=True)
class _Command:
    words: tuple[str, ...]
    line: int


def read(text: str) -> Reading:
    """The settings of the script, and one view an adapter; ValueError with the line where it is no such script."""
    commands = list(_commands(text))
    adapters = [command.words[1] for command in commands if command.words[0] == "set_qos" and len(command.words) == 2]
    if not adapters:
        raise ValueError("line 1: no `set_qos ADAPTER`, so this is no headway-qos script")
    settings = _settings(commands)
    view = _view(settings)
    return Reading(settings, dict.fromkeys(adapters, view))


def _commands(text: str) -> Iterator[_Command]:
    """The lines that are commands, in words."""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if words:
            yield _Command(tuple(words), number)


def _settings(commands: list[_Command]) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    adapters = 0
    for command in commands:
        for key, value in _pairs(command.words):
            settings[key] = Setting(value, command.line)
        if command.words[0] == "set_qos" and len(command.words) == 2:
            settings[f"adapter|{adapters}"] = Setting(command.words[1], command.line)
            adapters += 1
    return settings


def _pairs(words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Settings of one command: where in the adapter -> value."""
    match words:
        case ("dcb", "app", "replace" | "add", "dev", _, "dscp-prio", *pairs):
            yield from ((f"dscp-prio|{dscp}", priority) for dscp, _, priority in (pair.partition(":") for pair in pairs))
        case ("dcb", "pfc", "set", "dev", _, "prio-pfc", *pairs):
            yield from ((f"prio-pfc|{priority}", state) for priority, _, state in (pair.partition(":") for pair in pairs))
        case ("ethtool", "-A", _, *pauses):
            yield from ((f"pause|{way}", state) for way, state in zip(pauses[::2], pauses[1:4:2], strict=False))
        case ("cma_tos", _, value):
            yield "default_roce_tos", value
        case ("if_there", file, value):
            yield file.partition("$netdev/")[2] or file.partition("$adapter/")[2], value
        case ("either", file, _, value):
            yield file.partition("$netdev/")[2], value


def _view(settings: Mapping[str, Setting]) -> QosView:
    values = {key: int(setting.value) for key, setting in settings.items() if re.fullmatch(r"\d{1,9}", setting.value)}
    marks = {}
    if "default_roce_tos" in values:
        marks["collectives"] = values["default_roce_tos"] >> 2
    if "ecn/roce_np/cnp_dscp" in values:
        marks["cnp"] = values["ecn/roce_np/cnp_dscp"]
    priorities = {int(key.partition("|")[2]): value for key, value in values.items() if re.fullmatch(r"dscp-prio\|\d+", key)}
    return QosView(
        marks=marks,
        priorities=priorities,
        pfc=_pfc(settings),
        reacts={
            priority: values.get(f"ecn/roce_np/enable/{priority}") == 1 and values.get(f"ecn/roce_rp/enable/{priority}") == 1
            for priority in _PRIORITIES
        },
        marks_priority={"cnp": values["ecn/roce_np/cnp_802p_prio"]} if "ecn/roce_np/cnp_802p_prio" in values else {},
    )


def _pfc(settings: Mapping[str, Setting]) -> dict[int, bool]:
    """PFC of each priority: the word for all of them, then each one's own."""
    if "prio-pfc|all" not in settings:
        return {
            priority: settings[f"prio-pfc|{priority}"].value == "on"
            for priority in _PRIORITIES
            if f"prio-pfc|{priority}" in settings
        }
    default = settings["prio-pfc|all"]
    return {priority: settings.get(f"prio-pfc|{priority}", default).value == "on" for priority in _PRIORITIES}
