"""Reads NCCL's QoS settings from a job's environment: a job's script, an nccl.conf, a file of `NAME=VALUE`, a Kubernetes manifest."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import PurePosixPath

from headway.templates.commands import ShellCommand, commands
from headway.templates.nccl.faults import faults
from headway.templates.nccl.manifest import Pod, containers, pods
from headway.templates.nccl.pods import pod_faults
from headway.templates.reading import Fault, QosView, Reading, Setting

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)

# `-xNAME=VALUE`, `--env=NAME=VALUE`; Environment is systemd's.
_OPTION = re.compile(r"(?:--?[a-z][a-z-]*=?|Environment=)(?=[A-Z])")

# Separators of several assignments in one word: Slurm splits at every comma, containers' runtimes between assignments.
_LISTS = {"--export": ",", "--env": r",(?=[A-Z][A-Z0-9_]*=)"}

# NAME VALUE: the C shell, and MPICH.
_SETS_NEXT = {"setenv", "-genv", "-env"}

# Their words are shown or compared, and set nothing.
_SETS_NOTHING = {"echo", "printf", "[", "[[", "test", "grep", "sed", "awk"}

_NUMBER = re.compile(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")


def read(text: str) -> Reading:
    """Return every variable that the text sets, its last value counting; the DSCP is in NCCL_IB_TC above its two ECN
    bits.

    ValueError when it sets none.
    """
    settings: dict[str, Setting] = {}
    replaced: dict[str, str] = {}
    # A comment to the shell, and options to sbatch.
    for command in commands(re.sub(r"(?m)^#SBATCH\b", "sbatch", text)):
        if command.words[0] == "unset":
            settings = {name: setting for name, setting in settings.items() if name not in command.words}
        for name, setting in _variables(command):
            if name in settings and settings[name].value != setting.value:
                replaced[name] = settings[name].value
            settings[name] = setting
    if not settings:
        raise ValueError("line 1: no `NAME=VALUE` in it")
    return Reading(settings, {"NCCL": _view(settings)}, faults=partial(_faults, settings, replaced))


def _faults(settings: Mapping[str, Setting], replaced: Mapping[str, str]) -> Iterator[Fault]:
    yield from faults(settings)
    for name, first in replaced.items():
        last = settings[name].value if name in settings else ""
        if name.startswith(("NCCL_", "TORCH_NCCL_")) and not {"$", "`"}.intersection(first + last):
            message = (
                f"`{name}` is {first or 'empty'} and then {last or 'empty'}; the last value counts, and the job may run with another one "
                "than is meant"
            )
            yield Fault("HW861", name, message, "set it once", doubtful=True)


def read_manifest(text: str) -> Reading:
    """Return the variables of all containers of a Kubernetes manifest, the last one counting; those with other marks
    are additional ends.

    ValueError, with the line, if it is not YAML or sets none.
    """
    environments = list(containers(text))
    settings = {name: setting for _, environment in environments for name, setting in environment.items()}
    if not settings:
        raise ValueError("line 1: no container's `env` in it")
    views = {"NCCL": _view(settings)}
    for container, environment in environments:
        view = _view(environment)
        if view.marks and view != views["NCCL"]:
            views[f"NCCL of {container}"] = view
    return Reading(settings, views, faults=partial(_faults_of_pods, settings, tuple(pods(text))))


def _faults_of_pods(settings: Mapping[str, Setting], found: tuple[Pod, ...]) -> Iterator[Fault]:
    yield from faults(settings)
    yield from pod_faults(found)


def _variables(command: ShellCommand) -> Iterator[tuple[str, Setting]]:
    words = command.words
    if PurePosixPath(words[0]).name in _SETS_NOTHING:
        return
    for before, word, line in zip(("", *words), words, command.lines, strict=False):
        for assignment in _assignments(before, word):
            found = _ASSIGNMENT.fullmatch(assignment)
            if found:
                yield found[1], Setting(found[2], line)
    for before, name, value, line in zip(words, words[1:], words[2:], command.lines[1:], strict=False):
        if before in _SETS_NEXT and _NAME.fullmatch(name):
            yield name, Setting(value, line)


def _assignments(before: str, word: str) -> list[str]:
    """Return possible assignments in the word, given the previous one."""
    option = _OPTION.match(word)
    text = word[option.end() :] if option else word
    separator = _LISTS.get(option[0].rstrip("=") if option else before)
    return re.split(separator, text) if separator else [text]


def _view(settings: Mapping[str, Setting]) -> QosView:
    traffic_class = settings.get("NCCL_IB_TC")
    value = _integer(traffic_class.value) if traffic_class else None
    # NCCL's value for unset.
    if value is None or value == -1:
        return QosView()
    # verbs keep the lowest byte
    return QosView(marks={"collectives": (value & 0xFF) >> 2})


def _integer(text: str) -> int | None:
    """Parse a number. NCCL uses strtoll with base 0 (src/misc/param.cc): 0x is hexadecimal, a leading 0 octal, the rest
    ignored.

    None if a shell or Kubernetes inserts an unknown value.
    """
    found = _NUMBER.match(text)
    if found is None or "$" in text or "`" in text:
        return None
    sign, hexadecimal, octal, decimal = found.groups()
    value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return -value if sign == "-" else value
