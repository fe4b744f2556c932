"""Jobs and clusters as their files, written or compared with what is there."""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from headway.cli.documents import is_cluster, is_job, plan_cluster, plan_job, read_document
from headway.cli.findings import Findings
from headway.cli.search import documents_below
from headway.infra.tree import Difference, compare_tree, write_tree
from headway.jobspec.parse import AnyParsed
from headway.jobspec.problem import Problem
from headway.templates.kind import Files

_SYMBOL = {"missing": "+", "changed": "~", "extra": "-"}


@dataclass
class Output:
    """What belongs into one folder of rendered files: the files, and the folders in it that they fill."""

    files: Files = field(default_factory=dict)
    trees: list[PurePosixPath] = field(default_factory=list)


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="a TrainingJob or Cluster document, or a folder of them")
    add(
        "-o", "--output", type=Path, metavar="DIR", help="folder of all rendered files (default: `rendered` beside each document)"
    )
    add("--cluster", type=Path, metavar="FILE", help="a Cluster document, not all that the jobs name")
    add("--check", action="store_true", help="write nothing; list what is missing, changed or extra, and exit 1 if anything is")


def run(args: argparse.Namespace) -> int:
    """Writes or compares the tree of every job and cluster; with errors nothing is written."""
    findings = Findings()
    documents = [document for path in args.paths for document in _documents(path, findings)]
    outputs = _outputs(documents, args, findings)
    if args.output is None and args.cluster is None:
        _add_stale(outputs, [path for path in args.paths if path.is_dir()])
    findings.print(sys.stderr)
    if findings.errors:
        return 1
    if not documents:
        print(f"headway: no headway documents below {', '.join(map(str, args.paths))}", file=sys.stderr)
        return 2
    differences = {root: _apply(root, output, args.check) for root, output in outputs.items()}
    _report(differences, sum(len(output.files) for output in outputs.values()), args.check)
    return 1 if args.check and any(differences.values()) else 0


def _documents(path: Path, findings: Findings) -> Iterator[AnyParsed]:
    """The document in the file, or every one in and below the folder."""
    for file in documents_below(path) if path.is_dir() else [path]:
        parsed = read_document(file, findings)
        if parsed is not None:
            yield parsed


def _outputs(documents: list[AnyParsed], args: argparse.Namespace, findings: Findings) -> dict[Path, Output]:
    """What goes into each folder of rendered files."""
    outputs: dict[Path, Output] = {}
    for document in documents:
        name = document.document.name
        root = args.output or Path(name).parent / "rendered"
        for tree, files in _trees(document, args.cluster, findings):
            output = outputs.setdefault(root, Output())
            findings.add(_obstacle(tree, output, root, name))
            output.trees.append(tree)
            output.files |= files
    return outputs


def _trees(document: AnyParsed, cluster_file: Path | None, findings: Findings) -> Iterator[tuple[PurePosixPath, Files]]:
    """The document's folders of rendered files."""
    if is_job(document):
        for job in plan_job(document, cluster_file, findings):
            yield PurePosixPath(job.plan.name, job.plan.cluster), job.files()
    elif is_cluster(document):
        cluster = plan_cluster(document, findings)
        files = cluster.files() if cluster else {}
        if cluster and files:
            yield PurePosixPath(cluster.plan.name), files


def _add_stale(outputs: dict[Path, Output], folders: list[Path]) -> None:
    """Trees that an earlier name of a job or a cluster has left below the folders: nothing renders into them any more."""
    for root in (root for folder in folders for root in folder.rglob("rendered") if root.is_dir()):
        output = outputs.setdefault(root, Output())
        plans = (*root.glob("*/plan.json"), *root.glob("*/*/plan.json"))
        trees = {PurePosixPath(plan.parent.relative_to(root).as_posix()) for plan in plans}
        output.trees += sorted(trees - set(output.trees))


def _obstacle(tree: PurePosixPath, output: Output, root: Path, document: str) -> Iterator[Problem]:
    """Another tree in the place of this one, or in it."""
    if tree in output.trees:
        kind = "cluster" if len(tree.parts) == 1 else "job"
        message = f"another {kind} called `{tree.parts[0]}` also renders into `{tree}`"
        yield Problem("HW405", document, ("name",), message, "rename one of them, or give each a folder of its own by `-o`")
    for other in (other for other in output.trees if other.parts[0] == tree.parts[0] and len(other.parts) != len(tree.parts)):
        message = f"a job and a cluster are both called `{tree.parts[0]}`: one renders into `{tree}`, the other into `{other}`"
        yield Problem("HW405", document, ("name",), message, "rename one of them")
    below = [path.parent.name for path in (root / tree).glob("*/plan.json")] if len(tree.parts) == 1 else []
    if below and not any(len(other.parts) == 2 and other.parts[0] == tree.parts[0] for other in output.trees):
        message = f"`{tree}` holds the files of a job of that name, for {', '.join(sorted(below))}"
        yield Problem(
            "HW405", document, ("name",), message, "rename the cluster, or remove the job's files if there is no such job"
        )


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
