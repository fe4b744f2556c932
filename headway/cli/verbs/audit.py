"""`headway audit`: finds what harms a run in switch, host and job files, and compares them with each other and with a cluster file."""

import argparse
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

from headway.cli.read_back import changed_settings, compare, harms, read_back
from headway.cli.terminal import add_color
from headway.cli.views.problems import counts, print_problems
from headway.compile import Problems, compile_documents
from headway.jobspec.notation import counted
from headway.templates.agreement import carries_collectives
from headway.templates.cluster import reader_of, readers_by_kind, recognized
from headway.templates.nccl.read import read as read_environment
from headway.templates.nccl.read import read_manifest

# Pages and programs show commands that are in force nowhere.
_PROSE = frozenset({".md", ".rst", ".html", ".py", ".ipynb", ".csv", ".log", ".pdf"})
_LARGEST_BYTES = 16 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="[KIND:]FILE",
        help="a file in force, with its KIND where the name does not show it, or a folder of them",
    )
    add("--cluster", type=Path, metavar="FILE", help="compare with this Cluster document too")
    add_color(parser)
    kinds = ", ".join(readers_by_kind())
    parser.epilog = (
        f"Kinds: {kinds}; the name or content of most files shows theirs. Without --cluster headway applies the rules of docs/audit.md, "
        "and compares the files with each other."
    )


def run(args: argparse.Namespace) -> int:
    """1 if anything disagrees, 2 where there is nothing to read."""
    # What is read stays to the end: the garbage collector would scan the ports of all switches again and again.
    gc.disable()
    try:
        return _run(args)
    finally:
        gc.enable()


def _run(args: argparse.Namespace) -> int:
    problems, cluster = Problems(), None
    if args.cluster is not None:
        compiled = compile_documents([args.cluster], kinds=("Cluster",))
        if not compiled.clusters:
            print_problems(compiled.problems, sys.stderr, args.color)
            return 1
        problems, cluster = compiled.problems, compiled.clusters[0]
    found = read_back(_named_files(args.paths))
    problems = problems.plus(found.problems, found.documents)
    if not found.readings and not problems.errors:
        print(f"headway: no file that can be read back in {', '.join(args.paths)}", file=sys.stderr)
        return 2
    problems = problems.plus(compare(found.readings, cluster.plan if cluster else None))
    problems = problems.plus(harms(found.readings))
    if cluster is not None:
        problems = problems.plus(changed_settings(found.readings, found.documents, cluster))
    print_problems(problems, sys.stdout, args.color)
    print(f"{counted(len(found.readings), 'file')}: {counts(problems, 'problem')}")
    if found.readings and cluster is None and not carries_collectives(found.readings.values()):
        print("No file sets the DSCP of the collectives, so their path was not checked: add a job's environment.")
    return 1 if problems.errors else 0


def _named_files(words: list[str]) -> Iterator[tuple[Path, str | None]]:
    """The files that the arguments mean, with the kind that is prefixed to one."""
    for word in words:
        kind, colon, rest = word.partition(":")
        named = bool(colon) and kind in readers_by_kind()
        for file in _files(Path(rest if named else word)):
            yield file, kind if named else None


def _files(path: Path) -> list[Path]:
    """Return the file, or those below the folder whose names or contents show their kind and that set anything of it."""
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.rglob("*")) if file.is_file() and _is_of_a_kind(file)]


def _is_of_a_kind(file: Path) -> bool:
    """Whether the file's name or content shows its kind; a script or environment without variables of NCCL shows none."""
    by_name = reader_of(file)
    if by_name is not None and by_name not in {read_environment, read_manifest}:
        return True
    try:
        if file.suffix in _PROSE or file.stat().st_size > _LARGEST_BYTES:
            return False
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return by_name is not None
    return "NCCL_" in text if by_name is not None else recognized(text) is not None
