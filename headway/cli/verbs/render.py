"""`headway render`: writes the files of jobs and clusters, or compares them with those on disk."""

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path, PurePosixPath

from msgspec import Struct, field

from headway.cli.ownership import is_rendered, occupants, stale_files
from headway.cli.views.problems import print_problems
from headway.compile import Compiled, PlannedCluster, PlannedJob, Sources, compile_documents
from headway.compile.sources import is_folder
from headway.infra.tree import FileDifference, compare_tree, remove_files, write_tree
from headway.jobspec.problem import Problem
from headway.templates.kind import Files, LazyFiles

_SYMBOL = {"missing": "+", "changed": "~", "extra": "-"}


class Output(Struct):
    """The contents of one folder of rendered files: the files, the folders in it that they fill, and the files to remove."""

    root: Path
    files: Files = field(default_factory=LazyFiles)
    trees: list[PurePosixPath] = field(default_factory=list)
    stale: list[PurePosixPath] = field(default_factory=list)

    def is_ours(self, file: PurePosixPath) -> bool:
        """Return whether headway could have put the file there; other files belong to the user."""
        return any(is_rendered(file, tree) for tree in self.trees if file.is_relative_to(tree))


# By the folder's real path: one folder may be reached under several names.
_Outputs = dict[str, Output]


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="a TrainingJob or Cluster document, or a folder of them")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="write everything below this folder (default: `rendered` beside each document)",
    )
    add("--cluster", type=Path, metavar="FILE", help="a Cluster document (default: all that the jobs name)")
    add(
        "--check",
        action="store_true",
        help="write nothing; list missing, changed and extra files, and exit with 1 if there are any",
    )


def run(args: argparse.Namespace) -> int:
    """Writes or compares the tree of every job and cluster; with errors nothing is written."""
    sources = Sources()
    below = [sources.below(path) for path in args.paths if is_folder(path)]
    searched = [file for found in below for file in found.documents]
    files = _once([*searched, *(path for path in args.paths if not is_folder(path))], args.output)
    compiled = compile_documents(files, args.cluster, sources=sources)
    outputs, conflicts = _outputs(compiled, args.output)
    if args.output is None and args.cluster is None:
        _add_stale(outputs, searched)
    unreadable = [problem for found in below for problem in found.problems]
    problems = compiled.problems.plus([*conflicts, *unreadable], sources.documents)
    print_problems(problems, sys.stderr)
    if problems.errors:
        return 1
    if not compiled.documents:
        print(f"headway: no headway documents below {', '.join(map(str, args.paths))}", file=sys.stderr)
        return 2
    differences = {output.root: _apply(output, args.check) for output in outputs.values()}
    _report(differences, sum(len(output.files) for output in outputs.values()), args.check)
    return 1 if args.check and any(differences.values()) else 0


def _once(files: list[Path], output: Path | None) -> list[Path]:
    """The files without those that are another one under a second name and render into the same folder."""
    known: dict[tuple[str, str], Path] = {}
    for file in files:
        known.setdefault((os.path.realpath(file), os.path.realpath(output or file.parent)), file)
    return list(known.values())


def _outputs(compiled: Compiled, folder: Path | None) -> tuple[_Outputs, list[Problem]]:
    """Return the contents of each folder of rendered files, and a problem for each tree whose place is taken."""
    outputs: _Outputs = {}
    conflicts = []
    for document in compiled.documents:
        name = document.document.name
        output = _output(outputs, folder or Path(name).parent / "rendered")
        for tree, files in (_tree(plan) for plan in compiled.plans if plan.document.name == name):
            if not files:
                continue
            obstacles = chain(_rivals(tree, output), occupants(tree, files, output.root))
            conflicts += [Problem("HW405", name, ("name",), message, hint) for message, hint in islice(obstacles, 1)]
            output.trees.append(tree)
            output.files |= files
    return outputs, conflicts


def _output(outputs: _Outputs, root: Path) -> Output:
    return outputs.setdefault(os.path.realpath(root), Output(root))


def _tree(plan: PlannedJob | PlannedCluster) -> tuple[PurePosixPath, Files]:
    """The plan's folder of rendered files, and the files; a cluster may have none."""
    parts = (plan.plan.name, plan.plan.cluster) if isinstance(plan, PlannedJob) else (plan.plan.name,)
    return PurePosixPath(*parts), plan.files()


def _add_stale(outputs: _Outputs, searched: list[Path]) -> None:
    """Return files that an earlier name of a job or a cluster has left next to the documents."""
    known = set(map(os.path.realpath, searched))
    for folder in {os.path.realpath(file.parent): file.parent for file in searched}.values():
        output = _output(outputs, folder / "rendered")
        unread = [file for file in folder.iterdir() if os.path.realpath(file) not in known]
        output.stale += stale_files(output.root, output.trees, unread)


def _rivals(tree: PurePosixPath, output: Output) -> Iterator[tuple[str, str]]:
    """Trees of other documents in the place of this one, or in it: what is wrong, and what to do."""
    if tree in output.trees:
        kind = "cluster" if len(tree.parts) == 1 else "job"
        message = f"another {kind} called `{tree.parts[0]}` also renders into `{tree}`"
        yield message, "rename one of them, or set a separate folder for each with `-o`"
    for other in (other for other in output.trees if other.parts[0] == tree.parts[0] and len(other.parts) != len(tree.parts)):
        message = f"a job and a cluster are both called `{tree.parts[0]}`: one renders into `{tree}`, the other into `{other}`"
        yield message, "rename one of them"


def _apply(output: Output, check_only: bool) -> list[FileDifference]:
    """Writes or compares; returns what was different before."""
    apply = compare_tree if check_only else write_tree
    differences = apply(output.root, output.files, output.trees, output.is_ours)
    if not check_only:
        remove_files(output.root, output.stale)
    stale = [FileDifference(path, "extra") for path in output.stale]
    return sorted(differences + stale, key=lambda difference: difference.path)


def _report(differences: dict[Path, list[FileDifference]], files: int, check_only: bool) -> None:
    """Each difference on stdout (+ missing, ~ changed, - extra), the sum on stderr."""
    for root, found in differences.items():
        for difference in found:
            print(f"{_SYMBOL[difference.what]} {root / difference.path}")
    count = sum(map(len, differences.values()))
    what = "differ from what the documents render to" if check_only else "written or removed"
    print(f"{files} files rendered, {count} {what}", file=sys.stderr)
