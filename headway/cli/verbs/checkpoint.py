"""`headway checkpoint VERB`: works on a run's checkpoints in a process with the runner's libraries."""

import argparse
import getpass
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from headway.cli.checkpoint_process import LibraryError, Line, ReaderProcess
from headway.cli.documents import load_job_plan
from headway.cli.help import with_examples
from headway.cli.terminal import fail
from headway.cli.views.checkpoint_text import (
    print_adoption,
    print_differences,
    print_exported,
    print_imported,
    print_list,
    print_verified,
)
from headway.jobspec.json_text import json_text
from headway.jobspec.plan import JobPlan, to_json
from headway.jobspec.resolve.placement import runs_of_user
from headway.report.directory import RunError, find_run
from headway.runs import searched

OK, PROBLEMS, USAGE, LACKING = 0, 1, 2, 3


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "RUN is a run directory, or its name under $HEADWAY_RUNS (default: ./runs, then where `headway torchrun` stores runs). "
        "Every byte that is read is verified."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listed = _verb(verbs, "ls", "List a run's checkpoints: where they are and whether they can be resumed from", "train-1")
    listed.add_argument("run", metavar="RUN", help="a run directory or a run's name")
    verified = _verb(
        verbs,
        "verify",
        "Read every byte of the newest checkpoint and report what differs from what was committed",
        "train-1 --step 2000",
    )
    verified.add_argument(
        "place", metavar="RUN|DIR", help="a run, RUN@STEP, or a directory written by headway's dcp.StorageWriter"
    )
    verified.add_argument("--step", type=int, metavar="N", help="verify the checkpoint of this step")
    verified.add_argument("--all", action="store_true", help="verify every checkpoint that can be resumed from")
    compared = _verb(verbs, "diff", "Compare two checkpoints; exit with 1 if they differ", "train-1@1000 train-2@1000")
    for name in ("old", "new"):
        compared.add_argument(
            name, metavar=name.upper(), help="RUN (its newest checkpoint), RUN@STEP, or a DCP or safetensors directory"
        )
    _configure_export(
        _verb(
            verbs, "export", "Export a checkpoint to safetensors or plain torch.distributed.checkpoint", "train-1 --to exported/"
        )
    )
    _configure_import(
        _verb(
            verbs,
            "import",
            "Create a run that starts from another program's checkpoint",
            "hf Llama-3.1-8B/ --to llama-1 --job job.yaml",
        )
    )
    adopted = _verb(verbs, "adopt", "Rebuild a run's lost chain (its commit log) from the checkpoints on disk", "train-1 --yes")
    adopted.add_argument("run", metavar="RUN", help="a run directory or a run's name")
    adopted.add_argument("--yes", action="store_true", help="rebuild it; without this option, only show what would be done")


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str, example: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary}.",
        epilog=with_examples(None, f"headway checkpoint {name} {example}"),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


def _configure_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run directory or a run's name")
    parser.add_argument("--step", type=int, metavar="N", help="export the checkpoint of this step (default: the newest)")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="a directory that does not exist yet")
    parser.add_argument(
        "--format",
        choices=("safetensors", "dcp"),
        default="safetensors",
        help="safetensors: the parameters, which transformers loads as LlamaForCausalLM for the builtin model; dcp: the whole state "
        "(default: %(default)s)",
    )


def _configure_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        choices=("hf", "dcp"),
        help="hf: safetensors in the layout of Hugging Face; dcp: plain torch.distributed.checkpoint",
    )
    parser.add_argument("place", type=Path, metavar="DIR", help="the directory of the checkpoint")
    parser.add_argument("--to", type=Path, required=True, metavar="RUN", help="the new run's directory")
    parser.add_argument("--job", type=Path, metavar="JOB", help="a TrainingJob of the builtin trainer that will resume from it")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="a Cluster document (default: the first that the job names)")
    parser.add_argument("--step", type=int, metavar="N", help="the step of the checkpoint (default: as recorded in it, else 0)")


def run(args: argparse.Namespace) -> int:
    """0; 1 where something is refused or differs; 2 where a name names nothing; 3 without the runner's libraries."""
    try:
        return _run_verb(args)
    except RunError as error:
        return fail(str(error), USAGE)
    except LibraryError as error:
        return fail(str(error), LACKING)


def _run_verb(args: argparse.Namespace) -> int:
    match args.verb:
        case "ls":
            return _read(["ls", _run(args.run)], print_list, args.json)
        case "verify":
            return _read(
                ["verify", _place(args.place), *_step(args), *(["--all"] if args.all else [])], print_verified, args.json
            )
        case "diff":
            return _read(["diff", _place(args.old), _place(args.new)], print_differences, args.json)
        case "export":
            words = ["export", _place(args.run), *_step(args), "--to", str(args.to), "--format", args.format]
            return _read(words, print_exported, args.json)
        case "import":
            return _import(args)
        case _:
            words = ["adopt", _run(args.run), *(["--yes"] if args.yes else [])]
            return _read(words, partial(print_adoption, name=args.run), args.json)


def _import(args: argparse.Namespace) -> int:
    words = ["import", args.kind, str(args.place), *_step(args)]
    if args.job is None:
        return _read([*words, "--to", str(args.to)], print_imported, args.json)
    planned = load_job_plan(args.job, args.cluster)
    if planned is None:
        return PROBLEMS
    runs = Path(os.environ.get("HEADWAY_RUNS") or runs_of_user(planned.plan.runs, getpass.getuser()))
    if args.to.parent != Path() and args.to.parent.resolve() != runs.resolve():
        return fail(f"`{args.to}` is not below `{runs}`, where the runs of this job are; pass a name or set HEADWAY_RUNS", USAGE)
    with _told(planned.plan) as more:
        code = _read([*words, "--to", str(runs / args.to.name), *more], print_imported, args.json)
    if code == OK:
        print(f"to resume: headway run {args.job} --resume {args.to.name}", file=sys.stderr)
    return code


@contextmanager
def _told(plan: JobPlan) -> Iterator[list[str]]:
    """run.json of the job and what it was made from, as files for the reader."""
    with tempfile.TemporaryDirectory() as folder:
        run_json, spec = Path(folder, "run.json"), Path(folder, "spec.json")
        run_json.write_text(to_json(plan.run))
        spec.write_text(json_text(plan.kept_spec))
        yield ["--run-json", str(run_json), "--spec", str(spec)]


def _read(words: list[str], show: Callable[[Iterable[Line]], None], as_json: bool) -> int:
    reading = ReaderProcess(words)
    (_print_lines if as_json else show)(reading)
    return reading.code()


def _print_lines(lines: Iterable[Line]) -> None:
    for line in lines:
        print(json.dumps(line), flush=True)


def _run(name: str) -> str:
    return str(find_run(name, searched(os.environ)))


def _place(name: str) -> str:
    """A directory, a run, or RUN@STEP with the run's directory."""
    run, at, step = name.rpartition("@")
    if not at or Path(name).is_dir():
        return _run(name)
    return f"{_run(run)}@{step}"


def _step(args: argparse.Namespace) -> list[str]:
    return [] if args.step is None else ["--step", str(args.step)]
