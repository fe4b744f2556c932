# ruff: noqa: N999 (a verb is in the module of its name)
"""`headway import sbatch FILE`: writes the job that an sbatch script describes, and lists what of the script is not in it."""

import argparse
import importlib.util
import os
import re
import sys
from functools import partial
from pathlib import Path

from headway.cli.help import with_examples
from headway.cli.in_place import PinError, write_in_place
from headway.cli.site import CLUSTER
from headway.cli.terminal import StopError, fail
from headway.cli.views.imports import print_reading
from headway.cli.views.problems import print_problems
from headway.compile import Sources, compile_documents
from headway.jobspec.parse import kind_of

OK, PROBLEMS, USAGE, LACKING = 0, 1, 2, 3
_ANY_CLUSTER = "my-cluster"
_SETTING = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_LARGEST_BYTES = 1 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Nothing is submitted. The script itself stays as it is."
    verbs = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    summary = "Read a batch script of Slurm: torchrun, srun, accelerate, deepspeed, containers, arrays"
    sbatch: argparse.ArgumentParser = verbs.add_parser("sbatch", help=summary, description=f"{summary}.")
    sbatch.epilog = with_examples(
        "Every line that is not in the job is listed with the reason, on stderr and at the end of the document.",
        "headway import sbatch train.sbatch --cluster cluster.yaml -o job.yaml",
    )
    sbatch.add_argument("script", type=Path, metavar="FILE", help="a batch script, as it is given to sbatch")
    sbatch.add_argument(
        "--cluster",
        type=Path,
        metavar="FILE",
        help=f"the Cluster document that the job is for and is checked with (default: ${CLUSTER})",
    )
    sbatch.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the job there (default: print it)")
    sbatch.add_argument("--overwrite", action="store_true", help="replace an existing file")
    sbatch.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of a variable that the script takes from its environment; again for more",
    )


def run(args: argparse.Namespace) -> int:
    """0 for a job without errors, 1 for a script without a training and for errors in the job, 2 for wrong usage."""
    try:
        return _import(args)
    except StopError as error:
        return fail(str(error), error.code) if str(error) else error.code


def _import(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("tree_sitter_bash") is None:
        raise StopError(LACKING, "a parser of shell scripts is missing; install headway with its extra `sbatch`")
    from headway.sbatch import read_script  # noqa: PLC0415 (an extra)
    from headway.sbatch.document import document  # noqa: PLC0415 (an extra)

    if args.output is not None and args.output.exists() and not args.overwrite:
        raise StopError(PROBLEMS, f"{args.output} exists; add `--overwrite` to replace it, or use another name")
    sources = Sources()
    file = args.cluster or (Path(named) if (named := os.environ.get(CLUSTER)) else None)
    cluster = _ANY_CLUSTER if file is None else _name_of(file, sources)
    reading = read_script(
        _text_of(args.script), cluster, _settings(args.set), partial(_read_beside, args.script.parent), args.script.stem
    )
    if reading.job is None:
        print_reading(reading, sys.stderr)
        raise StopError(
            PROBLEMS,
            f"{args.script} starts no training by `torchrun`, `srun`, `accelerate launch`, `deepspeed` or `python`",
        )
    text = document(reading.job, args.script.name, reading.notes, reading.unpinned)
    if args.output is None:
        sys.stdout.write(text)
    else:
        try:
            write_in_place(args.output, text)
        except PinError as error:
            raise StopError(PROBLEMS, str(error)) from error
    print_reading(reading, sys.stderr)
    place = args.output or Path(f"{args.script.stem}.yaml")
    if file is None:
        hint = (
            f"write its document (`headway discover slurm`) and set its name in {place}"
            if args.output
            else "name it by `--cluster FILE`"
        )
        print(f"headway: the job names the cluster `{_ANY_CLUSTER}`: {hint}", file=sys.stderr)
        return OK
    sources.take(place, text.encode())
    problems = compile_documents([place], file, kinds=("TrainingJob",), sources=sources).problems
    print_problems(problems, sys.stderr)
    if args.output is not None and not problems.errors:
        print(
            f"headway: {args.output} has no errors; `headway submit {args.output} --cluster {file}` submits it", file=sys.stderr
        )
    return PROBLEMS if problems.errors else OK


def _name_of(file: Path, sources: Sources) -> str:
    document, unreadable = sources.load(file)
    name = document.value(("name",)) if not unreadable and kind_of(document) == "Cluster" else None
    if not isinstance(name, str):
        raise StopError(PROBLEMS, f"{file} is not a Cluster document; `headway check {file}` reports why")
    return name


def _text_of(script: Path) -> str:
    try:
        if script.stat().st_size > _LARGEST_BYTES:
            raise StopError(PROBLEMS, f"{script} has more than 1 MiB, and is not a batch script")
        return script.read_bytes().decode()
    except OSError as error:
        raise StopError(PROBLEMS, f"{script} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StopError(PROBLEMS, f"{script} is not text in UTF-8: byte {error.start}") from error


def _settings(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        setting = _SETTING.fullmatch(each)
        if setting is None:
            raise StopError(USAGE, f"`--set {each}` is not NAME=VALUE")
        found[setting[1]] = setting[2]
    return found


def _read_beside(folder: Path, name: str) -> str | None:
    """Read a script that the script runs, from its own folder, where it is submitted from; None if there is none."""
    try:
        file = folder / name
        return file.read_text() if file.is_file() and file.stat().st_size <= _LARGEST_BYTES else None
    except (OSError, ValueError):
        return None
