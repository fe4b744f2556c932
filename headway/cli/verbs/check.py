"""`headway check`: lists every problem of files and folders at its line and column."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from headway.cli.documents import add_stdin, given
from headway.cli.read_back import ReadBack, compare, read_back
from headway.cli.terminal import add_color, progress
from headway.cli.views.problems import counts, print_ignored, print_problems
from headway.compile import PlannedCluster, PlannedJob, Problems, Sources, compile_documents
from headway.compile.document import is_job
from headway.compile.sources import Below, is_folder
from headway.jobspec.notation import counted
from headway.jobspec.parse import AnyParsed, Parsed, is_partial
from headway.jobspec.problem import Problem
from headway.jobspec.spec.job import TrainingJob
from headway.templates.cluster import reader_of

# Files that are passed over by name; more are counted.
_SHOWN = 3
# More documents than this take more than a second.
_MANY = 200


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a document, a folder of documents, or `-` for stdin")
    parser.add_argument(
        "--format",
        choices=["text", "json", "sarif", "github"],
        default="text",
        help="output format: text for people, github for annotations of a pull request (default: %(default)s)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 on warnings too")
    add_color(parser)
    add_stdin(parser)
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="also check whether this run can resume with the job's changes: a directory, or a name under $HEADWAY_RUNS (default: ./runs)",
    )


def run(args: argparse.Namespace) -> int:
    """Checks each document by itself, each job against its clusters and its run, each cluster against the files rendered from it.

    1 on errors, with `--strict` on warnings too, or when there is no such run; 2 without a document, without one of the paths, or where
    a run is named and no single job.
    """
    sources = Sources()
    paths = [given(path, sources, args.stdin_filename) for path in dict.fromkeys(args.paths)]
    found = [sources.below(path) if is_folder(path) else Below([path], [], []) for path in paths]
    files = list(dict.fromkeys(file for each in found for file in each.documents))
    passed_over = list(dict.fromkeys(file for each in found for file in each.passed_over))
    unreadable = [problem for each in found for problem in each.problems]
    if not files and not unreadable:
        print(
            f"headway: no headway documents below {', '.join(map(str, args.paths))}{_passed_over(passed_over)}", file=sys.stderr
        )
        return 2
    if len(files) > _MANY:
        progress(f"checking {len(files):,} documents")
    compiled = compile_documents(files, of_inventories=True, sources=sources)
    if args.run is not None and not (len(files) == 1 and all(map(is_job, compiled.documents))):
        print("headway: `--run` compares one job with its run; pass one TrainingJob", file=sys.stderr)
        return 2
    problems = compiled.problems.plus([*unreadable, *_namesakes(compiled.documents)], sources.documents)
    for plan in compiled.plans:
        rendered = _read_back(plan)
        problems = problems.plus(rendered.problems, rendered.documents)
    taken: list[str] = []
    if args.run is not None:
        compared = _since(
            args.run, [each.job for each in compiled.jobs[:1]] or list(filter(is_job, compiled.documents)), problems
        )
        if compared is None:
            return 1
        taken, refused = compared
        problems = problems.without(_is_settled).plus(refused, sources.documents)
    bases = {file for cluster in compiled.clusters for file in cluster.bases}
    _print(args, problems, len(files), taken, [file for file in passed_over if file not in bases])
    if not all(sources.has(path) for path in paths):
        return 2
    return 1 if problems.errors or (args.strict and problems.warnings) else 0


def _print(args: argparse.Namespace, problems: Problems, files: int, taken: list[str], passed_over: list[Path]) -> None:
    """The problems of so many files, and the YAML files that are none; in text, what the run's next attempt takes up as well."""
    if args.format == "text":
        print_problems(problems, sys.stdout, args.color)
        print_ignored(problems, sys.stdout)
        if taken:
            print(*taken, "", sep="\n")
        print(f"{counted(files, 'document')}: {counts(problems, 'error')}{_passed_over(passed_over)}")
    else:
        from headway.cli.views.formats import FORMATS  # noqa: PLC0415 (most checks are read by people)

        sys.stdout.write(FORMATS[args.format](problems, files, list(map(str, passed_over))))


def _passed_over(files: list[Path]) -> str:
    """The YAML files of the folders that are no headway documents, a few of them by name."""
    if not files:
        return ""
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return f"; {counted(len(files), 'YAML file')} passed over: {', '.join(map(str, files[:_SHOWN]))}{more}"


def _since(run: str, jobs: list[Parsed[TrainingJob]], problems: Problems) -> tuple[list[str], list[Problem]] | None:
    """Lines on what of the one job's changes the run takes up, and what it cannot. None, with the reason on stderr, without such a run."""
    from headway.cli.changes import judge, run_so_far  # noqa: PLC0415 (few checks are of a run)
    from headway.report.directory import RunError  # noqa: PLC0415
    from headway.runs import searched  # noqa: PLC0415

    try:
        so_far = run_so_far(run, searched(os.environ))
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return None
    return judge(jobs[0], so_far, problems) if jobs else ([], [])


def _is_settled(problem: Problem) -> bool:
    """Return whether the problem is a doubt that a checkpoint of a step exists, which the records of a run answer."""
    return problem.code == "HW218" and not problem.is_error and problem.path[-1:] == ("rollback_to",)


def _namesakes(documents: Iterable[AnyParsed]) -> Iterator[Problem]:
    """Yield problems for jobs of one folder that share a name and so a place. (Clusters of one name are reported at the job.)"""
    first: dict[tuple[str, str], str] = {}
    for parsed in documents:
        if not is_job(parsed) or not parsed.has(("name",)) or is_partial(parsed.document):
            continue
        file, name = parsed.document.name, parsed.spec.name
        other = first.setdefault((os.path.realpath(Path(file).parent), name), file)
        if os.path.realpath(other) != os.path.realpath(file):
            message = f"the job of `{other}` is called `{name}` too, and both render into `rendered/{name}`"
            yield Problem("HW405", file, ("name",), message, "rename one of them, or move it into a separate folder")


def _read_back(plan: PlannedJob | PlannedCluster) -> ReadBack:
    """The files rendered from the plan, as far as they are there, compared with its cluster."""
    rendered = Path(plan.document.name).parent / "rendered" / plan.plan.name
    folder, cluster = (rendered / plan.plan.cluster, plan.cluster) if isinstance(plan, PlannedJob) else (rendered, plan.plan)
    found = read_back((file, None) for file in sorted(folder.rglob("*")) if file.is_file() and reader_of(file))
    return replace(found, problems=(*found.problems, *compare(found.readings, cluster)))
