"""Reads back what files in force configure, and compares it with each other and with a cluster."""

import difflib
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path, PurePosixPath

from headway.compile import PlannedCluster
from headway.jobspec.check.environment import rival_of
from headway.jobspec.document import Document, Span
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.problem import Problem, Severity
from headway.jobspec.resolve.environment import resolve_environment
from headway.templates.agreement import disagreements
from headway.templates.audit.finding import Finding
from headway.templates.audit.plan import RENAMES_PORTS, differences, slow_sessions
from headway.templates.audit.rules import findings
from headway.templates.cluster import reader_of, readers_by_kind, recognized
from headway.templates.hosts.render import is_netplan, is_script
from headway.templates.hosts.units import is_unit
from headway.templates.kind import Files, of_plan
from headway.templates.reading import Reading, Setting
from headway.templates.switches import SWITCHES

# `<cluster>/switches/<switch>/...`
_SWITCH = 2

_HINT = "install the file that `headway render` writes, or fix the cluster file"
_PASS = "pass a file that a device or a job has in force"

# Variables that change how a job uses the cluster's fabrics; NCCL's log is the job's choice. A file of NCCL's variables need not have those
# of other libraries.
_NCCL, _OTHERS, _OF_THE_JOB = "NCCL_", ("FI_", "GLOO_SOCKET_"), "NCCL_DEBUG"


@dataclass(frozen=True)
class ReadBack:
    """Settings read back from files, their texts, both by the files' names, and the problems of files that cannot be read."""

    readings: Mapping[str, Reading]
    documents: Mapping[str, Document]
    problems: tuple[Problem, ...]


def read_back(files: Iterable[tuple[Path, str | None]]) -> ReadBack:
    """Return the settings of the files, each by its kind or, if that is None, by its name."""
    readings: dict[str, Reading] = {}
    documents: dict[str, Document] = {}
    problems = []
    for path, kind in files:
        name = str(path)
        if not path.exists():
            problems.append(Problem("HW604", name, (), "there is no such file", _PASS))
            continue
        try:
            text = path.read_text(encoding="utf-8")
            reader = readers_by_kind()[kind] if kind else reader_of(path) or recognized(text)
            if reader is None:
                hint = f"prefix its kind, for example `{next(iter(readers_by_kind()))}:{path}`"
                problems.append(Problem("HW604", name, (), "its kind cannot be told from its name or content", hint))
                continue
            documents[name] = Document(name, text)
            readings[name] = reader(text)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            problems.append(Problem("HW604", name, (), f"it cannot be read: {reason}", _PASS))
    return ReadBack(readings, documents, tuple(problems))


def compare(readings: Mapping[str, Reading], cluster: ClusterPlan | None) -> Iterator[Problem]:
    """Where the files disagree about the classes of traffic and about routing, with each other or with a cluster."""
    for found in disagreements(readings, cluster):
        severity = Severity.WARNING if found.doubtful else Severity.ERROR
        yield Problem("HW602", found.file, (), f"{found.end}: {found.message}", found.hint, severity)
    if cluster is not None:
        for difference in differences(readings, cluster):
            yield _problem_of(difference, readings)
        for file, reading in readings.items():
            if "NCCL" in reading.qos:
                yield from _changed_variables(file, reading, cluster)


def harms(readings: Mapping[str, Reading]) -> Iterator[Problem]:
    """Yield a problem for each finding about the files by themselves, at the line of its setting."""
    for found in findings(readings):
        yield _problem_of(found, readings)


def _problem_of(found: Finding, readings: Mapping[str, Reading]) -> Problem:
    severity = Severity.WARNING if found.doubtful else Severity.ERROR
    line = readings[found.file].line_of(found.key)
    span = None if line is None else Span(line - 1, 0, line, 0)
    return Problem(found.code, found.file, (), found.message, found.hint, severity, span=span)


def changed_settings(
    readings: Mapping[str, Reading], documents: Mapping[str, Document], cluster: PlannedCluster
) -> Iterator[Problem]:
    """Every setting of a file that is not as the cluster's own file of that name, or of that host name, has it."""
    # Files are made when they are asked for: the others of a fabric cost more than those that are compared.
    rendered = cluster.files()
    readable = [path for path in rendered if reader_of(path) is not None]
    by_tail = {path.parts[2:]: path for path in readable}
    lengths = {len(tail) for tail in by_tail}
    by_switch = {(path.name, path.parts[_SWITCH]): path for path in readable if len(path.parts) > _SWITCH}
    before_growth = _without_coming(cluster)
    without_bfd = {fabric for (fabric, _), chosen in cluster.switches.items() if getattr(chosen, "bfd_ms", 0) is None}
    for found in slow_sessions(readings, cluster.plan, without_bfd):
        yield _problem_of(found, readings)
    for file, reading in readings.items():
        if "NCCL" in reading.qos:
            continue
        parts = tuple(os.path.realpath(file).split("/"))
        tails = [parts[-length:] for length in lengths]
        path = next((by_tail[tail] for tail in tails if tail in by_tail), None) or _of_host(reading, by_switch)
        reader = reader_of(path) if path is not None else None
        if path is not None and documents[file].text == rendered[path]:
            continue
        if path is None and reading.device is not None and reading.device.os in RENAMES_PORTS:
            # A running configuration also has what the site and the system set; `compare` has compared what it means.
            continue
        if path is not None and reader is not None:
            wanted = reader(rendered[path])
            bare = before_growth(path)
            yield from _changes(file, reading, wanted, _judge_of(path, wanted), None if bare is None else reader(bare))
            if is_script(path.name):
                yield from _changed_script(file, documents[file].text, rendered[path])
        else:
            hint = "name it as `headway render` does, in a folder with its device's name"
            message = "it has no counterpart among the cluster's rendered files; only its traffic classes were compared"
            yield Problem("HW605", file, (), message, hint)


def _without_coming(cluster: PlannedCluster) -> Callable[[PurePosixPath], str | None]:
    """Return a function that renders a switch's file without its ports for devices to come, which may be shut until then; it returns
    None for other files."""
    plan = cluster.plan
    concerned = {switch.name for switch in plan.switches if not plan.devices.issuperset(port.peer for port in switch.ports)}

    @cache
    def files() -> Files:
        switches = tuple(replace(switch, ports=plan.cabled(switch)) for switch in plan.switches)
        return replace(cluster, plan=replace(plan, switches=switches)).files()

    def text(path: PurePosixPath) -> str | None:
        return files()[path] if not concerned.isdisjoint(path.parts) else None

    return text


def _judge_of(path: PurePosixPath, wanted: Reading) -> Callable[[str], Severity | None]:
    """Return how much each setting of a file of this name matters: the site may have more in it than headway writes."""
    kinds = list(SWITCHES.values())
    kind = next((each for each in kinds if path.name == each.file), None)
    kind = kind or next((each for each in kinds if path.name in {PurePosixPath(other).name for other in each.others}), None)
    if kind is not None:
        return kind.judge
    if not is_script(path.name) and not is_unit(path) and not is_netplan(path):
        return of_plan
    # A host has other interfaces and a unit other limits than those that headway sets.
    ours = set() if is_unit(path) else {key.partition("|")[0] for key in wanted.settings}
    return lambda key: Severity.ERROR if key in wanted.settings or key.partition("|")[0] in ours else Severity.WARNING


def _changed_script(file: str, found: str, wanted: str) -> Iterator[Problem]:
    """Yield a problem for the first line that differs, since a program does what all of its lines say; comments do not count. Lines that
    the site has added are a warning."""
    numbers = [number for number, line in enumerate(found.splitlines()) if _is_code(line)]
    ours = [line.strip() for line in found.splitlines() if _is_code(line)]
    theirs = [line.strip() for line in wanted.splitlines() if _is_code(line)]
    steps = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes() if ours != theirs else []
    changed = next((step for step in steps if step[0] != "equal" and step[4] > step[3]), None)
    added = next((step for step in steps if step[0] == "delete"), None)
    step = changed or added
    if step is not None:
        number = numbers[step[1]] if step[1] < len(numbers) else found.count("\n")
        expected = theirs[step[3]] if changed else ""
        message = "the script differs from the one rendered from the cluster file, which has here "
        message += f"`{expected}`" if changed else f"no `{ours[step[1]]}`"
        severity = Severity.ERROR if changed else Severity.WARNING
        yield Problem("HW603", file, (), message, _HINT, severity, span=Span(number, 0, number + 1, 0))


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _of_host(reading: Reading, by_switch: Mapping[tuple[str, str], PurePosixPath]) -> PurePosixPath | None:
    """Return the rendered file of the switch whose name is in the file."""
    for kind in SWITCHES.values():
        setting = reading.settings.get(kind.host_name)
        if setting is not None and (kind.file, setting.value) in by_switch:
            return by_switch[kind.file, setting.value]
    return None


def _changed_variables(file: str, reading: Reading, cluster: ClusterPlan) -> Iterator[Problem]:
    """NCCL's variables that the cluster decides, where the file sets any; a job may set others besides."""
    if not any(name.startswith("NCCL_") for name in reading.settings):
        return
    group = next((each for each in cluster.groups if each.gpus), cluster.groups[0])
    variables = resolve_environment(cluster, group)
    planned_values = {each.name: Setting(each.value, 0) for each in variables if _is_of_network(each.name)}
    wanted = {name: value for name, value in planned_values.items() if name.startswith(_NCCL) or name in reading.settings}
    found = {name: setting for name, setting in reading.settings.items() if name in wanted}
    # A job may have other values of what the cluster file does not decide.
    decided = {each.name for each in variables if each.decided_by is not None}
    judge = partial(_severity_of, decided)
    yield from _changes(file, Reading(_same_dscp(found, wanted)), Reading(wanted), judge)
    traffic_class = reading.settings.get("NCCL_IB_TC")
    if traffic_class is not None and "NCCL_IB_TC" in found and _same_dscp(found, wanted) != found:
        planned = wanted["NCCL_IB_TC"].value
        message = f"`NCCL_IB_TC` is {traffic_class.value}, and {planned} in the cluster file; their two ECN bits differ"
        span = Span(traffic_class.line - 1, 0, traffic_class.line, 0)
        hint = f"set {planned}, unless the adapter sets the bits itself"
        yield Problem("HW603", file, (), message, hint, Severity.WARNING, span=span)
    for name, setting in reading.settings.items():
        if _is_of_network(name) and name not in wanted and rival_of(name) not in wanted:
            message = f"`{name}` is {setting.value}, which does not follow from the cluster file"
            span = Span(setting.line - 1, 0, setting.line, 0)
            yield Problem("HW603", file, (), message, f"remove `{name}`, unless the job needs it", Severity.WARNING, span=span)
        rival = rival_of(name)
        if rival in wanted and name not in wanted:
            message = f"`{name}` is {setting.value}, which goes against `{rival}={wanted[rival].value}` of the cluster file"
            span = Span(setting.line - 1, 0, setting.line, 0)
            yield Problem("HW603", file, (), message, f"remove `{name}`", span=span)


def _severity_of(decided: Container[str], name: str) -> Severity:
    return Severity.ERROR if name in decided else Severity.WARNING


def _is_of_network(name: str) -> bool:
    return name.startswith((_NCCL, *_OTHERS)) and not name.startswith(_OF_THE_JOB)


def _same_dscp(found: Mapping[str, Setting], wanted: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """`found` with the traffic class as it is wanted, if only its two ECN bits differ: the DSCP is compared with the other files'."""
    traffic_class = found.get("NCCL_IB_TC")
    if traffic_class is None or not all(each["NCCL_IB_TC"].value.isdecimal() for each in (found, wanted)):
        return found
    if int(traffic_class.value) >> 2 != int(wanted["NCCL_IB_TC"].value) >> 2:
        return found
    return {**found, "NCCL_IB_TC": Setting(wanted["NCCL_IB_TC"].value, traffic_class.line)}


def _changes(
    file: str,
    found: Reading,
    wanted: Reading,
    judge: Callable[[str], Severity | None] = of_plan,
    bare: Reading | None = None,
) -> Iterator[Problem]:
    """Yield a problem for each setting that differs from `wanted`, and from `bare` if there is such a reading."""
    also = wanted.settings if bare is None else bare.settings
    for key, setting in wanted.settings.items():
        severity = judge(key) if key not in found.settings and key in also else None
        if severity is not None:
            message = f"`{key}` is missing; the cluster file sets {setting.value or 'it'}"
            yield Problem("HW603", file, (), message, _HINT, severity)
    for key, setting in found.settings.items():
        expected = wanted.settings.get(key)
        if expected is not None and expected.value == setting.value:
            continue
        other = also.get(key)
        if other is not None and other.value == setting.value:
            continue
        severity = judge(key)
        if severity is None:
            continue
        span = Span(setting.line - 1, 0, setting.line, 0)
        if expected is None:
            yield Problem(
                "HW603",
                file,
                (),
                f"`{key}` {f'is {setting.value}' if setting.value else 'is there'}, which the cluster file does not set",
                _HINT,
                severity,
                span=span,
            )
        else:
            message = f"`{key}` is {setting.value}, but {expected.value} in the cluster file"
            yield Problem("HW603", file, (), message, _HINT, severity, span=span)
