"""`headway check`: lists every problem of files and folders at its line and column."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from headway.cli.audit import audit, read_file
from headway.cli.documents import PlannedJob, clusters_of, is_cluster, is_job, plan_cluster, plan_job, read_document
from headway.cli.findings import Findings, counted
from headway.cli.search import is_folder
from headway.jobspec.parse import AnyParsed, Parsed, is_partial
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.problem import Problem
from headway.jobspec.spec.job import TrainingJob
from headway.templates.cluster import reader_of


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a document, or a folder of documents")
    parser.add_argument(
        "--format",
        choices=["text", "json", "sarif", "github"],
        default="text",
        help="output format: text for people, github for annotations of a pull request (default: %(default)s)",
    )
    parser.add_argument("--color", action="store_true", help="colour each problem's severity; text format only")
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="also check whether this run can resume with the job's changes: a directory, or a name under $HEADWAY_RUNS (default: ./runs)",
    )


def run(args: argparse.Namespace) -> int:
    """Checks each document by itself, each job against its clusters and its run, each cluster against the files rendered from it.

    1 on errors, or when there is no such run; 2 without a document, or where a run is named and no single job.
    """
    findings = Findings()
    files = list(dict.fromkeys(file for path in args.paths for file in _documents(path, findings)))
    if not files:
        print(f"headway: no headway documents below {', '.join(map(str, args.paths))}", file=sys.stderr)
        return 2
    documents = [document for file in files if (document := read_document(file, findings)) is not None]
    if args.run is not None and not (len(files) == 1 and all(map(is_job, documents))):
        print("headway: `--run` compares one job with its run; pass one TrainingJob", file=sys.stderr)
        return 2
    findings.add(_namesakes(documents))
    planned = [job for document in (*documents, *clusters_of(documents, findings)) for job in _check_plans(document, findings)]
    jobs = [each.job for each in planned[:1]] or [document for document in documents if is_job(document)]
    taken = _since(args.run, jobs, findings)
    if taken is None:
        return 1
    _print(args, findings, len(files), taken)
    return 1 if findings.errors else 0


def _print(args: argparse.Namespace, findings: Findings, files: int, taken: list[str]) -> None:
    """The problems of so many files; in text, what the run's next attempt takes up as well."""
    if args.format == "text":
        findings.print(sys.stdout, args.color)
        if taken:
            print(*taken, "", sep="\n")
        print(f"{counted(files, 'document')}: {findings.counts('error')}")
    else:
        from headway.cli.formats import FORMATS  # noqa: PLC0415 (most checks are read by people)

        sys.stdout.write(FORMATS[args.format](findings, files))


def _since(run: str | None, jobs: list[Parsed[TrainingJob]], findings: Findings) -> list[str] | None:
    """Lines on what of the one job's changes the run takes up. None, with the reason on stderr, when it cannot be compared."""
    if run is None:
        return []
    from headway.cli.changes import judge, run_so_far  # noqa: PLC0415 (few checks are of a run)
    from headway.report.directory import RunError  # noqa: PLC0415
    from headway.runs import searched  # noqa: PLC0415

    try:
        so_far = run_so_far(run, searched(os.environ))
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return None
    return [line for job in jobs for line in judge(job, so_far, findings)]


def _documents(path: Path, findings: Findings) -> Iterator[Path]:
    """The documents that the argument means; a file is one whatever it holds."""
    return findings.sources.documents_below(path) if is_folder(path) else iter([path])


def _namesakes(documents: Iterable[AnyParsed]) -> Iterator[Problem]:
    """Jobs of one folder that have one name: they would render into one place. (Clusters of one name are told where a job names them.)"""
    first: dict[tuple[str, str], str] = {}
    for parsed in documents:
        if not is_job(parsed) or not parsed.has(("name",)) or is_partial(parsed.document):
            continue
        file, name = parsed.document.name, parsed.spec.name
        other = first.setdefault((os.path.realpath(Path(file).parent), name), file)
        if os.path.realpath(other) != os.path.realpath(file):
            message = f"the job of `{other}` is called `{name}` too, and both render into `rendered/{name}`"
            yield Problem("HW405", file, ("name",), message, "rename one of them, or move it into a separate folder")


def _check_plans(document: AnyParsed, findings: Findings) -> list[PlannedJob]:
    """The plans that follow from the document, and its rendered files, as far as they are there, against them; those of a job."""
    rendered = Path(document.document.name).parent / "rendered"
    jobs = plan_job(document, None, findings) if is_job(document) else []
    for job in jobs:
        _read_back(rendered / job.plan.name / job.plan.cluster, job.cluster, findings)
    if is_cluster(document) and (cluster := plan_cluster(document, findings)) is not None:
        _read_back(rendered / cluster.plan.name, cluster.plan, findings)
    return jobs


def _read_back(folder: Path, cluster: ClusterPlan, findings: Findings) -> None:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and reader_of(file)]
    readings = {str(file): read_file(file, None, findings) for file in files}
    findings.add(audit({file: reading for file, reading in readings.items() if reading is not None}, cluster))
