"""Two configurations of FRR: what differs and what only looks so, what stays because it is the site's, and which links a line touches."""

from pathlib import PurePosixPath

import pytest

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.templates.switches.frr import FRR
from headway.templates.switches.frr.change import FrrLine, change, normal_lines, reload_text, value_of, with_site_lines
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.touch import NOTHING, touches
from tests.jobspec.test_growth import Size, spec

# A leaf with one node and one spine, and what FRR 8.4.4 prints when it has read its file (tests/real/fabric).
SMALL = Size((2,), rails=2, planes=2, spines=2, units=2, ports=2)
RUNNING = """\
frr version 8.4.4
frr defaults datacenter
hostname vm
log syslog informational
no zebra nexthop kernel enable
!
interface Ethernet0
 description a-1 mlx5_0
 ip address 10.128.0.0/31
exit
!
interface Ethernet8
 description rails-spine-1 Ethernet0
 ipv6 nd ra-interval 5
 no ipv6 nd suppress-ra
exit
!
interface lo
 ip address 10.255.128.1/32
exit
!
router bgp 4200000001
 bgp router-id 10.255.128.1
 no bgp default ipv4-unicast
 bgp bestpath as-path multipath-relax
 neighbor FABRIC peer-group
 neighbor FABRIC remote-as external
 neighbor FABRIC bfd
 neighbor FABRIC bfd profile FABRIC
 neighbor FABRIC advertisement-interval 0
 neighbor FABRIC timers 3 9
 neighbor FABRIC timers connect 1
 neighbor Ethernet8 interface peer-group FABRIC
 !
 address-family ipv4 unicast
  network 10.128.0.0/31
  network 10.255.128.1/32
  aggregate-address 10.128.0.0/31 summary-only
  neighbor FABRIC activate
  maximum-paths 1
 exit-address-family
exit
!
bfd
 profile FABRIC
 exit
 !
exit
!
end
"""
BGP = "router bgp 4200000001"


@pytest.fixture(scope="module")
def cluster() -> ClusterPlan:
    return resolve_cluster(spec(SMALL))


@pytest.fixture(scope="module")
def leaf(cluster: ClusterPlan) -> SwitchPlan:
    return cluster.switches[0]


@pytest.fixture(scope="module")
def rendered(leaf: SwitchPlan, cluster: ClusterPlan) -> str:
    return FRR.render(FrrOptions(), leaf, cluster)[PurePosixPath(FRR.file)]


def added(text: str, before: str, *lines: str) -> str:
    """The text with lines before the first one that is `before`."""
    assert f"\n{before}\n" in text
    return text.replace(f"\n{before}\n", "\n" + "".join(f"{line}\n" for line in lines) + f"{before}\n", 1)


# --- differences ------------------------------------------------------------------------------------------------------


def test_text_that_frr_prints_for_a_rendered_file_has_no_difference(rendered: str) -> None:
    assert not change(RUNNING, rendered)
    assert not change(rendered, RUNNING)


def test_a_rendered_file_with_other_timers_is_one(leaf: SwitchPlan, cluster: ClusterPlan) -> None:
    other = FRR.render(FrrOptions(bfd_ms=500, hold_s=30), leaf, cluster)[PurePosixPath(FRR.file)]
    assert change(RUNNING, other).shown("leaf", "running", "rendered") == (
        "--- leaf (running)\n"
        "+++ leaf (rendered)\n"
        " bfd\n"
        "  profile FABRIC\n"
        "+  receive-interval 500\n"
        "+  transmit-interval 500\n"
        f" {BGP}\n"
        "- neighbor FABRIC timers 3 9\n"
        "+ neighbor FABRIC timers 10 30\n"
    )


def test_removed_and_added_lines_are_below_their_blocks(rendered: str) -> None:
    running = added(RUNNING, " neighbor Ethernet8 interface peer-group FABRIC", " neighbor 192.0.2.9 remote-as 65099")
    running = running.replace("  network 10.128.0.0/31\n", "").replace("no zebra", "ip forwarding\nno zebra")
    running = added(running, "interface lo", "interface Ethernet99", " ip address 192.0.2.1/31", "exit", "!")
    found = change(running, rendered)
    assert found.removed == (
        FrrLine((), "interface Ethernet99"),
        FrrLine(("interface Ethernet99",), "ip address 192.0.2.1/31"),
        FrrLine((BGP,), "neighbor 192.0.2.9 remote-as 65099"),
    )
    assert found.added == (FrrLine((BGP, "address-family ipv4 unicast"), "network 10.128.0.0/31"),)
    assert found.shown("leaf", "running", "rendered").splitlines()[2:] == [
        "-interface Ethernet99",
        "- ip address 192.0.2.1/31",
        f" {BGP}",
        "- neighbor 192.0.2.9 remote-as 65099",
        "  address-family ipv4 unicast",
        "+  network 10.128.0.0/31",
    ]


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("neighbor FABRIC password s3cret", "neighbor FABRIC password ***"),
        ("password 8 s3cret", "password 8 ***"),
        ("key-string s3 cret", "key-string ***"),
    ],
)
def test_passwords_are_not_shown(line: str, hidden: str) -> None:
    assert str(FrrLine((), line)) == hidden


def test_blocks_without_commands_do_not_count(rendered: str) -> None:
    assert not change(added(RUNNING, "interface lo", "interface Ethernet99", "exit", "!"), rendered)


def test_forwarding_that_is_off_is_a_change(rendered: str) -> None:
    assert change(added(RUNNING, "no zebra nexthop kernel enable", "no ip forwarding"), rendered).removed == (
        FrrLine((), "no ip forwarding"),
    )


def test_values_outside_of_blocks_are_found(rendered: str) -> None:
    assert value_of(RUNNING, "frr defaults") == value_of(rendered, "frr defaults") == "datacenter"
    assert value_of(RUNNING, "banner motd") is None


# --- what frr-reload.py gets ------------------------------------------------------------------------------------------


def test_frr_reload_gets_the_running_configuration_where_nothing_changes(rendered: str) -> None:
    """`neighbor FABRIC bfd` would be removed, and BFD go down, if the rendered file were taken."""

    def placed(text: str) -> set[tuple[str, ...]]:
        blocks: list[str] = []
        found = set()
        for line in text.splitlines():
            words, depth = line.strip(), len(line) - len(line.lstrip())
            if words in {"", "!", "end"} or words.startswith("exit"):
                continue
            blocks[depth:] = [words]
            found.add(tuple(blocks))
        return found

    text = reload_text(RUNNING, rendered)
    assert placed(text) == placed(RUNNING)
    assert f"{BGP}\n neighbor FABRIC bfd\n" in text
    assert text.rstrip().endswith("  maximum-paths 1\n exit-address-family\nexit")


def test_frr_reload_removes_what_the_profile_of_bfd_has_set_with_it(leaf: SwitchPlan, cluster: ClusterPlan) -> None:
    without = FRR.render(FrrOptions(bfd_ms=None), leaf, cluster)[PurePosixPath(FRR.file)]
    assert "bfd" not in reload_text(RUNNING, without)


# --- lines of the site ------------------------------------------------------------------------------------------------


def test_lines_of_the_site_stay_and_do_not_replace_the_files_own(rendered: str) -> None:
    running = added(
        RUNNING.replace("log syslog informational", "log syslog warnings\nlog file /var/log/frr/frr.log\npassword s3cret"),
        "interface lo",
        "interface eth0",
        " ip address 10.0.0.1/24",
        "exit",
        "!",
        "vrf mgmt",
        " ip route 0.0.0.0/0 10.0.0.254",
        "exit-vrf",
        "!",
        "interface swp9",
        " ip address 192.0.2.1/31",
        "exit",
        "!",
    )
    text = with_site_lines(rendered, running)
    assert text.startswith(rendered.rstrip())
    assert text[len(rendered.rstrip()) :] == (
        "\n!\n! Of the site, as the switch had them.\n!\nlog file /var/log/frr/frr.log\n!\npassword s3cret\n!\n"
        "interface eth0\n ip address 10.0.0.1/24\nexit\n!\nvrf mgmt\n ip route 0.0.0.0/0 10.0.0.254\nexit-vrf\n!\n"
    )
    found = change(running, text)
    assert [line.words for line in found.removed] == ["log syslog warnings", "interface swp9", "ip address 192.0.2.1/31"]
    assert [line.words for line in found.added] == ["log syslog informational"]


def test_without_lines_of_the_site_the_file_is_the_rendered_one(rendered: str) -> None:
    assert with_site_lines(rendered, RUNNING) == rendered


# --- which links a line touches ---------------------------------------------------------------------------------------


WHOLE = None
PLANNED = "neighbor Ethernet8 interface peer-group FABRIC"


@pytest.mark.parametrize(
    ("place", "line", "ports"),
    [
        ("interface lo", ["interface Ethernet0", " ip address 192.0.2.1/31"], {"Ethernet0"}),
        ("interface lo", ["interface Ethernet0", " description another"], NOTHING),
        ("interface lo", ["interface Ethernet0", " shutdown"], {"Ethernet0"}),
        ("interface lo", ["interface lo", " ip address 192.0.2.1/32"], WHOLE),
        ("interface lo", ["interface Ethernet99", " ip address 192.0.2.1/31"], {"Ethernet99"}),
        ("interface lo", ["log facility local3"], NOTHING),
        ("interface lo", ["route-map UNUSED deny 10"], NOTHING),
        ("interface lo", ["ip route 192.0.2.0/24 Null0"], WHOLE),
        (f" {PLANNED}", [" neighbor Ethernet8 advertisement-interval 5"], {"Ethernet8"}),
        (f" {PLANNED}", [" neighbor Ethernet8 description the first"], NOTHING),
        (f" {PLANNED}", [" neighbor FABRIC ttl-security hops 1"], {"Ethernet8"}),
        (f" {PLANNED}", [" neighbor UNUSED peer-group", " neighbor UNUSED timers 3 9"], NOTHING),
        (f" {PLANNED}", [" neighbor 10.128.0.1 remote-as 65000"], {"Ethernet0"}),
        (f" {PLANNED}", [" neighbor Ethernet99 interface remote-as external"], WHOLE),
        (f" {PLANNED}", [" bgp default local-preference 200"], WHOLE),
        (f" {PLANNED}", [" timers bgp 60 180"], WHOLE),
        ("  neighbor FABRIC activate", ["  neighbor Ethernet8 route-map OUT out"], {"Ethernet8"}),
        ("  neighbor FABRIC activate", ["  network 192.0.2.0/24"], WHOLE),
        (" profile FABRIC", [" profile OTHER", "  echo-mode", " exit"], WHOLE),
        (" profile FABRIC", [" peer fe80::1 interface Ethernet8", "  echo-mode", " exit"], {"Ethernet8"}),
    ],
    ids=lambda value: " ".join(value[-1].split()) if isinstance(value, list) else "",
)
def test_a_line_that_is_removed_touches_its_ports(
    leaf: SwitchPlan, rendered: str, place: str, line: list[str], ports: frozenset[str] | set[str] | None
) -> None:
    running = added(RUNNING, place, *line)
    found = change(running, rendered)
    assert found.removed
    assert not found.added
    up = {"Ethernet8", "Ethernet99", "10.128.0.1"}
    touched = {touch.ports for touch in touches(found, running, rendered, leaf, up) if not touch.is_harmless}
    expected = None if ports is None else frozenset(ports)
    assert touched == ({expected} - {NOTHING})


def test_a_line_that_is_added_touches_its_ports(leaf: SwitchPlan, rendered: str) -> None:
    running = (
        RUNNING.replace(f" {PLANNED}\n", "").replace(" ip address 10.128.0.0/31\n", "").replace("  network 10.128.0.0/31\n", "")
    )
    found = touches(change(running, rendered), running, rendered, leaf)
    assert {touch.line.words: touch.ports for touch in found} == {
        "ip address 10.128.0.0/31": frozenset({"Ethernet0"}),
        PLANNED: frozenset({"Ethernet8"}),
        "network 10.128.0.0/31": frozenset({"Ethernet0"}),
    }


def test_lists_touch_the_neighbors_that_use_them(leaf: SwitchPlan, rendered: str) -> None:
    running = added(
        added(RUNNING, "  neighbor FABRIC activate", "  neighbor Ethernet8 route-map OUT out"),
        f"{BGP}",
        "ip prefix-list SOME seq 5 permit 192.0.2.0/24",
        "route-map OUT permit 10",
        " match ip address prefix-list SOME",
        "exit",
        "!",
    )
    wanted = added(rendered, "  neighbor FABRIC activate", "  neighbor Ethernet8 route-map OUT out")
    found = touches(change(running, wanted), running, wanted, leaf, {"Ethernet8"})
    assert {touch.line.words: touch.ports for touch in found} == {
        "ip prefix-list SOME seq 5 permit 192.0.2.0/24": frozenset({"Ethernet8"}),
        "route-map OUT permit 10": frozenset({"Ethernet8"}),
        "match ip address prefix-list SOME": frozenset({"Ethernet8"}),
    }


def test_a_neighbor_without_a_session_is_removed_without_touching_anything(leaf: SwitchPlan, rendered: str) -> None:
    running = added(RUNNING, f" {PLANNED}", " neighbor Ethernet99 interface remote-as external")
    running = added(running, "interface lo", "interface Ethernet99", " no ipv6 nd suppress-ra", "exit", "!")
    found = change(running, rendered)
    assert all(touch.is_harmless for touch in touches(found, running, rendered, leaf, {"Ethernet8"}))
    assert not all(touch.is_harmless for touch in touches(found, running, rendered, leaf, {"Ethernet99"}))


def test_other_numbers_of_the_switch_touch_all_of_it(leaf: SwitchPlan, rendered: str) -> None:
    for old, new in (("bgp router-id 10.255.128.1", "bgp router-id 10.255.128.9"), (BGP, "router bgp 65001")):
        running = RUNNING.replace(old, new)
        found = touches(change(running, rendered), running, rendered, leaf, {"Ethernet8"})
        assert any(touch.ports is None for touch in found)


def test_every_line_of_a_configuration_is_read_once(rendered: str) -> None:
    lines = normal_lines(rendered)
    assert len(lines) == len(set(lines))
    assert FrrLine((BGP, "address-family ipv4 unicast"), "neighbor FABRIC activate") in lines
