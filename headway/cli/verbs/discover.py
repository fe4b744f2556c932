"""`headway discover slurm`: writes a Cluster and an Inventory from what Slurm knows of its nodes, here or over SSH."""

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError

from headway.cli.help import with_examples
from headway.cli.in_place import PinError, write_in_place
from headway.cli.site import stopping, tell
from headway.cli.terminal import StopError, progress
from headway.cli.views.problems import print_problems
from headway.compile import compile_documents
from headway.infra.discover import DiscoverError, cluster_document, inventory_document, read_slurm
from headway.infra.submit.site import opened
from headway.jobspec.forms import form
from headway.jobspec.notation import counted
from headway.templates.schedulers.slurm.options import Login, SlurmOptions

_FILES = ("cluster.yaml", "inventory.yaml")


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    summary = "Describe the nodes, partitions and settings that slurmctld has"
    slurm: argparse.ArgumentParser = verbs.add_parser("slurm", help=summary, description=f"{summary}.")
    slurm.epilog = with_examples(
        f"Writes {_FILES[0]} and {_FILES[1]}. What Slurm does not know is a comment there, with the line to fill in. "
        "Only reads: `scontrol show`, `srun --help`.",
        "headway discover slurm -o clusters/big",
        "headway discover slurm --login login.example.com -o clusters/big",
    )
    add = slurm.add_argument
    add("-o", "--output", type=Path, default=Path(), metavar="FOLDER", help="folder for the documents (default: this one)")
    add("--overwrite", action="store_true", help="replace existing files")
    add("--login", metavar="HOST", help="a login node, asked over SSH as `ssh HOST` would reach it (default: this machine)")
    add("--jump", metavar="HOSTS", help="hosts that the connection goes through, as `[user@]host[:port]`, with commas")
    add(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="a line of sh that runs there first, such as `module load slurm`",
    )


def run(args: argparse.Namespace) -> int:
    """0; 1 for existing files and problems in what was written, 2 for a wrong `--login` or `--jump`, 3 for a Slurm that does not answer."""
    return stopping(lambda: _discover(args))


def _login(args: argparse.Namespace) -> Login:
    try:
        return Login.model_validate({"host": args.login, "jump": args.jump, "setup": tuple(args.setup)})
    except ValidationError as error:
        found = error.errors()[0]
        option = "login" if found["loc"][0] == "host" else found["loc"][0]
        expected = form(found.get("ctx", {}).get("pattern")) or found["msg"]
        raise StopError(2, f"`--{option} {found['input']}`: expected {expected}") from None


def _discover(args: argparse.Namespace) -> int:
    places = [args.output / name for name in _FILES]
    for place in places:
        if place.exists() and not args.overwrite:
            raise StopError(1, f"{place} exists; add `--overwrite` to replace it, or name another folder by `-o`")
    login = None
    if args.login is not None:
        login = _login(args)
    with opened("slurm", SlurmOptions(login=login), "runs", places[0]) as site:
        progress("asking slurmctld")
        try:
            found = read_slurm(site.commands)
        except DiscoverError as error:
            raise StopError(3, str(error)) from error
    texts = (cluster_document(found, args.login, args.jump, args.setup), inventory_document(found))
    for place, text in zip(places, texts, strict=True):
        try:
            write_in_place(place, text)
        except PinError as error:
            raise StopError(1, str(error)) from error
        print(place)
    tell(f"{counted(len(found.nodes), 'node')} of `{found.name}` (Slurm {found.version}); fill in what the comments name")
    problems = compile_documents(places).problems
    print_problems(problems, sys.stderr)
    return 1 if problems.errors else 0
