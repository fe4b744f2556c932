"""Files and folders as the list of their problems, each at its line and column."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from headway.cli.audit import audit, read_file
from headway.cli.documents import is_cluster, is_job, plan_cluster, plan_job, read_document
from headway.cli.findings import Findings, counted
from headway.cli.formats import FORMATS
from headway.cli.search import documents_below
from headway.jobspec.parse import AnyParsed
from headway.jobspec.plan import ClusterPlan
from headway.templates.cluster import reader_of


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a document, or a folder of documents")
    parser.add_argument("--format", choices=["text", *FORMATS], default="text", help="who reads the problems; text is for people")
    parser.add_argument("--color", action="store_true", help="in text, colour the kind of each problem")


def run(args: argparse.Namespace) -> int:
    """Checks each document by itself, each job against its clusters, each cluster against the files rendered from it.

    1 on errors, 2 without a document.
    """
    files = list(dict.fromkeys(file for path in args.paths for file in _documents(path)))
    if not files:
        print(f"headway: no headway documents below {', '.join(map(str, args.paths))}", file=sys.stderr)
        return 2
    findings = Findings()
    for file in files:
        parsed = read_document(file, findings)
        if parsed is not None:
            _check_plans(parsed, findings)
    if args.format == "text":
        findings.print(sys.stdout, args.color)
        print(f"{counted(len(files), 'document')}: {findings.counts('error')}")
    else:
        sys.stdout.write(FORMATS[args.format](findings, len(files)))
    return 1 if findings.errors else 0


def _documents(path: Path) -> Iterator[Path]:
    """The documents that the argument means; a file is one whatever it holds."""
    return documents_below(path) if path.is_dir() else iter([path])


def _check_plans(document: AnyParsed, findings: Findings) -> None:
    """The plans that follow from the document, and its rendered files, as far as they are there, against them."""
    rendered = Path(document.document.name).parent / "rendered"
    if is_job(document):
        for job in plan_job(document, None, findings):
            _read_back(rendered / job.plan.name / job.plan.cluster, job.cluster, findings)
    elif is_cluster(document):
        cluster = plan_cluster(document, findings)
        if cluster is not None:
            _read_back(rendered / cluster.plan.name, cluster.plan, findings)


def _read_back(folder: Path, cluster: ClusterPlan, findings: Findings) -> None:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and reader_of(file)]
    readings = {str(file): read_file(file, None, findings) for file in files}
    findings.add(audit({file: reading for file, reading in readings.items() if reading is not None}, cluster))
