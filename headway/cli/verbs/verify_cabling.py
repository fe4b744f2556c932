"""`headway verify-cabling`: compares the cables that devices report with a cluster's plan."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from headway.cli.views.problems import print_problems
from headway.compile import Problems, Sources
from headway.compile.cluster import read_clusters
from headway.compile.inventories import read_inventories
from headway.compile.problems import NoPlanError, Steps, collected
from headway.jobspec.notation import counted
from headway.jobspec.parse import Parsed
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.inventory import Inventory
from headway.templates.cabling.compare import End, PlannedCables, miscablings
from headway.templates.cabling.names import with_names
from headway.templates.cabling.read import SeenCables, read_cables


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("document", type=Path, metavar="CLUSTER", help="a Cluster document, with its inventories next to it")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="[DEVICE=]FILE",
        help="what `lldpcli show neighbors -f json` printed on a device (default: that of the file's name), or `ibnetdiscover`",
    )
    parser.epilog = "Only devices with a file are judged: an end without one counts as present if the other end reports it."


def run(args: argparse.Namespace) -> int:
    """Prints each cable that differs. 1 if one does, 2 for a file that cannot be read and a cluster without planned switches."""
    sources = Sources()
    found, problems = collected(_with_inventories(args.document, sources))
    print_problems(Problems(tuple(problems), sources.documents), sys.stderr, warnings=False)
    if found is None:
        return 1
    cluster, inventories = found
    plan = with_names(resolve_cluster(cluster.spec, [inventory.spec for inventory in inventories]))
    if not plan.links:
        print(f"headway: `{plan.name}` names no `switches`, so no cable of it is planned", file=sys.stderr)
        return 2
    guids = {switch.guid: switch.name for switch in plan.switches if switch.guid}
    reports = []
    for word in args.files:
        try:
            reports.append(_read(word, guids))
        except (OSError, ValueError) as error:
            print(f"headway: {word}: {error.strerror if isinstance(error, OSError) else error}", file=sys.stderr)
            return 2
    differences = list(miscablings(PlannedCables(plan, _adapters(inventories)), reports))
    for difference in differences:
        print(f"{difference.what}: {difference.message}")
    kinds = Counter(difference.what for difference in differences)
    counts = ", ".join(f"{count} {what}" for what, count in kinds.items()) or "all as planned"
    seen = len({device for report in reports for device in report.devices})
    print(f"{counted(len(plan.links), 'cable')} planned, {counted(seen, 'device')} read: {counts}", file=sys.stderr)
    return 1 if differences else 0


def _read(word: str, guids: dict[str, str]) -> SeenCables:
    device, equals, name = word.partition("=")
    file = Path(name if equals else word)
    return read_cables(file.read_text(encoding="utf-8"), device if equals else file.name.partition(".")[0], guids)


def _with_inventories(file: Path, sources: Sources) -> Steps[tuple[Parsed[Cluster], list[Parsed[Inventory]]]]:
    clusters = yield from read_clusters([file], sources)
    if not clusters or sources.read(file).has_errors:
        raise NoPlanError
    return clusters[0], (yield from read_inventories(clusters[0], sources))


def _adapters(inventories: list[Parsed[Inventory]]) -> dict[str, End]:
    """Return the adapter of each hardware address, as LLDP of a host prints it."""
    return {
        nic.mac: (node.name, nic.name)
        for inventory in inventories
        for node in inventory.spec.nodes
        for nic in node.nics
        if nic.mac
    }
