"""Which switch is changed when, which is not changed while jobs run, and what counts as a loss."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from headway.infra import push
from headway.infra.push.protection import FabricTree, NodesInUse, Protected, cut_off, protected
from headway.infra.push.running_jobs import read_in_use
from headway.infra.push.sessions import SwitchSessions, lost, read_sessions
from headway.infra.submit.shell import CommandError, CommandResult
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.switches.frr.change import FrrLine
from headway.templates.switches.frr.touch import Touch
from tests.jobspec.test_growth import Size, spec
from tests.jobspec.test_sizes import Site

# Two rails in two planes, with two spines each; four nodes below a leaf, and so two units.
PLANES = Size((8,), rails=2, planes=2, spines=4, units=2, ports=8)
# Two pods of one leaf with two nodes and two spines, and a core for each spine of a pod.
PODS = Site(4, nics=1, switches={"ports": 4, "uplinks": 1}, fabric={"pods": 2, "shape": "rail-optimized"})
LINE = FrrLine(("router bgp 1",), "neighbor Ethernet8 interface peer-group FABRIC")


@pytest.fixture(scope="module")
def plan() -> ClusterPlan:
    return resolve_cluster(spec(PLANES))


@pytest.fixture(scope="module")
def tree(plan: ClusterPlan) -> FabricTree:
    return FabricTree(plan)


def port_to(tree: FabricTree, switch: str, peer: str) -> str:
    return next(port.name for port in tree.switches[switch].ports if port.peer == peer)


def touch(*ports: str) -> Touch:
    return Touch(LINE, frozenset(ports))


# --- order ------------------------------------------------------------------------------------------------------------


def test_upper_tiers_come_first_and_switches_of_one_leaf_do_not_follow_each_other(tree: FabricTree) -> None:
    order = [switch.name for switch in tree.order(list(tree.switches))]
    assert sorted(order) == sorted(tree.switches)
    roles = [tree.switches[name].role for name in order]
    assert roles == ["spine"] * 4 + ["leaf"] * 4
    for one, other in pairwise(order[:4]):
        assert not tree.lower(one) & tree.lower(other), order


def test_cores_come_before_spines_and_those_before_leaves() -> None:
    found = FabricTree(PODS.plan())
    roles = [switch.role for switch in found.order(list(found.switches))]
    assert roles == sorted(roles, key=["core", "spine", "leaf"].index)


def test_partners_are_the_other_switches_above_the_same_leaves(tree: FabricTree) -> None:
    (spine, *_) = (name for name, switch in tree.switches.items() if switch.role == "spine")
    leaves = tree.lower(spine)
    assert tree.partners([spine]) == sorted(tree.upper(next(iter(leaves))) - {spine})
    (leaf, *_) = leaves
    assert tree.partners([leaf]) == []


# --- running jobs -----------------------------------------------------------------------------------------------------


def test_a_port_reaches_the_nodes_below_its_lower_end(tree: FabricTree) -> None:
    leaf = "rails-leaf-1"
    below = tree.nodes_below(leaf)
    assert len(below) == 4
    node = sorted(below)[0]
    spine = sorted(tree.upper(leaf))[0]
    assert tree.reached(leaf, port_to(tree, leaf, node)) == {node}
    assert tree.reached(leaf, port_to(tree, leaf, spine)) == below
    assert tree.reached(spine, port_to(tree, spine, leaf)) == below
    assert tree.reached(leaf, None) == tree.reached(leaf, "Ethernet999") == below
    assert tree.reached(spine, None) == set().union(*(tree.nodes_below(each) for each in tree.lower(spine)))


def test_a_port_for_a_device_to_come_reaches_nothing(plan: ClusterPlan, tree: FabricTree) -> None:
    leaf = tree.switches["rails-leaf-1"]
    ports = tuple(replace(port, peer="a-99") if port.peer == "a-1" else port for port in leaf.ports)
    other = FabricTree(replace(plan, switches=(replace(leaf, ports=ports), *plan.switches[1:])))
    assert other.reached(leaf.name, port_to(other, leaf.name, "a-99")) == set()


def test_a_change_is_refused_for_each_port_and_node_with_a_job(tree: FabricTree) -> None:
    leaf = "rails-leaf-1"
    one, two = (port_to(tree, leaf, node) for node in ("a-1", "a-2"))
    in_use = NodesInUse({"a-1": ("17 (train, alice)", "18 (other, bob)")})
    assert protected(tree, leaf, [touch(one), touch(one), touch(two), touch()], in_use) == [
        Protected(leaf, LINE.words, one, "a-1", "17 (train, alice)")
    ]
    assert str(protected(tree, leaf, [Touch(LINE, None)], in_use)[0]) == (
        f"{leaf}: `{LINE.words}` touches all links of the switch, and so a-1 with job 17 (train, alice)"
    )
    assert protected(tree, leaf, [touch(two)], in_use) == []


def test_a_node_that_the_scheduler_does_not_have_may_serve_every_job(tree: FabricTree) -> None:
    leaf = "rails-leaf-1"
    in_use = NodesInUse({"a-8": ("17 (train, alice)",)}, unknown=frozenset({"a-1"}), everywhere=("17 (train, alice)",))
    (found,) = protected(tree, leaf, [touch(port_to(tree, leaf, "a-1"))], in_use)
    assert (found.node, found.job) == ("a-1", "17 (train, alice)")


def test_the_last_path_of_a_leaf_is_not_taken(tree: FabricTree) -> None:
    leaf = "rails-leaf-1"
    here, there = sorted(tree.upper(leaf))
    up = {name: {port.name for port in tree.switches[name].ports} for name in (here, there)}
    down = {**up, there: up[there] - {port_to(tree, there, leaf)}}
    whole, harmless = [Touch(LINE, None)], [touch()]
    assert cut_off(tree, here, whole, up) == []
    assert cut_off(tree, here, whole, down) == [leaf]
    assert cut_off(tree, here, [touch(port_to(tree, here, leaf))], down) == [leaf]
    assert cut_off(tree, here, harmless, down) == []
    # A leaf without a session here loses nothing, and a switch that was not read counts as down.
    assert cut_off(tree, here, whole, {**down, here: set()}) == []
    assert leaf in cut_off(tree, here, whole, {here: up[here]})


class Answers:
    """A shell whose commands print these texts."""

    folder, user = "/", "alice"

    def __init__(self, **texts: str | None) -> None:
        self.texts = texts

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 60.0, detached: bool = False) -> CommandResult:
        text = self.texts[argv[0]]
        return CommandResult(1, "", "no contact") if text is None else CommandResult(0, text, "")

    def shown(self, argv: Sequence[str]) -> str:
        return " ".join(argv)


IDLE = "".join(f"gpu{number:02}|idle\n" for number in range(1, 9))


def test_running_jobs_are_known_by_the_plans_names(plan: ClusterPlan) -> None:
    options = SlurmOptions(node_names={"a": "gpu[01-08]"})
    queue = (
        "17|alice|RUNNING|None|gpu[01-02]|train|/runs/train\n"
        "18|bob|PENDING|Priority||wait|\n"
        "19|bob|COMPLETING|None|gpu04|end|\n"
        "20|bob|COMPLETED|None|gpu05|old|\n"
    )
    states = IDLE.replace("gpu01|idle", "gpu01|mixed*").replace("gpu06|idle", "gpu06|draining\ngpu06|idle")
    found = read_in_use(Answers(squeue=queue, sinfo=states), options, plan)
    assert found.jobs == {
        "a-1": ("17 (train, alice)",),
        "a-2": ("17 (train, alice)",),
        "a-4": ("19 (end, bob)",),
        "a-6": ("that squeue does not list for you",),
    }
    assert found.unknown == frozenset()
    assert len(found.everywhere) == 3


def test_nodes_without_an_entry_in_slurm_are_unknown(plan: ClusterPlan) -> None:
    options = SlurmOptions(node_names={"a": "gpu[01-08]"})
    found = read_in_use(Answers(squeue="", sinfo=IDLE.replace("gpu08|idle\n", "")), options, plan)
    assert found.unknown == {"a-8"}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"squeue": None, "sinfo": IDLE}, "squeue: no contact"),
        ({"squeue": "", "sinfo": None}, "sinfo: no contact"),
        ({"squeue": "", "sinfo": IDLE}, "no node of `lab` is known to Slurm, which has `gpu01`, `gpu02`, `gpu03` and others"),
    ],
    ids=["squeue", "sinfo", "names"],
)
def test_node_that_slurm_does_not_know_is_an_error(plan: ClusterPlan, answers: dict[str, str | None], reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        read_in_use(Answers(**answers), SlurmOptions(), plan)


# --- sessions ---------------------------------------------------------------------------------------------------------

SUMMARY = {
    "ipv4Unicast": {
        "peers": {
            "Ethernet8": {"state": "Established", "pfxRcd": 12},
            "Ethernet16": {"state": "Established", "pfxRcd": 12},
            "Ethernet24": {"state": "Idle", "pfxRcd": 0},
        }
    }
}
BFD = [{"interface": "Ethernet8", "peer": "fe80::1", "status": "up"}, {"peer": "192.0.2.1", "status": "down"}]


def test_sessions_are_read_from_frrs_json() -> None:
    found = read_sessions(json.dumps(SUMMARY), json.dumps(BFD), json.dumps({"routesTotal": 9, "routesTotalFib": 8}))
    assert found == SwitchSessions({"Ethernet8": 12, "Ethernet16": 12}, frozenset({"Ethernet8"}), 8)
    assert read_sessions("% BGP instance not found", "bfdd is not running", "") == SwitchSessions({}, frozenset(), 0)


def test_losses_are_sessions_that_must_stay_and_most_of_the_routes() -> None:
    before = SwitchSessions({"a": 10, "b": 10, "c": 10}, frozenset({"a", "b"}), 20)
    after = SwitchSessions({"a": 4}, frozenset(), 9)
    assert lost(before, before, before.bgp, before.bfd) == []
    assert lost(before, after, {"a", "b"}, {"a"}) == [
        "a announces 4 routes, and announced 10",
        "the BGP session with b is down",
        "the BFD session with a is down",
        "the kernel has 9 routes, and had 20",
    ]
    assert lost(before, SwitchSessions({"a": 5}, frozenset(), 10), {"a"}, ()) == []


# --- the part that runs on a switch -----------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="apt-get install shellcheck")
def test_the_script_of_a_switch_is_clean_for_shellcheck() -> None:
    command = ["shellcheck", "--shell=sh", "--severity=style", str(Path(push.__file__).with_name("on_switch.sh"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""
