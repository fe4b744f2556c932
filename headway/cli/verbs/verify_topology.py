"""`headway verify-topology`: tries the topology files of a cluster in a slurmctld that is started for it."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from headway.cli.site import stopping, tell
from headway.cli.terminal import StopError, progress
from headway.cli.views.problems import print_problems
from headway.compile import compile_documents
from headway.infra.slurm_trial import Trial, TrialError, try_topology, version
from headway.infra.submit.site import opened
from headway.jobspec.notation import counted
from headway.templates.schedulers.slurm.node_names import compressed
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.site_files import FOLDER
from headway.templates.schedulers.slurm.topology import blocks, switches

# The release since which slurmctld reads topology.yaml (SchedMD/slurm RELEASE_NOTES, 25.05).
_READS_YAML = (25, 5)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("document", type=Path, metavar="CLUSTER", help="a Cluster document, with its inventories next to it")
    parser.add_argument(
        "--offline",
        action="store_true",
        help="ask no Slurm for its nodes: try the files with those of the plan",
    )
    parser.epilog = (
        "Starts slurmctld and munged of this machine for some seconds, on loopback, with a key and nodes that no other daemon has. "
        "Only reads from the Slurm of the site (`sinfo`)."
    )


def run(args: argparse.Namespace) -> int:
    """0 if slurmctld starts with each file and has the plan's switches and Slurm's nodes, 1 if not, 2 for a cluster without a topology,
    3 without slurmctld and munged, and for a Slurm that does not answer."""
    return stopping(lambda: _verify(args))


def _verify(args: argparse.Namespace) -> int:
    compiled = compile_documents([args.document], kinds=("Cluster",))
    print_problems(compiled.problems, sys.stderr)
    if compiled.problems.errors:
        return 1
    planned = compiled.clusters[0]
    options, plan = planned.scheduler, planned.plan
    tree = planned.files()
    files = {path.name: tree[path] for path in tree if path.parent.name == FOLDER.name and path.stem == "topology"}
    if not isinstance(options, SlurmOptions) or options.topology is None or not files:
        raise StopError(
            2,
            f"no Slurm topology follows from `{plan.name}`: set `topology` in `scheduler.options`, and `switches` of its fabric",
        )
    parts = [*switches(options, plan)] if options.topology == "tree" else [*blocks(options, plan)]
    own = [name for part in parts for name in part.nodes]
    nodes = own if args.offline else _nodes_of_slurm(options, args.document)
    try:
        release = version()
        found = list(_compared(own, nodes))
        for file, text in files.items():
            if file.endswith(".yaml") and release < _READS_YAML:
                tell(f"{file}: not tried; slurmctld {release[0]}.{release[1]:02} does not read it")
                continue
            progress(f"starting slurmctld {release[0]}.{release[1]:02} with {file}")
            wrong = list(_faults(try_topology(file, text, options.topology, nodes), [part.name for part in parts]))
            found += [f"{file}: {each}" for each in wrong]
            if not wrong:
                print(
                    f"{file}: slurmctld {release[0]}.{release[1]:02} starts with {_counted_parts(options.topology, len(parts))}"
                )
    except TrialError as error:
        raise StopError(3, str(error)) from error
    for each in found:
        print(each)
    return 1 if found else 0


def _counted_parts(plugin: str, count: int) -> str:
    return f"{count} switches" if plugin == "tree" and count != 1 else counted(count, "switch" if plugin == "tree" else "block")


def _nodes_of_slurm(options: SlurmOptions, document: Path) -> list[str]:
    """Return the names of the nodes that the site's slurmctld has. Raises StopError with 3 if it does not answer."""
    with opened("slurm", options, "runs", document) as site:
        done = site.commands.run(["sinfo", "--noheader", "--Node", "--all", "--format=%N"])
    if done.code:
        raise StopError(3, f"`sinfo`: {done.reason}; `--offline` tries the files with the nodes of the plan")
    return list(dict.fromkeys(done.output.split()))


def _compared(planned: Sequence[str], nodes: Sequence[str]) -> Iterator[str]:
    """Yield the nodes that only one side has."""
    if missing := [name for name in nodes if name not in set(planned)]:
        yield f"in no switch or block of the plan: {compressed(missing)}; add them to the cluster file, or name them in `node_names`"
    if unknown := [name for name in planned if name not in set(nodes)]:
        yield f"not in Slurm: {compressed(unknown)}; name the nodes as slurm.conf does in `node_names`"


def _faults(trial: Trial, parts: Sequence[str]) -> Iterator[str]:
    if not trial.starts:
        yield f"slurmctld does not start: {'; '.join(trial.complaints[-3:]) or 'it gives no reason'}"
        return
    yield from trial.complaints
    # `SwitchName=rails-leaf-1 Level=0 ...`, `BlockName=h100-domain-1 ...`
    shown = {line.split()[0].partition("=")[2] for line in trial.shown.splitlines() if line.strip()}
    if absent := [name for name in parts if name not in shown]:
        yield f"slurmctld does not have {', '.join(absent)}"
