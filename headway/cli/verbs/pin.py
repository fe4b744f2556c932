"""`headway pin`: writes a cluster's cabling to inventories, so that later changes of its document move no cable; pins jobs too."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from pydantic import TypeAdapter, ValidationError

from headway.cli.in_place import PinError, write_in_place
from headway.cli.pin_job import pin_job
from headway.cli.terminal import fail
from headway.cli.views.problems import print_problems
from headway.compile import Problems, Sources
from headway.compile.cluster import read_clusters
from headway.compile.inventories import FOLDER, find_strays, read_inventories
from headway.compile.problems import NoPlanError, Steps, collected
from headway.compile.sources import SUFFIXES
from headway.jobspec.document import Document
from headway.jobspec.load import load_bytes
from headway.jobspec.notation import counted
from headway.jobspec.parse import Parsed, kind_of, parse
from headway.jobspec.problem import show
from headway.jobspec.resolve.inventory import Observed, resolve_cables
from headway.jobspec.resolve.links import shape_of
from headway.jobspec.scalar import LeadingZeroError, NotFiniteError, plain_scalar
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.inventory import Inventory, ObservedNic, ObservedNode
from headway.jobspec.spec.section import API_VERSION, Name

_HEAD = (
    "# Where the cables of these nodes lead, as it was planned when `headway pin` wrote it; nothing else decides it from now on."
)
_ROWS_SHOWN = 8


class _Planned(Struct):
    """A node's cables, and the unit of nodes that the first of them leads to."""

    name: str
    unit: int
    nics: list[ObservedNic] = field(default_factory=list)

    def observed(self) -> ObservedNode:
        return ObservedNode(name=self.name, nics=tuple(self.nics))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"Inventories are read from the folder of the cluster's document and from `{FOLDER}` below it."
    add = parser.add_argument
    add(
        "document",
        type=Path,
        metavar="JOB|CLUSTER",
        help="a TrainingJob, whose `auto` values are replaced in place, or a Cluster",
    )
    add("--cluster", type=Path, metavar="FILE", help="for a job: a Cluster document (default: the first that the job names)")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="for a cluster: an inventory to write or to append to, or a folder, which gets one file per unit of nodes",
    )


def run(args: argparse.Namespace) -> int:
    """Writes what a job leaves open into it; prints or writes the cables of the nodes that stand in no inventory.

    1 on errors; 2 for a place that nothing is read from, and for an option of the other kind of document.
    """
    sources = Sources()
    is_a_job = kind_of(sources.load(args.document)[0]) == "TrainingJob"
    if is_a_job and args.output is not None:
        print(f"headway: {args.document} is a job, which is changed in place; `-o` is for a cluster", file=sys.stderr)
        return 2
    if not is_a_job and args.cluster is not None:
        print(f"headway: {args.document} is not a job; `--cluster` is for a job", file=sys.stderr)
        return 2
    return pin_job(args.document, args.cluster) if is_a_job else _pin_cluster(args.document, args.output, sources)


def _pin_cluster(file: Path, output: Path | None, sources: Sources) -> int:
    found, problems = collected(_with_inventories(file, sources))
    # What is warned of, cables that can move, is what is written down here.
    print_problems(Problems(tuple(problems), sources.documents), sys.stderr, warnings=False)
    known = {str(file), *(inventory.document.name for inventory in (found[1] if found else []))}
    for stray in find_strays(file, sources):
        if stray.document not in known:
            print(show(stray, sources.documents.get(stray.document)), end="\n\n", file=sys.stderr)
    if found is None:
        return 1
    cluster, inventories = found
    if output is not None and not _is_read(output, file.parent):
        folders = f"{file.parent} and {file.parent / FOLDER}"
        print(f"headway: {output} would not be read: inventories are .yaml files in {folders}", file=sys.stderr)
        return 2
    try:
        return _pin(cluster.spec, Observed.of([inventory.spec for inventory in inventories]), output)
    except PinError as error:
        return fail(str(error), 1)


def _with_inventories(file: Path, sources: Sources) -> Steps[tuple[Parsed[Cluster], list[Parsed[Inventory]]]]:
    """The cluster without errors and its inventories."""
    clusters = yield from read_clusters([file], sources)
    if not clusters or sources.read(file).has_errors:
        raise NoPlanError
    return clusters[0], (yield from read_inventories(clusters[0], sources))


def _is_read(output: Path, folder: Path) -> bool:
    """Return whether an inventory there is found next to a cluster's document in `folder`."""
    place = output.parent if output.suffix in SUFFIXES else output
    return place.resolve() in {folder.resolve(), (folder / FOLDER).resolve()}


def _pin(cluster: Cluster, observed: Observed, output: Path | None) -> int:
    if all(fabric.switches is None for fabric in cluster.fabrics):
        raise PinError(f"`{cluster.name}` names no `switches`, so it has no cables to pin")
    planned = _planned(cluster, observed)
    new = [node for node in planned if node.name not in observed.nodes]
    if output is not None:
        texts = {path: _text(path, cluster.name, nodes) for path, nodes in _files(output, cluster.name, new).items()}
        for path, text in texts.items():
            write_in_place(path, text)
            print(path)
    elif new:
        sys.stdout.write(_document(cluster.name, cluster.name, new))
    print(f"{counted(len(new), 'node')} pinned, {len(planned) - len(new)} already in inventories", file=sys.stderr)
    return _report_open(planned, observed)


def _planned(cluster: Cluster, observed: Observed) -> list[_Planned]:
    """Every node with adapters on planned switches, with all of its cables."""
    nodes: dict[str, _Planned] = {}
    for fabric in cluster.fabrics:
        if fabric.switches is None:
            continue
        shape = shape_of(fabric, cluster.node_groups)
        for cable in resolve_cables(shape, fabric, cluster.node_groups, observed):
            leaf, port = cable.place
            node = nodes.setdefault(cable.node, _Planned(cable.node, leaf // shape.sizes.width))
            node.nics.append(ObservedNic(name=cable.adapter, switch=shape.leaf(leaf), port=shape.port_name(port)))
    return list(nodes.values())


def _report_open(planned: Sequence[_Planned], observed: Observed) -> int:
    """Report what is missing from an inventory's nodes and only people can add. Return 1 if there is something."""
    lines = []
    for node in (node for node in planned if node.name in observed.nodes):
        known = {nic.name for nic in observed.nodes[node.name].nics if nic.switch is not None}
        lines += [f"  {node.name}: {_flow(nic)}" for nic in node.nics if nic.name not in known]
    if lines:
        print("error: the inventories are missing these cables; add them:", file=sys.stderr)
        more = [f"  and {len(lines) - _ROWS_SHOWN} more"] if len(lines) > _ROWS_SHOWN else []
        print(*lines[:_ROWS_SHOWN], *more, sep="\n", file=sys.stderr)
    return 1 if lines else 0


def _files(output: Path, cluster: str, nodes: Sequence[_Planned]) -> Mapping[Path, list[_Planned]]:
    """Which nodes go into which file."""
    files: dict[Path, list[_Planned]] = {}
    for node in nodes:
        file = output if output.suffix in SUFFIXES else output / f"{cluster}-unit-{node.unit + 1}.yaml"
        files.setdefault(file, []).append(node)
    return files


def _text(path: Path, cluster: str, nodes: Sequence[_Planned]) -> str:
    """Return the new content: every present byte, and the nodes. Raises PinError if it would not be read as that."""
    try:
        before = path.read_bytes().decode()
    except (FileNotFoundError, NotADirectoryError):
        text = _document(_name_of(path, cluster), cluster, nodes)
        _read(path, text, "would not be read", "use a folder, which gets a file for each unit of nodes")
        return text
    except (OSError, UnicodeDecodeError) as error:
        raise PinError(f"{path} cannot be read: {error}; use another file") from error
    document, was = _read(path, before, "already exists", "use another file")
    if was.cluster != cluster:
        raise PinError(f"{path} is an inventory of `{was.cluster}`; use another file")
    text = _appended(before, document, nodes)
    advice = "make `nodes` its last key, with one item per line, or use another file"
    _, found = _read(path, text, "cannot be appended to", advice)
    if found != was.model_copy(update={"nodes": (*was.nodes, *(node.observed() for node in nodes))}):
        raise PinError(f"{path} cannot be appended to: {advice}")
    return text


def _read(path: Path, text: str, what: str, advice: str) -> tuple[Document, Inventory]:
    """Return the text as the inventory that the file would be; if it would be none, raise PinError with `what` and `advice`."""
    document, unreadable = load_bytes(str(path), text.encode())
    parsed, invalid = parse(document)
    for problem in (*unreadable, *invalid):
        raise PinError(f"{path} {what}: {problem.message}; {advice}")
    if parsed is None or not isinstance(parsed.spec, Inventory):
        raise PinError(f"{path} {what}: it is not an inventory; {advice}")
    return document, parsed.spec


def _name_of(path: Path, cluster: str) -> str:
    """The file's own name where it is one for a document, else the cluster's."""
    try:
        return TypeAdapter(Name).validate_python(path.stem)
    except ValidationError:
        return cluster


def _document(name: str, cluster: str, nodes: Sequence[_Planned]) -> str:
    head = {"apiVersion": API_VERSION, "kind": "Inventory", "name": name, "cluster": cluster}
    keys = [f"{key}: {_scalar(value)}" for key, value in head.items()]
    return "\n".join([_HEAD, *keys, "nodes:", *_items(nodes, "  ")]) + "\n"


def _appended(text: str, document: Document, nodes: Sequence[_Planned]) -> str:
    """The text with the nodes behind it, indented like the first one that is there, and with its line breaks."""
    span = document.values.get(("nodes", 0))
    line = document.lines()[span.line] if span else "  "
    indent = line[: len(line) - len(line.lstrip())]
    key = [] if ("nodes",) in document.keys else ["nodes:"]
    line_break = "\r\n" if "\r\n" in text else "\n"
    before = text if text.endswith("\n") else text + line_break
    return before + "".join(f"{line}{line_break}" for line in (*key, *_items(nodes, indent)))


def _items(nodes: Sequence[_Planned], indent: str) -> Iterator[str]:
    for node in nodes:
        yield f"{indent}- name: {_scalar(node.name)}"
        yield f"{indent}  nics:"
        yield from (f"{indent}    - {_flow(nic)}" for nic in node.nics)


def _flow(nic: ObservedNic) -> str:
    said = {key: value for key, value in nic.model_dump().items() if value is not None}
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in said.items()) + "}"


def _scalar(text: str) -> str:
    """The text as YAML, in quotes where it would be a number without them."""
    try:
        return text if plain_scalar(text) == text else json.dumps(text)
    except (LeadingZeroError, NotFiniteError):
        return json.dumps(text)
