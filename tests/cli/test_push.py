"""`headway push` before it reaches a switch: what it refuses, with which exit code, and what it names instead."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headway.cli.main import main
from headway.cli.verbs.push import PushTarget, _is_abandoned, _obstacle
from headway.infra.push.sessions import SwitchSessions
from headway.infra.push.switch import EarlierPush, SwitchReading
from headway.infra.reach import Reach
from headway.jobspec.plan import SwitchPlan
from headway.templates.switches.frr.options import FrrOptions

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups: [{name: gpu, count: 2, cpus: 8, gpu: H100-SXM-80, gpus: 1, nics: [mlx5_0]}]
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes: [{name: roce, carries: collectives, dscp: 26, priority: 3, lossless: true}]
    switches: {leaves: 1, spines: 1, ports: 4, os: [{kind: frr, options: {login: {user: root, known_hosts: known_hosts}}}]}
storage: [{name: runs, kind: posix, path: /runs, shared: true}]
"""
FRR = "[{kind: frr, options: {login: {user: root, known_hosts: known_hosts}}}]"
# Nothing listens there.
INVENTORY = """\
apiVersion: headway/v1alpha1
kind: Inventory
name: lab-switches
cluster: lab
switches: [{name: rails-leaf-1, host: "127.0.0.1:1"}, {name: rails-spine-1, host: "127.0.0.1:2"}]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    (tmp_path / "known_hosts").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


def pushed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code and standard error; nothing may be on standard output."""
    code = main(["push", "cluster.yaml", *words])
    found = capsys.readouterr()
    assert found.out == ""
    return code, found.err


def test_without_a_terminal_nothing_is_changed_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    expected = "error: cannot ask for confirmation without a terminal; pass `--yes`\n"
    assert pushed(capsys) == (2, expected)


@pytest.mark.parametrize("seconds", ["29", "3601"])
def test_the_time_of_the_undo_has_bounds(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    expected = f"error: `--undo-after {seconds}`: expected 30 to 3600 seconds\n"
    assert pushed(capsys, "--yes", "--undo-after", seconds) == (2, expected)


def test_an_undo_comes_after_the_hold_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "cluster.yaml").write_text(CLUSTER.replace("options: {login", "options: {hold_s: 20, login"))
    code, error = pushed(capsys, "--yes", "--undo-after", "40")
    assert code == 2
    assert error.endswith("are watched for 23 s, by BGP's hold time; set 41 or more\n")


def test_an_unknown_switch_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, error = pushed(capsys, "--diff", "--switch", "rails-leaf-2")
    assert code == 2
    assert error.startswith(
        "error: `--switch rails-leaf-2`: there is no such switch; known switches: `rails-leaf-1`, `rails-spine-1`"
    )


@pytest.mark.parametrize(
    ("systems", "reason"),
    [
        (
            "[{kind: sonic}]",
            "load the files of `rails` on SONiC by `config reload` on the switch (docs/fabric.md, Load it on SONiC)",
        ),
        (
            f"[{{kind: sonic}}, {FRR[1:-1]}]",
            "the files of `rails` are for `sonic` too, and a switch runs one system; keep only `frr` in `switches.os` to push",
        ),
    ],
    ids=["other", "both"],
)
def test_another_system_is_refused_with_its_own_way(
    folder: Path, capsys: pytest.CaptureFixture[str], systems: str, reason: str
) -> None:
    (folder / "cluster.yaml").write_text(CLUSTER.replace(FRR, systems))
    code, error = pushed(capsys, "--diff")
    assert code == 2
    assert error.endswith(f"{reason}\n")


def test_a_switch_without_an_address_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "inventory.yaml").write_text(
        INVENTORY.replace('{name: rails-spine-1, host: "127.0.0.1:2"}', "{name: rails-spine-1}")
    )
    expected = "error: no inventory has the address of `rails-spine-1`; add `host` under `switches` of an Inventory\n"
    assert pushed(capsys, "--diff") == (2, expected)


def test_mistakes_in_the_document_have_a_separate_exit_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "cluster.yaml").write_text(CLUSTER.replace("user: root", "users: root"))
    code, error = pushed(capsys, "--diff")
    assert code == 2
    assert "did you mean `user`?" in error


def test_switches_that_do_not_answer_are_all_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = pushed(capsys, "--diff")
    assert code == 3
    for name, port in (("rails-leaf-1", 1), ("rails-spine-1", 2)):
        assert f"error: {name} (root@127.0.0.1:{port}): no connection: Connection refused\n" in error
    assert error.endswith("error: nothing was changed: 2 switches checked, 2 with errors\n")


def test_json_is_printed_also_without_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", "cluster.yaml", "--diff", "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == []


# --- switches that are not pushed to ----------------------------------------------------------------------------------

SWITCH = SwitchPlan("rails-leaf-1", "rails", "leaf", 0, 65001, "10.0.0.1", (), host="10.0.1.1")
RENDERED = "frr defaults datacenter\nhostname rails-leaf-1\n"
TARGET = PushTarget(SWITCH, Reach("rails-leaf-1", "10.0.1.1"), RENDERED, FrrOptions())
SOUND = SwitchReading("rails-leaf-1.example.com", RENDERED, None, SwitchSessions({}, frozenset(), 0))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"host": "rails-leaf-2"}, "the host there is called `rails-leaf-2`, not `rails-leaf-1`"),
        (
            {"running": "frr defaults traditional\n"},
            "FRR runs with `frr defaults traditional`, and takes `datacenter` only when it",
        ),
        ({"obstacle": "vtysh of the package frr is missing; install it"}, "vtysh of the package frr is missing; install it"),
        ({"earlier": EarlierPush("armed", 17, "bob@here", True)}, "a push of bob@here is not confirmed yet; it ends within 17 s"),
        ({"earlier": EarlierPush("armed", 17, "bob@here", False)}, "a push of bob@here was broken off, and so was its undo"),
        ({"earlier": EarlierPush("failed", -9, "bob@here", False)}, "the undo of a push of bob@here has failed"),
    ],
)
def test_a_switch_that_cannot_be_pushed_to_is_explained(change: dict[str, Any], reason: str | None) -> None:
    found = _obstacle(TARGET, replace(SOUND, **change))
    assert found is None if reason is None else found is not None and found.startswith(reason)


def test_only_a_push_without_a_process_is_undone_by_the_next() -> None:
    assert not _is_abandoned(SOUND)
    assert not _is_abandoned(replace(SOUND, earlier=EarlierPush("armed", 17, "", True)))
    assert not _is_abandoned(replace(SOUND, earlier=EarlierPush("failed", 17, "", False)))
    assert _is_abandoned(replace(SOUND, earlier=EarlierPush("undoing", 17, "", False)))
