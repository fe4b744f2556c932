"""Tests `headway verify-cabling` with lldpd: each device of a plan is a namespace with its lldpd, and cables are moved as by hand."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headway.jobspec.plan import ClusterPlan
from headway.templates.cabling.compare import End
from headway.templates.cabling.read import SeenCables, read_cables
from tests.templates.test_cabling import PLANTED, Hands, ethernet, found, wires

from .fabric import Fabric
from .programs import SEARCH_PATH
from .wiring import Link, Port, device_commands, link_commands

pytestmark = pytest.mark.slow

SOCKETS = Path("/run/lldp")
PANEL = "panel"
MARK = "--- next switch"
# lldpd sends each second here, and forgets a neighbor after four.
KNOWN_S = 60.0
# One for each kind of difference; the others differ in which ports they touch.
ONCE = {
    "two rails of two nodes",
    "a foreign device",
    "an uplink in a free port of another spine",
    "a missing cable and a swapped pair",
}

# Each end with the one that its cable leads to.
Neighbors = Mapping[End, End]


def cables_with(plan: ClusterPlan, planted: str) -> Hands:
    """Return the cables of the plan with this mistake."""
    pull, _ = PLANTED[planted]
    return pull(Hands(plan))


class Site:
    """The devices of a plan. Each port leads to a patch panel, whose ports forward to each other as cables are plugged in."""

    def __init__(self, fabric: Fabric, plan: ClusterPlan) -> None:
        self._fabric = fabric
        self.switches = [switch.name for switch in plan.switches]
        ends = {*wires(plan), *(end for planted in PLANTED for end in cables_with(plan, planted).cables)}
        self._panel = {end: f"p{number}" for number, end in enumerate(sorted(ends))}
        self._cables: Neighbors = {}
        fabric.run_script(self._starts())

    def _starts(self) -> Iterator[str]:
        devices = dict.fromkeys(device for device, _ in self._panel)
        for name in (PANEL, *devices):
            yield from device_commands(name)
        for end, panel in self._panel.items():
            yield from link_commands(Link(Port(*end), Port(PANEL, panel)))
            yield f"tc -n {PANEL} qdisc add dev {panel} ingress"
        yield f"mkdir -p {SOCKETS} /run/lldpd"
        for name in devices:
            # Through its file: at its start a client of its own applies it, and may lock out another one.
            settings = f"configure system hostname {name}\\nconfigure lldp tx-interval 1\\n"
            yield f"printf '{settings}' >{SOCKETS}/{name}.conf"
            yield f"ip netns exec {name} lldpd -u {SOCKETS}/{name} -O {SOCKETS}/{name}.conf -I '*'"

    def connect(self, cables: Neighbors) -> None:
        """Move cables until they are these, and wait until the switches know their neighbors."""
        self._fabric.run_script(self._moves(cables))
        self._cables = dict(cables)
        expected = {(end, far) for end, far in cables.items() if end[0] in self.switches}
        self._fabric.wait("neighbors", self.neighbors, lambda known: known == expected, KNOWN_S)

    def _moves(self, cables: Neighbors) -> Iterator[str]:
        yield "true"
        moved = [end for end in self._panel if self._cables.get(end) != cables.get(end)]
        for end in moved:
            if end in self._cables:
                yield f"tc -n {PANEL} filter del dev {self._panel[end]} ingress"
        for end in moved:
            if end in cables:
                to = f"u32 match u32 0 0 action mirred egress redirect dev {self._panel[cables[end]]}"
                yield f"tc -n {PANEL} filter add dev {self._panel[end]} parent ffff: protocol all {to}"

    def reports(self) -> list[SeenCables]:
        """Return what a person gets on each switch, read."""
        texts = self._fabric.run_script(
            f"lldpcli -u {SOCKETS}/{name} show neighbors -f json; echo {MARK}" for name in self.switches
        )
        return [read_cables(text, name, {}) for name, text in zip(self.switches, texts.split(f"{MARK}\n"), strict=False)]

    def neighbors(self) -> set[tuple[End, End]]:
        """Return each port of a switch with what it is connected to now."""
        cables = (cable for report in self.reports() for cable in report.cables)
        return {((cable.own.device, cable.own.ports[0]), (cable.far.device, cable.far.ports[0])) for cable in cables}


@pytest.fixture(scope="module")
def site(frr_here: None) -> Iterator[Site]:
    if shutil.which("lldpd", path=SEARCH_PATH) is None:
        pytest.skip("lldpd is missing; install it (Debian: `apt-get install lldpd`)")
    with Fabric({}, [], {}) as fabric:
        yield Site(fabric, ethernet())


@pytest.mark.parametrize("planted", [pytest.param(name, marks=() if name in ONCE else pytest.mark.variant) for name in PLANTED])
def test_planted_mistakes_are_reported_by_lldpd(site: Site, planted: str) -> None:
    plan = ethernet()
    hands = cables_with(plan, planted)
    site.connect(hands.cables)
    differences = found(plan, site.reports())
    assert sorted(each.what for each in differences) == PLANTED[planted][1]
    assert all(each.ends <= hands.touched for each in differences)


def test_planned_cables_are_reported_as_planned(site: Site) -> None:
    plan = ethernet()
    site.connect(wires(plan))
    assert found(plan, site.reports()) == []
