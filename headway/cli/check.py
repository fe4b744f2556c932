"""Files and folders as the list of their problems, each at its line and column."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from headway.cli.documents import is_job, plan_job, read_document
from headway.cli.findings import Findings
from headway.cli.search import documents_below


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a document, or a folder of documents")
    parser.add_argument("--color", action="store_true", help="colour the kind of each problem")


def run(args: argparse.Namespace) -> int:
    """Checks each document by itself, and each job against the clusters that it names. 1 on errors, 2 without a document."""
    files = list(dict.fromkeys(file for path in args.paths for file in _documents(path)))
    if not files:
        print(f"headway: no headway documents below {', '.join(map(str, args.paths))}", file=sys.stderr)
        return 2
    findings = Findings()
    for file in files:
        parsed = read_document(file, findings)
        if parsed is not None and is_job(parsed):
            plan_job(parsed, None, findings)
    findings.print(sys.stdout, args.color)
    print(_summary(len(files), findings))
    return 1 if findings.errors else 0


def _documents(path: Path) -> Iterator[Path]:
    """The documents that the argument means; a file is one whatever it holds."""
    return documents_below(path) if path.is_dir() else iter([path])


def _summary(documents: int, findings: Findings) -> str:
    counts = [_count(findings.errors, "error")] if findings.errors else []
    counts += [_count(findings.warnings, "warning")] if findings.warnings else []
    return f"{_count(documents, 'document')}: {', '.join(counts) or 'no problems'}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
