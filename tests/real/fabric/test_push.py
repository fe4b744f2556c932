"""`headway push` to real FRR over a real sshd: what changes, what stays, and what comes back when something goes wrong."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.templates.switches.frr.change import change

from .managed import ManagedFabric, obstacle

pytestmark = pytest.mark.slow

LEAF, OTHER, SPINE = "rails-leaf-1", "rails-leaf-2", "rails-spine-1"
JOB = "17|alice|RUNNING|None|gpu-1|train-1|/runs/train-1"


@pytest.fixture(scope="module")
def lab(frr_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedFabric]:
    """Two leaves and two spines. A test leaves them as they are rendered."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    with ManagedFabric(tmp_path_factory.mktemp("lab")) as managed:
        yield managed


@pytest.fixture(autouse=True)
def as_rendered(lab: ManagedFabric) -> Iterator[None]:
    """Afterwards every switch runs its rendered file, by headway itself where it does not, and nothing of a push is left."""
    yield
    lab.set_jobs()
    if any(change(lab.running(name), text) or lab.saved(name) != text for name, text in lab.rendered.items()):
        done = lab.push("--yes")
        assert done.returncode == 0, done.stdout + done.stderr
    lab.wait_until_up()
    for name in lab.names:
        assert not change(lab.running(name), lab.rendered[name])
        assert lab.on_switch(name, "sh", "-c", "ls -d /run/headway-push* 2>/dev/null || echo none") == "none\n"


def names_of_ports(lab: ManagedFabric) -> tuple[str, str]:
    """The ports of the first leaf to a node and to the first spine."""
    (leaf,) = [switch for switch in lab.planned.plan.switches if switch.name == LEAF]
    (to_spine,) = [port.name for port in leaf.ports if port.peer == SPINE]
    return next(port.name for port in leaf.ports if port.role == "node"), to_spine


def test_switches_as_rendered_show_no_change(lab: ManagedFabric) -> None:
    done = lab.push("--diff")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [f"{name}: no change" for name in (SPINE, "rails-spine-2", LEAF, OTHER)],
    )
    done = lab.push("--yes")
    assert (done.returncode, done.stderr) == (0, "4 switches checked, none to be changed\n")


def test_push_adds_a_neighbor_and_ends_no_other_session(lab: ManagedFabric) -> None:
    _, uplink = names_of_ports(lab)
    (asn,) = [switch.asn for switch in lab.planned.plan.switches if switch.name == LEAF]
    lab.configure(LEAF, f"router bgp {asn}", f"no neighbor {uplink} interface peer-group FABRIC")
    drops, daemons = lab.drops(LEAF), lab.daemons()
    done = lab.push("--diff")
    assert done.returncode == 1
    assert f"+++ {LEAF} (rendered)\n" in done.stdout
    assert f" router bgp {asn}\n+ neighbor {uplink} interface peer-group FABRIC\n" in done.stdout
    assert uplink not in lab.established(LEAF)

    done = lab.push("--yes", "--json")
    assert done.returncode == 0, done.stderr
    found = {each["switch"]: each for each in json.loads(done.stdout)}
    assert {name: each["state"] for name, each in found.items()} == {
        **dict.fromkeys(lab.names, "unchanged"),
        LEAF: "applied",
    }
    assert f"router bgp {asn} | neighbor {uplink} interface peer-group FABRIC" in found[LEAF]["added"]
    assert uplink in lab.established(LEAF)
    after = lab.drops(LEAF)
    assert {name: after[name] for name in drops} == drops
    assert lab.daemons() == daemons
    assert lab.saved(LEAF) == lab.rendered[LEAF]
    kept = lab.on_switch(LEAF, "cat", "/etc/frr/frr.conf.before-push")
    assert f"neighbor {uplink} interface" not in kept
    assert "router bgp" in kept


def test_push_removes_stale_lines_and_keeps_lines_of_the_site(lab: ManagedFabric) -> None:
    (asn,) = [switch.asn for switch in lab.planned.plan.switches if switch.name == LEAF]
    lab.configure(LEAF, "log facility local3", "ip prefix-list OLD seq 5 permit 192.0.2.0/24", "route-map OLD deny 10")
    lab.configure(LEAF, "interface eth0", "description out of band")
    lab.configure(LEAF, f"router bgp {asn}", "neighbor 192.0.2.9 remote-as 65099")
    drops = lab.drops(LEAF)
    done = lab.push("--yes", "--switch", LEAF)
    assert done.returncode == 0, done.stderr
    running = lab.running(LEAF)
    assert "OLD" not in running
    assert "192.0.2.9" not in running
    after = lab.drops(LEAF)
    assert {name: count for name, count in drops.items() if name in after} == after
    saved = lab.saved(LEAF)
    for text in (running, saved):
        assert "log facility local3" in text
        assert "interface eth0\n description out of band\n" in text
    assert lab.push("--diff").returncode == 0
    lab.configure(LEAF, "no log facility local3", "interface eth0", "no description")


@pytest.mark.variant
def test_push_writes_the_file_that_a_restart_loads(lab: ManagedFabric) -> None:
    lab.on_switch(LEAF, "sed", "-i", "s/maximum-paths .*/maximum-paths 1/", "/etc/frr/frr.conf")
    done = lab.push("--diff")
    assert done.returncode == 1
    assert f"--- {LEAF} (/etc/frr/frr.conf; it runs as rendered)" in done.stdout
    assert lab.push("--yes").returncode == 0
    assert lab.saved(LEAF) == lab.rendered[LEAF]


def test_change_that_cuts_bgp_is_undone(lab: ManagedFabric) -> None:
    """By hand the leaf shows another AS number, and one spine takes only that: the rendered file of the leaf ends their session."""
    asns = {switch.name: switch.asn for switch in lab.planned.plan.switches}
    (spine,) = [switch for switch in lab.planned.plan.switches if switch.name == SPINE]
    down = next(port.name for port in spine.ports if port.peer == LEAF)
    lab.configure(SPINE, f"router bgp {asns[SPINE]}", f"no neighbor {down} interface peer-group FABRIC")
    lab.configure(
        SPINE,
        f"router bgp {asns[SPINE]}",
        f"neighbor {down} interface remote-as 65010",
        "address-family ipv4 unicast",
        f"neighbor {down} activate",
    )
    lab.configure(LEAF, f"router bgp {asns[LEAF]}", "neighbor FABRIC local-as 65010")
    lab.wait_for_sessions(LEAF)
    before, saved = lab.running(LEAF), lab.saved(LEAF)
    done = lab.push("--yes", "--switch", LEAF, "--undo-after", "60")
    assert done.returncode == 1, done.stderr
    assert f"error: {LEAF}: undone: the BGP session with Ethernet" in done.stderr
    assert lab.running(LEAF) == before
    assert lab.saved(LEAF) == saved
    lab.wait_for_sessions(LEAF)
    lab.configure(LEAF, f"router bgp {asns[LEAF]}", "no neighbor FABRIC local-as 65010")
    lab.configure(SPINE, f"router bgp {asns[SPINE]}", f"no neighbor {down} interface")
    lab.configure(SPINE, f"router bgp {asns[SPINE]}", f"neighbor {down} interface peer-group FABRIC")


def test_change_that_cuts_its_own_connection_is_undone_by_the_switch(lab: ManagedFabric) -> None:
    """The address by which the switch is reached is one of FRR's, on an interface that neither the plan nor the site is known to have."""
    number = lab.names.index(LEAF)
    here, station = f"10.99.0.{2 * number + 1}", f"10.99.0.{2 * number}"
    ip = ["ip", "-n", LEAF]
    lab.run(*ip, "link", "add", "oob0", "type", "veth", "peer", "name", "oob1")
    lab.run(*ip, "link", "set", "oob0", "up")
    lab.run(*ip, "link", "set", "oob1", "up")
    lab.run(*ip, "address", "del", f"{here}/31", "dev", "eth0")
    lab.run(*ip, "route", "add", f"{station}/32", "dev", "eth0")
    lab.configure(LEAF, "interface oob0", f"ip address {here}/32")
    before = lab.running(LEAF)
    try:
        done = lab.push("--yes", "--switch", LEAF, "--undo-after", "45")
        assert done.returncode == 1, done.stderr
        assert f"{LEAF}: undone: {LEAF} (root@{here}:22): " in done.stderr
        assert lab.running(LEAF) == before
    finally:
        lab.configure(LEAF, "interface oob0", f"no ip address {here}/32")
        lab.run(*ip, "route", "del", f"{station}/32", "dev", "eth0")
        lab.run(*ip, "address", "add", f"{here}/31", "dev", "eth0")
        lab.run(*ip, "link", "del", "oob0")


def spoiled(lab: ManagedFabric) -> str:
    """Add a line by hand, and return what the leaf runs then."""
    (asn,) = [switch.asn for switch in lab.planned.plan.switches if switch.name == LEAF]
    lab.configure(LEAF, f"router bgp {asn}", "bgp default local-preference 200")
    return lab.running(LEAF)


def wait_for_step(process_lines: Iterator[str], step: str) -> None:
    for line in process_lines:
        if step in line:
            return
    pytest.fail(f"the push ended before `{step}`")


def test_killed_push_is_undone_by_the_switch(lab: ManagedFabric) -> None:
    before, saved = spoiled(lab), lab.saved(LEAF)
    with lab.pushing("--yes", "--undo-after", "300") as process:
        assert process.stderr is not None
        wait_for_step(process.stderr, "verifying")
        lab.kill_push()
    assert "local-preference" not in lab.running(LEAF)
    done = lab.push("--yes")
    assert done.returncode == 3
    assert "is not confirmed yet; it ends within 2" in done.stderr
    lab.on_switch(LEAF, "sh", "-c", "echo 0 >/run/headway-push/deadline")
    lab.fabric.wait("the old configuration", lambda: lab.running(LEAF), lambda text: text == before, 60)
    assert lab.saved(LEAF) == saved
    lab.fabric.wait("no push", lambda: lab.on_switch(LEAF, "ls", "/run"), lambda text: "headway-push" not in text, 60)


@pytest.mark.variant
def test_push_whose_undo_is_killed_too_is_undone_by_the_next(lab: ManagedFabric) -> None:
    spoiled(lab)
    with lab.pushing("--yes", "--undo-after", "300") as process:
        assert process.stderr is not None
        wait_for_step(process.stderr, "verifying")
        lab.kill_push()
    lab.on_switch(LEAF, "sh", "-c", "read pid began </run/headway-push/pid && kill -KILL $pid")
    done = lab.push("--diff")
    assert done.returncode == 3
    assert "was broken off" in done.stderr
    done = lab.push("--yes")
    assert done.returncode == 0, done.stderr
    assert "- bgp default local-preference 200\n" in done.stdout


def test_port_under_a_running_job_is_unchanged(lab: ManagedFabric) -> None:
    port, uplink = names_of_ports(lab)
    (leaf,) = [switch for switch in lab.planned.plan.switches if switch.name == LEAF]
    (address,) = [each.address for each in leaf.ports if each.name == port]
    lab.set_jobs(JOB)
    lab.configure(LEAF, f"interface {port}", f"no ip address {address}")
    before = lab.running(LEAF)
    done = lab.push("--yes")
    assert done.returncode == 1
    assert (
        f"refused: {LEAF}: `ip address {address}` touches port {port}, and so gpu-1 with job 17 (train-1, alice)\n" in done.stderr
    )
    assert lab.running(LEAF) == before
    lab.configure(LEAF, f"interface {port}", f"ip address {address}", "description by hand")
    assert lab.push("--yes").returncode == 0
    lab.configure(LEAF, f"router bgp {leaf.asn}", f"no neighbor {uplink} interface peer-group FABRIC")
    done = lab.push("--yes")
    assert done.returncode == 1
    assert f"touches port {uplink}, and so gpu-1 with job 17" in done.stderr


def test_only_spine_of_a_leaf_is_unchanged(lab: ManagedFabric) -> None:
    one, other = (switch for switch in lab.planned.plan.switches if switch.role == "spine")
    down = next(port.name for port in other.ports if port.peer == LEAF)
    lab.configure(other.name, f"router bgp {other.asn}", f"neighbor {down} shutdown")
    lab.configure(one.name, f"router bgp {one.asn}", "bgp default local-preference 200")
    lab.fabric.wait("a session less", lambda: lab.established(other.name), lambda found: down not in found, 30)
    before = lab.running(one.name)
    done = lab.push("--yes", "--switch", one.name)
    assert done.returncode == 1
    assert f"refused: {one.name}: {LEAF} would lose its last path" in done.stderr
    assert lab.running(one.name) == before
    done = lab.push("--yes", "--switch", other.name)
    assert done.returncode == 0, done.stderr


def test_switch_of_another_name_is_unchanged(lab: ManagedFabric) -> None:
    inventory = lab.folder / "inventory.yaml"
    text = inventory.read_text()
    inventory.write_text(text.replace(LEAF, "x").replace(OTHER, LEAF).replace('"x"', f'"{OTHER}"'))
    try:
        done = lab.push("--diff")
    finally:
        inventory.write_text(text)
    assert done.returncode == 3
    assert f"the host there is called `{OTHER}`, not `{LEAF}`" in done.stderr
    assert done.stderr.endswith("error: nothing was changed: 4 switches checked, 2 with errors\n")


def test_push_needs_slurm_or_the_statement_that_no_job_runs(lab: ManagedFabric, tmp_path: Path) -> None:
    spoiled(lab)
    tools = lab.folder / "tools"
    (tools / "squeue").rename(tmp_path / "squeue")
    (tools / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n")
    (tools / "squeue").chmod(0o755)
    try:
        done = lab.push("--yes")
        assert done.returncode == 3
        assert "it is unknown which jobs run: squeue: slurm_load_jobs error" in done.stderr
        assert "local-preference" in lab.running(LEAF)
        cluster = lab.folder / "cluster.yaml"
        text = cluster.read_text()
        cluster.write_text(text.replace("{kind: slurm}", "{kind: kubernetes}"))
        done = lab.push("--yes")
        cluster.write_text(text)
        assert done.returncode == 3
        assert "headway can ask only Slurm for running jobs, and the scheduler of `lab` is `kubernetes`" in done.stderr
        assert lab.push("--yes", "--no-running-jobs").returncode == 0
    finally:
        (tmp_path / "squeue").rename(tools / "squeue")
