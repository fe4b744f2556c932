"""Finds the inventory files of a cluster and the cluster file of an inventory: in one folder, or in `inventory/` below it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from headway.cli.findings import Findings
from headway.jobspec.check.inventory import check_inventories, check_places
from headway.jobspec.document import Document
from headway.jobspec.parse import AnyParsed, Parsed, kind_of
from headway.jobspec.problem import Problem, Severity
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.inventory import Inventory
from headway.jobspec.suggest import did_you_mean, listed

FOLDER = "inventory"

# Reads a document and checks it by itself.
Read = Callable[[Path, Findings], AnyParsed | None]


def read_inventories(cluster: Parsed[Cluster], read: Read, findings: Findings) -> list[Inventory] | None:
    """The inventories of a cluster that passed its checks. None when they do not pass theirs, one by one and together.

    Those beside it that are of no cluster at all are warned of.
    """
    findings.add(find_strays(Path(cluster.document.name), findings))
    documents = [
        path for path in inventory_files(Path(cluster.document.name), findings) if _is_of(cluster.spec.name, path, findings)
    ]
    found = [parsed for path in documents if (parsed := read(path, findings)) is not None and isinstance(parsed.spec, Inventory)]
    inventories = [Parsed(each.document, each.spec, each.complete, each.sections) for each in found]
    misfits = findings.add(check_inventories(cluster.spec, inventories), cluster=cluster.document.name)
    if any(findings.errors_in(str(path)) for path in documents) or any(problem.is_error for problem in misfits):
        return None
    specs = [inventory.spec for inventory in inventories]
    places = findings.add(check_places(cluster.spec, specs), cluster=cluster.document.name)
    return None if any(problem.is_error for problem in places) else specs


def _is_of(cluster: str, inventory: Path, findings: Findings) -> bool:
    """Whether the inventory is the cluster's, or does not say of which it is."""
    named = findings.load(inventory)[0].value(("cluster",))
    return named == cluster or not isinstance(named, str)


def find_strays(cluster: Path, findings: Findings) -> Iterator[Problem]:
    """A warning for each inventory that would be the cluster's but for its `cluster`, which names none; those checked by themselves
    have an error for it."""
    for path in inventory_files(cluster, findings):
        document = findings.load(path)[0]
        named = document.value(("cluster",))
        if str(path) in findings.parsed or not isinstance(named, str):
            continue
        names = _clusters_near(path.parent, findings).values()
        if named not in names:
            yield replace(_unknown(document.name, named, names), severity=Severity.WARNING)


def inventory_files(cluster: Path, findings: Findings) -> list[Path]:
    """Every Inventory document beside the cluster's document and in the folder `inventory` below."""
    return [
        path for folder in (cluster.parent, cluster.parent / FOLDER) for path in findings.sources.of_kind(folder, "Inventory")
    ]


def find_clusters(inventories: Iterable[Parsed[Inventory]], findings: Findings) -> list[Path]:
    """The documents of the clusters that the inventories name, each once; that there is none, or more than one, is a problem."""
    near = {
        folder: _clusters_near(folder, findings) for folder in {Path(inventory.document.name).parent for inventory in inventories}
    }
    found: dict[Path, None] = {}
    for inventory in inventories:
        names = near[Path(inventory.document.name).parent]
        of_name = [path for path, name in names.items() if name == inventory.spec.cluster]
        if len(of_name) == 1:
            found[of_name[0]] = None
        else:
            findings.add(
                [
                    _ambiguous(inventory, of_name)
                    if of_name
                    else _unknown(inventory.document.name, inventory.spec.cluster, names.values())
                ]
            )
    return list(found)


def _clusters_near(folder: Path, findings: Findings) -> dict[Path, str | None]:
    """Names of the clusters whose inventories may stand in the folder."""
    folders = [folder, folder.parent] if folder.resolve().name == FOLDER else [folder]
    return {path: _name(findings.load(path)[0]) for each in folders for path in findings.sources.of_kind(each, "Cluster")}


def _ambiguous(inventory: Parsed[Inventory], found: list[Path]) -> Problem:
    message = f"several Cluster documents are called `{inventory.spec.cluster}`: {listed(map(str, found))}"
    return Problem("HW402", inventory.document.name, ("cluster",), message, "rename all but one")


def _unknown(inventory: str, name: str, names: Iterable[str | None]) -> Problem:
    seen = [each for each in names if each is not None]
    message = f"no Cluster document called `{name}` in the inventory's folder, or above it if that is called `{FOLDER}`"
    hint = did_you_mean(name, seen, "clusters") if seen else f"put it beside its cluster's document, or into `{FOLDER}` below"
    return Problem("HW401", inventory, ("cluster",), message, hint)


def _name(document: Document) -> str | None:
    name = document.value(("name",))
    return name if isinstance(name, str) and kind_of(document) == "Cluster" else None
