"""Finds the inventory files of a cluster and the cluster file of an inventory: in one folder, or in `inventory/` below it."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from headway.compile.document import is_inventory
from headway.compile.problems import NoPlanError, Steps, located, passed
from headway.compile.sources import Sources
from headway.jobspec.check.inventory import check_inventories, check_places
from headway.jobspec.document import Document
from headway.jobspec.parse import Parsed, kind_of
from headway.jobspec.problem import Problem, Severity
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.inventory import Inventory
from headway.jobspec.suggest import Hint, did_you_mean, listed

FOLDER = "inventory"
_UNKNOWN = "HW401"


def read_inventories(cluster: Parsed[Cluster], sources: Sources) -> Steps[list[Parsed[Inventory]]]:
    """The inventories of a cluster that has passed its checks; no result if they do not pass theirs, one by one and together.

    A warning for each one next to them that belongs to no cluster.
    """
    yield from find_strays(Path(cluster.document.name), sources)
    checked = [
        sources.read(path)
        for path in inventory_files(Path(cluster.document.name), sources)
        # One that names no cluster is checked with this one.
        if (named := sources.load(path)[0].value(("cluster",))) == cluster.spec.name or not isinstance(named, str)
    ]
    for each in checked:
        yield from each.problems
    inventories = [each.parsed for each in checked if each.parsed is not None and is_inventory(each.parsed)]
    has_all = not any(each.has_errors for each in checked) and not _has_others(cluster, sources)
    yield from passed(located(check_inventories(cluster.spec, inventories, has_all=has_all), cluster=cluster))
    if any(each.has_errors for each in checked):
        raise NoPlanError
    yield from passed(located(check_places(cluster.spec, [each.spec for each in inventories]), cluster=cluster))
    return inventories


def _has_others(cluster: Parsed[Cluster], sources: Sources) -> bool:
    """Whether inventories may be meant for the cluster that are none of it: next to it under another name, or elsewhere under its."""
    near = inventory_files(Path(cluster.document.name), sources)
    folder = Path(cluster.document.name).parent
    if not all(_has_cluster(folder, sources.load(path)[0].value(("cluster",)), sources) for path in near):
        return True
    elsewhere = (each for each in sources.documents.values() if kind_of(each) == "Inventory" and Path(each.name) not in near)
    return any(each.value(("cluster",)) == cluster.spec.name for each in elsewhere)


def find_strays(cluster: Path, sources: Sources) -> Iterator[Problem]:
    """A warning for each inventory in the places for those of the cluster whose `cluster` names none there."""
    for path in inventory_files(cluster, sources):
        document = sources.load(path)[0]
        named = document.value(("cluster",))
        if isinstance(named, str) and not _has_cluster(path.parent, named, sources):
            names = _clusters_near(path.parent, sources).values()
            yield replace(_unknown(document.name, named, names), severity=Severity.WARNING)


def is_stray(problem: Problem) -> bool:
    """Whether `find_strays` yields such a problem."""
    return problem.code == _UNKNOWN and problem.severity is Severity.WARNING


def inventory_files(cluster: Path, sources: Sources) -> list[Path]:
    """Every Inventory document next to the cluster's document and in the folder `inventory` below."""
    return [path for folder in (cluster.parent, cluster.parent / FOLDER) for path in sources.of_kind(folder, "Inventory")]


def clusters_named_by(inventories: Iterable[Parsed[Inventory]], sources: Sources) -> Steps[list[Path]]:
    """The documents of the clusters that the inventories name, each once; an error where there is none or more than one."""
    found: dict[Path, None] = {}
    for inventory in inventories:
        folder, wanted = Path(inventory.document.name).parent, inventory.spec.cluster
        of_name = [path for path, name in _clusters_near(folder, sources, wanted).items() if name == wanted]
        if len(of_name) == 1:
            found[of_name[0]] = None
        elif of_name:
            message = f"several Cluster documents are called `{wanted}`: {listed(map(str, of_name))}"
            yield Problem("HW402", inventory.document.name, ("cluster",), message, "rename all but one")
        else:
            yield _unknown(inventory.document.name, wanted, _clusters_near(folder, sources).values())
    return list(found)


def _has_cluster(folder: Path, name: object, sources: Sources) -> bool:
    """Whether a cluster of that name may have inventories in the folder."""
    return name in _clusters_near(folder, sources, name if isinstance(name, str) else "").values()


def _clusters_near(folder: Path, sources: Sources, name: str = "") -> dict[Path, str | None]:
    """Names of the clusters whose inventories may be in the folder. With a `name`, at least those of that name, and not all others."""
    return sources.once(("clusters near", folder, name), lambda: _find_clusters_near(folder, sources, name))


def _find_clusters_near(folder: Path, sources: Sources, name: str) -> dict[Path, str | None]:
    folders = [folder, folder.parent] if folder.resolve().name == FOLDER else [folder]
    return {path: _name(sources.load(path)[0]) for each in folders for path in sources.of_kind(each, "Cluster", name)}


def _unknown(inventory: str, name: str, names: Iterable[str | None]) -> Problem:
    seen = [each for each in names if each is not None]
    message = f"no Cluster document called `{name}` in the inventory's folder, or above it if that is called `{FOLDER}`"
    beside = Hint(f"put it beside its cluster's document, or into `{FOLDER}` below")
    near = did_you_mean(name, seen, "clusters") if seen else beside
    return Problem(_UNKNOWN, inventory, ("cluster",), message, near.text, fix=near.fix)


def _name(document: Document) -> str | None:
    name = document.value(("name",))
    return name if isinstance(name, str) and kind_of(document) == "Cluster" else None
