"""Runs the command `headway`: finds the verb, parses its options and returns its exit code."""

import gc
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from msgspec import Struct

from headway.cli.help import Parser, with_examples
from headway.jobspec.suggest import did_you_mean

OK, PROBLEMS, USAGE, LACKING = 0, 1, 2, 3
# 128 and the number of SIGINT, as a shell has it.
INTERRUPTED = 130


class Verb(Struct, frozen=True):
    """A verb. Its module in `verbs/` is imported when the verb is used: it has `configure(parser)` and `run(args) -> int`.

    A `raw` verb has a command line of its own: it has `run(words) -> int`.
    """

    summary: str
    example: str = ""
    raw: bool = False


VERBS: Mapping[str, Verb] = {
    "check": Verb("Check jobs and clusters; report every problem at its line and column", "headway check jobs/"),
    "explain": Verb("Explain a problem by its code: the cause, the fix, and an example", "headway explain HW301"),
    "plan": Verb(
        "Show what a job or a cluster resolves to: ranks, environment, traffic classes, switches, files",
        "headway plan job.yaml --cluster cluster.yaml",
    ),
    "simulate": Verb(
        "Simulate a job's goodput under failures over the whole run",
        "headway simulate job.yaml --node-mtbf 300d --every shared=15m",
    ),
    "render": Verb(
        "Write the files of jobs and clusters: batch scripts, manifests, NCCL, host and switch settings",
        "headway render jobs/ --check",
    ),
    "pin": Verb(
        "Replace each `auto` of a job with its value, or write a cluster's cabling to inventories",
        "headway pin job.yaml",
    ),
    "audit": Verb(
        "Compare the switch, host and NCCL settings in force with each other and with a cluster",
        "headway audit collected/ --cluster cluster.yaml",
    ),
    "verify-cabling": Verb(
        "Name each wrong, swapped, missing and extra cable of a cluster, from LLDP or ibnetdiscover",
        "headway verify-cabling cluster.yaml rails-leaf-1.json rails-leaf-2.json",
    ),
    "verify-topology": Verb(
        "Try a cluster's topology files in a slurmctld of its own, before Slurm is reconfigured",
        "headway verify-topology cluster.yaml",
    ),
    "prepare": Verb(
        "Make a corpus of token shards from text or JSON lines",
        "headway prepare web/*.jsonl.gz -o corpora/web --tokenizer tokenizer.json --end '<|endoftext|>'",
    ),
    "run": Verb("Run a job on this machine, with the processes of all its nodes", "headway run job.yaml"),
    "torchrun": Verb(
        "Run an unmodified script with torchrun's flags and restart it after failures",
        raw=True,
    ),
    "submit": Verb(
        "Submit a job to its cluster's scheduler, here or over SSH, once for each run",
        "headway submit job.yaml --cluster cluster.yaml",
    ),
    "status": Verb(
        "List a cluster's runs: state, step, rate, goodput, nodes, last cause", "headway status --cluster cluster.yaml"
    ),
    "logs": Verb("Print why a run failed and a rank's log, and follow it", "headway logs train-1 --rank 8 -f"),
    "cancel": Verb("End the job of a run, which saves first", "headway cancel train-1"),
    "resume": Verb("Give a run that has ended or is held a job again", "headway resume train-1"),
    "report": Verb("Summarize a run and write its HTML report", "headway report train-1"),
    "profile": Verb("Trace some steps of a running job", "headway profile train-1 --steps 3"),
    "checkpoint": Verb(
        "List, verify, compare, export and import a run's checkpoints",
        "headway checkpoint verify train-1",
    ),
    "import": Verb(
        "Write the job that an sbatch script describes, and list what of it is not in the job",
        "headway import sbatch train.sbatch --cluster cluster.yaml -o job.yaml",
    ),
    "discover": Verb(
        "Describe a cluster from what its scheduler knows: write its document and inventory",
        "headway discover slurm -o clusters/big",
    ),
    "schema": Verb(
        "Print the JSON Schema of the documents, for editors",
        "headway schema TrainingJob > job.schema.json",
    ),
    "bundle": Verb(
        "Make the folder that images without headway need to run jobs",
        "headway bundle -o /shared/headway",
    ),
    "snapshot": Verb(
        "Keep the reviewed code of a job for its runs: the files of a commit, as one archive",
        "HEADWAY_CODE=$(headway snapshot job.yaml) sbatch rendered/job/cluster/slurm/job.sbatch",
    ),
    "preview": Verb("Show what `up` would change on a cluster's hosts", "headway preview cluster.yaml"),
    "up": Verb("Configure a cluster's hosts over SSH as its document describes", "headway up cluster.yaml --yes"),
    "down": Verb("Remove everything headway installed on a cluster's hosts", "headway down cluster.yaml"),
    "push": Verb(
        "Load FRR's configuration on a cluster's Linux switches over SSH, with an undo that fires by itself",
        "headway push cluster.yaml --switch rails-leaf-1",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 fine, 1 problems or drift, 2 wrong usage, 3 something is missing from the environment."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in {"-h", "--help"}:
        print(overview())
        return OK if words else USAGE
    if words[0] == "--version":
        from importlib.metadata import version  # noqa: PLC0415 (it takes longer than the rest of this module)

        print(f"headway {version('headway')}")
        return OK
    if words[0] not in VERBS:
        print(f"headway: `{words[0]}` is not a verb; {did_you_mean(words[0], VERBS, 'verbs').text}", file=sys.stderr)
        return USAGE
    return _run(words[0], words[1:])


def overview() -> str:
    """The text of `headway --help`."""
    width = max(map(len, VERBS))
    rows = [f"  {name:{width}}  {verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(["usage: headway VERB ...", "", *rows, "", "Run `headway VERB --help` for a verb's options and an example."])


def _run(name: str, words: list[str]) -> int:
    module, verb = _imported(f"headway.cli.verbs.{name.replace('-', '_')}"), VERBS[name]
    if verb.raw:
        return int(module.run(words))
    # A stream whose encoding does not have a character shows its escape, instead of a traceback that hides all other problems.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = Parser(prog=f"headway {name}", description=f"{verb.summary}.")
    module.configure(parser)
    parser.epilog = with_examples(parser.epilog, verb.example)
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
    """Import the verb's module. Its objects stay to the end: the garbage collector would scan them for a fifth of a check's time."""
    if name in sys.modules:
        return sys.modules[name]
    _without_plugins()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def _without_plugins() -> None:
    """Keep pydantic from searching the metadata of each installed package for plugins, which takes a fifteenth of a check's time.
    The variable PYDANTIC_DISABLE_PLUGINS does the same, and would be passed on to a script."""
    loader = ModuleType("pydantic.plugin._loader")
    loader.get_plugins = tuple  # type: ignore[attr-defined]
    sys.modules.setdefault(loader.__name__, loader)


if __name__ == "__main__":
    sys.exit(main())
