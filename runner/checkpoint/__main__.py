"""Runs a checkpoint verb: `python -m headway.runner.checkpoint VERB ...` prints one JSON object per line, tagged by `what`.

Exits with 0; 1 if something was refused or differs; 2 if an argument names nothing that exists.
"""

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.runner.checkpoint.chain import ChainError
from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.objects import ObjectError
from headway.runner.checkpoint.tools.inspect import ForeignError, PlaceError
from headway.runner.checkpoint.tools.say import FOUND, USAGE, say_error
from headway.runner.contract import RecordError

READING, TRANSFERS = "headway.runner.checkpoint.tools.reading", "headway.runner.checkpoint.tools.transfers"
# Modules are imported on use: torch takes seconds, and half of the verbs need none.
VERBS: Mapping[str, tuple[str, str]] = {
    "ls": (READING, "ls"),
    "verify": (READING, "verify_all"),
    "adopt": (READING, "adopt"),
    "diff": (TRANSFERS, "diff"),
    "export": (TRANSFERS, "export"),
    "import": (TRANSFERS, "import_"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headway.runner.checkpoint", description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("ls").add_argument("run", type=Path)
    checked = verbs.add_parser("verify")
    checked.add_argument("place")
    checked.add_argument("--step", type=int)
    checked.add_argument("--all", action="store_true")
    compared = verbs.add_parser("diff")
    compared.add_argument("old")
    compared.add_argument("new")
    out = verbs.add_parser("export")
    out.add_argument("place")
    out.add_argument("--step", type=int)
    out.add_argument("--to", type=Path, required=True)
    out.add_argument("--format", choices=("safetensors", "dcp"), default="safetensors")
    into = verbs.add_parser("import")
    into.add_argument("kind", choices=("hf", "dcp"))
    into.add_argument("place", type=Path)
    into.add_argument("--to", type=Path, required=True)
    into.add_argument("--step", type=int)
    into.add_argument("--run-json", type=Path)
    into.add_argument("--spec", type=Path)
    adopted = verbs.add_parser("adopt")
    adopted.add_argument("run", type=Path)
    adopted.add_argument("--yes", action="store_true")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(words)
    module, name = VERBS[args.verb]
    try:
        code: int = getattr(importlib.import_module(module), name)(args)
    except PlaceError as error:
        say_error(str(error))
        return USAGE
    except (RefusedError, ChainError, ForeignError, ObjectError, RecordError, OSError) as error:
        say_error(str(error))
        return FOUND
    return code


if __name__ == "__main__":
    sys.exit(main())
