"""frr.conf: rendering from a plan, validation by FRR, and reading files back, including those of other sources."""

import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.jobspec.parse import read as read_spec
from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.problem import Severity
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.spec.cluster import Cluster
from headway.templates.cluster import reader_of
from headway.templates.reading import RoutingView, Setting, no_faults, no_traits
from headway.templates.switches.frr import FRR, sysctl
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.render import UPPER_PATHS
from headway.templates.switches.frr.sysctl import SYSCTL
from tests.real.fabric.programs import obstacle
from tests.real.fabric.syntax import refused_lines

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups: [{name: gpu, count: 2, cpus: 8, gpu: H100-SXM-80, gpus: 2, nics: [mlx5_0, mlx5_1]}]
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes: [{name: roce, carries: collectives, dscp: 26, priority: 3, lossless: true, bandwidth_percent: 60}]
    switches: {leaves: 4, spines: 2, uplinks: 2, ports: 8, lanes: 4, addresses: 10.10.0.0/16, os: [{kind: frr}]}
storage: [{name: runs, kind: posix, path: /runs, shared: true}]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> ClusterPlan:
    """Return four leaves, two of them connected to nodes, and two spines, with two links between each pair."""
    path = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    path.write_text(CLUSTER)
    _, parsed, _ = read_spec(path)
    assert parsed is not None
    assert isinstance(parsed.spec, Cluster)
    return resolve_cluster(parsed.spec)


@pytest.fixture(scope="module")
def leaf(cluster: ClusterPlan) -> SwitchPlan:
    return cluster.switches[0]


def text_of(switch: SwitchPlan, cluster: ClusterPlan, options: FrrOptions | None = None) -> str:
    (path, text), _ = FRR.render(options or FrrOptions(), switch, cluster).items()
    assert str(path) == FRR.file
    return text


def setting(text: str, key: str) -> str | None:
    found = FRR.read(text).settings.get(key)
    return found.value if found else None


# --- rendering --------------------------------------------------------------------------------------------------------


def test_every_file_reads_back_as_the_plan(cluster: ClusterPlan) -> None:
    assert [switch.role for switch in cluster.switches] == ["leaf"] * 4 + ["spine"] * 2
    for switch in cluster.switches:
        ports = frozenset(port.name for port in switch.uplinks)
        view = FRR.read(text_of(switch, cluster)).routing
        assert view == RoutingView(switch.asn, switch.router_id, ports, len(ports) if switch.role == "leaf" else UPPER_PATHS)


def test_leaf_announces_only_its_loopback_and_its_links_to_nodes(cluster: ClusterPlan, leaf: SwitchPlan) -> None:
    text = text_of(leaf, cluster)
    announced = [line.split()[1] for line in text.splitlines() if line.startswith("  network ")]
    assert announced == ["10.255.128.1/32", "10.10.0.0/31", "10.10.0.2/31"]
    # One route for the block of its node ports.
    assert (
        setting(text, f"router bgp {leaf.asn}|address-family ipv4 unicast|aggregate-address 10.10.0.0/29 summary-only") == "yes"
    )
    assert "redistribute" not in text
    assert setting(text, f"router bgp {leaf.asn}|bgp network import-check") == "yes"


def test_links_to_nodes_have_addresses_and_links_to_switches_do_not(cluster: ClusterPlan, leaf: SwitchPlan) -> None:
    settings = {
        key: each.value for key, each in FRR.read(text_of(leaf, cluster)).settings.items() if key.startswith("interface ")
    }
    assert {key: value for key, value in settings.items() if key.startswith("interface Ethernet4|")} == {
        "interface Ethernet4|description": "gpu-2 mlx5_0",
        "interface Ethernet4|ip address 10.10.0.2/31": "yes",
    }
    assert {key: value for key, value in settings.items() if key.startswith("interface Ethernet16|")} == {
        "interface Ethernet16|description": "rails-spine-1 Ethernet0",
        "interface Ethernet16|ipv6 nd suppress-ra": "no",
        "interface Ethernet16|ipv6 nd ra-interval": "5",
    }


def test_nexthop_groups_are_not_installed_in_the_kernel(cluster: ClusterPlan, leaf: SwitchPlan) -> None:
    assert setting(text_of(leaf, cluster), "zebra nexthop kernel enable") == "no"


def test_options_set_timers_and_bfd(cluster: ClusterPlan, leaf: SwitchPlan) -> None:
    bgp = f"router bgp {leaf.asn}|neighbor FABRIC"
    slow = text_of(leaf, cluster, FrrOptions(bfd_ms=500, bfd_multiplier=5, hold_s=30))
    assert setting(slow, f"{bgp}|timers") == "10 30"
    assert setting(slow, f"{bgp}|bfd profile") == "FABRIC"
    assert setting(slow, "bfd|profile FABRIC|receive-interval") == "500"
    assert setting(slow, "bfd|profile FABRIC|transmit-interval") == "500"
    assert setting(slow, "bfd|profile FABRIC|detect-multiplier") == "5"
    assert "bfd" not in text_of(leaf, cluster, FrrOptions(bfd_ms=None))


def test_spine_without_leaves_still_gets_a_file(cluster: ClusterPlan) -> None:
    lonely = replace(cluster.switches[-1], ports=())
    assert FRR.read(text_of(lonely, cluster)).routing == RoutingView(lonely.asn, lonely.router_id, frozenset(), UPPER_PATHS)


def test_name_with_a_line_break_is_rejected(cluster: ClusterPlan, leaf: SwitchPlan) -> None:
    first, *rest = leaf.ports
    for port in (
        replace(first, peer_port="mlx5_0\nrouter bgp 1"),
        replace(first, name="Ethernet0 shutdown"),
        replace(first, name="!"),
    ):
        with pytest.raises(ValueError, match=r"a comment of several lines|not one word"):
            text_of(replace(leaf, ports=(port, *rest)), cluster)


# --- validation by FRR ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vtysh_here() -> None:
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [FrrOptions(), FrrOptions(bfd_ms=None, hold_s=3), FrrOptions(bfd_ms=10, bfd_multiplier=255, hold_s=3600)], ids=repr
)
def test_vtysh_accepts_every_file(vtysh_here: None, cluster: ClusterPlan, options: FrrOptions) -> None:
    refused = {switch.name: refused_lines(text_of(switch, cluster, options)) for switch in cluster.switches}
    assert refused == {switch.name: [] for switch in cluster.switches}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("remote-as external", "remote-as extern4l"),
        ("maximum-paths 4", "maximum-paths 257"),
        ("ra-interval 5", "ra-interval 5s"),
        ("detect-multiplier 3", "detect-multiplier 256"),
    ],
)
def test_vtysh_reports_the_line_of_a_planted_mistake(
    vtysh_here: None, cluster: ClusterPlan, leaf: SwitchPlan, right: str, wrong: str
) -> None:
    text = text_of(leaf, cluster).replace(right, wrong, 1)
    (line,) = [number for number, line in enumerate(text.splitlines(), 1) if wrong in line]
    (refused,) = refused_lines(text)
    assert refused.startswith(f"line {line}: % Unknown command")


# --- limits of FRR ----------------------------------------------------------------------------------------------------


def test_traffic_classes_require_a_system_with_queues(cluster: ClusterPlan, leaf: SwitchPlan) -> None:
    (problem,) = FRR.check(FrrOptions(), leaf, cluster)
    assert (problem.code, problem.path, problem.severity) == (
        "HW513",
        ("fabrics", 0, "switches", "os", 0, "kind"),
        Severity.WARNING,
    )


def test_frr_with_such_a_system_or_without_classes_has_no_problem(cluster: ClusterPlan, leaf: SwitchPlan) -> None:
    (fabric,) = cluster.fabrics
    for other in (replace(fabric, os=("sonic", "frr")), replace(fabric, qos=None)):
        assert list(FRR.check(FrrOptions(), leaf, replace(cluster, fabrics=(other,)))) == []


def test_number_of_paths_is_at_most_that_of_frr(cluster: ClusterPlan, leaf: SwitchPlan) -> None:
    (fabric,) = cluster.fabrics
    silent = replace(cluster, fabrics=(replace(fabric, qos=None),))
    wide = tuple(replace(leaf.uplinks[0], index=index, name=f"Ethernet{index}") for index in range(257))
    found = {role: FRR.read(text_of(replace(leaf, role=role, ports=wide), silent)).routing for role in ("leaf", "spine")}
    assert {role: view.max_paths for role, view in found.items() if view} == {"leaf": 256, "spine": UPPER_PATHS}


# --- reading back -----------------------------------------------------------------------------------------------------

RUNNING = """\
Building configuration...

Current configuration:
!
frr version 8.4.4
frr defaults traditional
hostname tor7
!
ip prefix-list OURS seq 5 permit 10.0.0.0/8 le 32
!
interface swp1
 ip address 10.1.0.0/31
 ip address 10.1.0.2/31
exit
!
router bgp 64086.59904
 bgp router-id 10.0.0.7
 neighbor SPINES peer-group
 neighbor SPINES remote-as external
 neighbor SPINES description all of them
 neighbor 10.9.0.1 remote-as 65010
 neighbor 10.9.0.2 remote-as 65010
 neighbor 10.9.0.2 shutdown
 neighbor swp51 interface peer-group SPINES
 neighbor swp52 interface remote-as external
 neighbor swp53 interface
 !
 address-family ipv4 unicast
  redistribute connected route-map OURS
  no neighbor swp52 activate
  maximum-paths 64
 exit-address-family
 !
 address-family ipv6 unicast
  neighbor SPINES activate
  maximum-paths 8
 exit-address-family
exit
!
router bgp 65100 vrf storage
 bgp router-id 10.0.0.8
 neighbor swp60 interface remote-as external
exit
!
end
"""


def test_neighbors_of_a_running_config_can_exchange_routes() -> None:
    """This excludes the group, and neighbors that are shut down, have no AS, or are removed from the address family."""
    reading = FRR.read(RUNNING)
    assert reading.routing == RoutingView(4200000000, "10.0.0.7", frozenset({"10.9.0.1", "swp51"}), 64)
    assert reading.qos == {}


def test_settings_have_their_context_as_key_and_their_line() -> None:
    settings = FRR.read(RUNNING).settings
    bgp = "router bgp 64086.59904"
    expected = {
        "ip prefix-list OURS seq 5 permit 10.0.0.0/8 le 32": ("yes", "ip prefix-list OURS seq 5 permit 10.0.0.0/8 le 32"),
        "interface swp1|ip address 10.1.0.0/31": ("yes", " ip address 10.1.0.0/31"),
        "interface swp1|ip address 10.1.0.2/31": ("yes", " ip address 10.1.0.2/31"),
        f"{bgp}|neighbor SPINES|remote-as": ("external", " neighbor SPINES remote-as external"),
        f"{bgp}|neighbor SPINES|description": ("all of them", " neighbor SPINES description all of them"),
        f"{bgp}|neighbor swp51|interface peer-group": ("SPINES", " neighbor swp51 interface peer-group SPINES"),
        f"{bgp}|address-family ipv4 unicast|neighbor swp52|activate": ("no", "  no neighbor swp52 activate"),
        f"{bgp}|address-family ipv4 unicast|maximum-paths": ("64", "  maximum-paths 64"),
        f"{bgp}|address-family ipv6 unicast|maximum-paths": ("8", "  maximum-paths 8"),
        "router bgp 65100 vrf storage|bgp router-id": ("10.0.0.8", " bgp router-id 10.0.0.8"),
    }
    lines = RUNNING.splitlines()
    assert {key: settings[key] for key in expected} == {
        key: Setting(value, lines.index(line) + 1) for key, (value, line) in expected.items()
    }


def test_indentation_and_blank_lines_are_ignored() -> None:
    flat = "\n".join(" ".join(line.split()) for line in RUNNING.splitlines())
    spaced = RUNNING.replace("\n", "\r\n").replace("router bgp 6", "router  bgp   6")
    for text in (flat, spaced):
        assert replace(FRR.read(text), faults=no_faults, traits=no_traits) == replace(
            FRR.read(RUNNING), faults=no_faults, traits=no_traits
        )


def test_blocks_do_not_require_exit() -> None:
    """FRR before 8.0 wrote no `exit`."""
    old = "\n".join(line for line in RUNNING.splitlines() if line.strip() not in {"exit", "exit-address-family"})
    assert FRR.read(old).routing == FRR.read(RUNNING).routing
    text = (
        "interface lo\n ip address 10.0.0.7/32\nip router-id 10.0.0.9\nrouter bgp 65001\n bgp log-neighbor-changes\nhostname x\n"
    )
    reading = FRR.read(text)
    assert reading.settings["hostname"] == Setting("x", 6)
    assert reading.routing == RoutingView(65001, "10.0.0.9", frozenset())


@pytest.mark.parametrize(
    ("commands", "neighbors", "max_paths"),
    [
        ("neighbor e1 interface remote-as external\nmaximum-paths 4", {"e1"}, 4),
        ("no bgp default ipv4-unicast\nneighbor e1 interface remote-as external", set(), None),
        ("no bgp default ipv4-unicast\nneighbor e1 interface remote-as external\nneighbor e1 activate", {"e1"}, None),
        ("neighbor G peer-group\nneighbor e1 interface peer-group G", set(), None),
        ("neighbor G peer-group\nneighbor G remote-as external\nneighbor 10.0.0.1 peer-group G", {"10.0.0.1"}, None),
        ("neighbor G peer-group\nneighbor G remote-as 1\nneighbor G shutdown\nneighbor e1 interface peer-group G", set(), None),
        ("neighbor e1 interface remote-as external\nno neighbor e1 interface remote-as external", set(), None),
        ("maximum-paths 4\nno maximum-paths 4", set(), None),
        ("maximum-paths many", set(), None),
    ],
)
def test_neighbors_follow_from_all_of_their_lines(commands: str, neighbors: set[str], max_paths: int | None) -> None:
    text = f"router bgp 65001\n{commands}\n"
    assert FRR.read(text).routing == RoutingView(65001, None, frozenset(neighbors), max_paths)


def test_file_without_bgp_has_no_routing() -> None:
    assert FRR.read("frr defaults datacenter\ninterface lo\n ip address 10.0.0.1/32\n").routing == RoutingView()
    assert FRR.read("router bgp 65001 vrf storage\n neighbor e1 interface remote-as external\n").routing == RoutingView()


@pytest.mark.parametrize("text", ["", "! nothing\n", '{"PORT": {}}\n', "NCCL_IB_TC=104\n"])
def test_other_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="line 1: no `frr defaults`"):
        FRR.read(text)


@given(st.lists(st.sampled_from([*RUNNING.splitlines(), "end", "exit", " exit", "  x", "no", "neighbor", "\t"])).map("\n".join))
def test_lines_in_any_order_are_read_without_an_error(text: str) -> None:
    lines = len(text.splitlines()) + 1
    reading = FRR.read(f"{text}\ninterface lo")
    assert all(1 <= each.line <= lines + 1 for each in reading.settings.values())
    assert reading.routing is not None


def test_linux_switch_gets_kernel_settings(cluster: ClusterPlan, leaf: SwitchPlan) -> None:
    text = FRR.render(FrrOptions(), leaf, cluster)[PurePosixPath(SYSCTL)]
    values = {name: each.value for name, each in sysctl.read(text).settings.items()}
    assert values["net.ipv4.ip_forward"] == values["net.ipv4.fib_multipath_hash_policy"] == "1"
    assert reader_of(PurePosixPath("switches/leaf", SYSCTL)) is not None
    assert list(sysctl.read(text).faults()) == []


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("ip_forward = 1", "ip_forward = 0", "HW838"),
        ("ipv4.fib_multipath_hash_policy = 1", "ipv4.fib_multipath_hash_policy = 0", "HW835"),
        ("net.ipv4.fib_multipath_hash_policy = 1\n", "", "HW835"),
        ("conf.all.rp_filter = 0", "conf.all.rp_filter = 1", "HW850"),
    ],
)
def test_kernel_settings_that_drop_packets_are_found(
    cluster: ClusterPlan, leaf: SwitchPlan, old: str, new: str, code: str
) -> None:
    text = FRR.render(FrrOptions(), leaf, cluster)[PurePosixPath(SYSCTL)]
    assert old in text
    assert [fault.code for fault in sysctl.read(text.replace(old, new, 1)).faults()] == [code]


def test_setting_without_a_value_is_an_error_with_its_line() -> None:
    with pytest.raises(ValueError, match="line 2: no `NAME = VALUE`"):
        sysctl.read("# kernel\nnet.ipv4.ip_forward\n")


def test_traits_have_the_bgp_instances_besides_the_default_one_without_their_numbers() -> None:
    text = f"{RUNNING}\nrouter bgp 4200000001 vrf storage\n neighbor 10.0.0.1 remote-as external\nexit\n"
    assert [name for name in FRR.read(text).traits().device if re.fullmatch(r"router bgp \S+( vrf \S+)?", name)] == [
        "router bgp * vrf storage"
    ]
