"""Jobs as the files that run them, written or compared with what is there."""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from headway.cli.documents import PlannedJob, is_job, plan_job, read_document, read_job
from headway.cli.findings import Findings
from headway.cli.search import documents_below
from headway.infra.tree import Difference, compare_tree, write_tree
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import Problem
from headway.jobspec.spec.job import TrainingJob
from headway.templates.kind import Files

_SYMBOL = {"missing": "+", "changed": "~", "extra": "-"}


@dataclass
class Output:
    """What belongs into one folder of rendered files: the files, and the folders in it that they fill."""

    files: Files = field(default_factory=dict)
    trees: list[PurePosixPath] = field(default_factory=list)


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="a TrainingJob document, or a folder of them")
    add("-o", "--output", type=Path, metavar="DIR", help="folder of all rendered files (default: `rendered` beside each job)")
    add("--cluster", type=Path, metavar="FILE", help="a Cluster document, not all that the jobs name")
    add("--check", action="store_true", help="write nothing; list what is missing, changed or extra, and exit 1 if anything is")


def run(args: argparse.Namespace) -> int:
    """Writes or compares every job's tree; with errors nothing is written."""
    findings = Findings()
    jobs = [job for path in args.paths for job in _jobs(path, findings)]
    outputs = _outputs(jobs, args, findings)
    if args.output is None and args.cluster is None:
        _add_stale(outputs, [path for path in args.paths if path.is_dir()])
    findings.print(sys.stderr)
    if findings.errors:
        return 1
    if not jobs:
        print(f"headway: no TrainingJob below {', '.join(map(str, args.paths))}", file=sys.stderr)
        return 2
    differences = {root: _apply(root, output, args.check) for root, output in outputs.items()}
    _report(differences, sum(len(output.files) for output in outputs.values()), args.check)
    return 1 if args.check and any(differences.values()) else 0


def _jobs(path: Path, findings: Findings) -> Iterator[Parsed[TrainingJob]]:
    """The job in the file, or every job in and below the folder."""
    if not path.is_dir():
        job = read_job(path, findings)
        if job is not None:
            yield job
        return
    for file in documents_below(path):
        parsed = read_document(file, findings)
        if parsed is not None and is_job(parsed):
            yield parsed


def _outputs(jobs: list[Parsed[TrainingJob]], args: argparse.Namespace, findings: Findings) -> dict[Path, Output]:
    """What goes into each folder of rendered files."""
    outputs: dict[Path, Output] = {}
    for job in jobs:
        root = args.output or Path(job.document.name).parent / "rendered"
        for planned in plan_job(job, args.cluster, findings):
            findings.add(_add(outputs.setdefault(root, Output()), planned, job.document.name))
    return outputs


def _add_stale(outputs: dict[Path, Output], folders: list[Path]) -> None:
    """Trees that an earlier name of a job or a cluster has left below the folders: nothing renders into them any more."""
    for root in (root for folder in folders for root in folder.rglob("rendered") if root.is_dir()):
        output = outputs.setdefault(root, Output())
        trees = {PurePosixPath(plan.parent.relative_to(root).as_posix()) for plan in root.glob("*/*/plan.json")}
        output.trees += sorted(trees - set(output.trees))


def _add(output: Output, planned: PlannedJob, document: str) -> list[Problem]:
    tree = PurePosixPath(planned.plan.name, planned.plan.cluster)
    if tree in output.trees:
        message = f"another job called `{planned.plan.name}` also renders into `{tree}`"
        return [Problem("HW405", document, ("name",), message, "rename one of them, or give each a folder of its own by `-o`")]
    output.trees.append(tree)
    output.files |= planned.files()
    return []


def _apply(root: Path, output: Output, check_only: bool) -> list[Difference]:
    return compare_tree(root, output.files, output.trees) if check_only else write_tree(root, output.files, output.trees)


def _report(differences: dict[Path, list[Difference]], files: int, check_only: bool) -> None:
    """Each difference on stdout (+ missing, ~ changed, - extra), the sum on stderr."""
    for root, found in differences.items():
        for difference in found:
            print(f"{_SYMBOL[difference.what]} {root / difference.path}")
    count = sum(map(len, differences.values()))
    what = "differ from what the documents render to" if check_only else "written or removed"
    print(f"{files} files rendered, {count} {what}", file=sys.stderr)
