"""Settings that are in force, read back from switch, host and job files, against each other and against a cluster file."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from headway.cli.documents import PlannedCluster, plan_cluster, read_cluster
from headway.cli.findings import Findings, counted
from headway.jobspec.document import Document, Span
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.problem import Problem
from headway.jobspec.resolve.environment import resolve_environment
from headway.jobspec.resolve.placement import resolve_group
from headway.templates.agreement import disagreements
from headway.templates.cluster import reader_of, readers_by_kind
from headway.templates.reading import Reading, Setting


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="[KIND:]FILE", help="a file whose name tells its kind, or is told it; or a folder of files")
    add("--cluster", type=Path, metavar="FILE", help="the Cluster document whose numbers must be in force")
    add("--color", action="store_true", help="colour the kind of each problem")
    parser.epilog = f"Kinds: {', '.join(readers_by_kind())}. Without --cluster the files are compared with each other alone."


def run(args: argparse.Namespace) -> int:
    """1 if anything disagrees, 2 where there is nothing to read."""
    findings = Findings()
    cluster = _cluster(args.cluster, findings)
    if args.cluster is not None and cluster is None:
        findings.print(sys.stderr, args.color)
        return 1
    readings = dict(_readings(args.paths, findings))
    if not readings and not findings.errors:
        print(f"headway: no file that can be read back in {', '.join(args.paths)}", file=sys.stderr)
        return 2
    findings.add(audit(readings, cluster.plan if cluster else None))
    if cluster is not None:
        findings.add(_changed_settings(readings, cluster))
    findings.print(sys.stdout, args.color)
    print(f"{counted(len(readings), 'file')}: {counted(findings.errors, 'problem') if findings.errors else 'no problems'}")
    return 1 if findings.errors else 0


def audit(readings: Mapping[str, Reading], cluster: ClusterPlan | None) -> Iterator[Problem]:
    """Where the files disagree about the classes of traffic and about routing, and a job's variables with its cluster."""
    for found in disagreements(readings, cluster):
        yield Problem("HW602", found.file, (), f"{found.end}: {found.message}", found.hint)
    if cluster is not None:
        for file, reading in readings.items():
            if "NCCL" in reading.qos:
                yield from _changed_variables(file, reading, cluster)


def read_file(path: Path, kind: str | None, findings: Findings) -> Reading | None:
    """What the file configures, by its kind or its name; None, with a problem, where it cannot be read."""
    reader = readers_by_kind()[kind] if kind else reader_of(path)
    if reader is None:
        hint = f"say which kind it is, for example `{next(iter(readers_by_kind()))}:{path}`"
        findings.add([Problem("HW604", str(path), (), "its name does not tell what kind of file it is", hint)])
        return None
    try:
        text = path.read_text(encoding="utf-8")
        findings.documents[str(path)] = Document(str(path), text)
        return reader(text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        findings.add(
            [Problem("HW604", str(path), (), f"it cannot be read: {reason}", "give a file that a device or a job has in force")]
        )
        return None


def _cluster(path: Path | None, findings: Findings) -> PlannedCluster | None:
    parsed = read_cluster(path, findings) if path else None
    return plan_cluster(parsed, findings) if parsed else None


def _readings(words: list[str], findings: Findings) -> Iterator[tuple[str, Reading]]:
    for word in words:
        kind, path = _kind_and_path(word)
        for file in _files(path):
            reading = read_file(file, kind, findings)
            if reading is not None:
                yield str(file), reading


def _kind_and_path(word: str) -> tuple[str | None, Path]:
    kind, colon, rest = word.partition(":")
    return (kind, Path(rest)) if colon and kind in readers_by_kind() else (None, Path(word))


def _files(path: Path) -> list[Path]:
    """The file, or those below the folder whose names tell their kind."""
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.rglob("*")) if file.is_file() and reader_of(file) is not None]


def _changed_settings(readings: Mapping[str, Reading], cluster: PlannedCluster) -> Iterator[Problem]:
    """Every setting of a file that is not as the cluster's own file of that name has it."""
    rendered = {str(path): text for path, text in cluster.files().items()}
    for file, reading in readings.items():
        name = next((name for name in rendered if _is_same_file(file, name)), None)
        reader = reader_of(PurePosixPath(name)) if name else None
        if name is not None and reader is not None:
            yield from _changes(file, reading, reader(rendered[name]))


def _changed_variables(file: str, reading: Reading, cluster: ClusterPlan) -> Iterator[Problem]:
    """NCCL's variables that the cluster decides; a job may set others besides."""
    variables = resolve_environment(cluster, resolve_group(cluster))
    wanted = {each.name: Setting(each.value, 0) for each in variables if each.name.startswith("NCCL_")}
    found = {name: setting for name, setting in reading.settings.items() if name in wanted}
    yield from _changes(file, Reading(found), Reading(wanted))


def _is_same_file(file: str, rendered: str) -> bool:
    """Whether the paths end alike: in the file's own folder and name, or for a host in the whole path on it."""
    wanted = PurePosixPath(rendered).parts[2:]
    return PurePosixPath(Path(file).resolve().as_posix()).parts[-len(wanted) :] == wanted


def _changes(file: str, found: Reading, wanted: Reading) -> Iterator[Problem]:
    hint = "put the file of `headway render` there, or mend the cluster file"
    for key, setting in wanted.settings.items():
        if key not in found.settings:
            yield Problem("HW603", file, (), f"`{key}` is missing; the cluster file gives {setting.value}", hint)
    for key, setting in found.settings.items():
        expected = wanted.settings.get(key)
        span = Span(setting.line - 1, 0, setting.line, 0)
        if expected is None:
            yield Problem("HW603", file, (), f"`{key}` is {setting.value}, which the cluster file does not give", hint, span=span)
        elif expected.value != setting.value:
            message = f"`{key}` is {setting.value}, and {expected.value} by the cluster file"
            yield Problem("HW603", file, (), message, hint, span=span)
