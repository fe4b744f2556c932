"""The command line as the exit code of the verb that it names."""

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType

from headway.jobspec.suggest import did_you_mean

OK, PROBLEMS, USAGE, LACKING = 0, 1, 2, 3
# 128 and the number of SIGINT, as a shell has it.
INTERRUPTED = 130


@dataclass(frozen=True)
class Verb:
    """A verb's module, which is imported when the verb is used: it has `configure(parser)` and `run(args) -> int`.

    A `raw` verb has a command line of its own: it has `run(words) -> int`.
    """

    module: str
    summary: str
    raw: bool = False


VERBS: Mapping[str, Verb] = {
    "check": Verb("headway.cli.check", "every problem of the documents, at its line and column"),
    "plan": Verb("headway.cli.plan", "what a job or a cluster comes to: ranks, environment, classes, switches, files"),
    "simulate": Verb("headway.cli.simulate", "the goodput that failures leave of a job, over its whole length"),
    "render": Verb("headway.cli.render", "all files of jobs and clusters"),
    "pin": Verb("headway.cli.pin", "what a job leaves open as numbers in its file; a cluster's cables as an inventory"),
    "audit": Verb("headway.cli.audit", "switch, host and NCCL settings in force, read back and compared"),
    "run": Verb("headway.cli.run", "a job on this machine: every node's processes here"),
    "torchrun": Verb("headway.cli.torchrun", "torchrun's own flags, our agents: an unmodified script survives", raw=True),
    "report": Verb("headway.cli.report", "a run as one HTML page and a summary"),
    "checkpoint": Verb("headway.cli.checkpoint", "a run's checkpoints listed, verified, compared, brought out and in"),
    "schema": Verb("headway.cli.schema", "the language of the documents as JSON Schema, for editors"),
    "preview": Verb("headway.cli.preview", "what `up` would change on a cluster's hosts"),
    "up": Verb("headway.cli.up", "a cluster's hosts as its document says, over SSH"),
    "down": Verb("headway.cli.down", "a cluster's hosts without anything of headway's"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 fine, 1 problems or drift, 2 wrong usage, 3 the environment lacks something."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in {"-h", "--help"}:
        print(overview())
        return OK if words else USAGE
    if words[0] == "--version":
        print(f"headway {version('headway')}")
        return OK
    if words[0] not in VERBS:
        print(f"headway: `{words[0]}` is not a verb; {did_you_mean(words[0], VERBS, 'verbs')}", file=sys.stderr)
        return USAGE
    return _run(words[0], words[1:])


def overview() -> str:
    """The text of `headway --help`."""
    width = max(map(len, VERBS))
    rows = [f"  {name:{width}}  {verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(["usage: headway VERB ...", "", *rows, "", "headway VERB --help says what a verb takes."])


def _run(name: str, words: list[str]) -> int:
    module = _imported(VERBS[name].module)
    if VERBS[name].raw:
        return int(module.run(words))
    parser = argparse.ArgumentParser(prog=f"headway {name}", description=VERBS[name].summary, allow_abbrev=False)
    module.configure(parser)
    try:
        code: int = module.run(parser.parse_args(words))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe has gone, `head` for one; nothing is left to say, also not at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _imported(name: str) -> ModuleType:
    """The module. What it brings along stays to the end: the garbage collector would look through it for a fifth of a check's time."""
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
