"""Tests the coordinator after a replica group loses a rank: the others continue training, and all ranks stop if that is impossible."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from headway.runner.contract import Checkpoint, Members, Mesh, Restart, Tier, Timeout
from headway.runner.contract.orders import StartRanks
from headway.runner.coordinator.events import Action, Broadcast, Lost, Note
from headway.runner.coordinator.machine import Coordinator
from headway.runner.coordinator.state import Inherited, Phase
from tests.support.coordinator import BASE, Bench, as_json, config, evidence, facts, joined, sent, told

KILLED = -9
# Two nodes of two ranks: replica group 0 on node 0, and 1 on node 1.
JOB = replace(config(), mesh=Mesh(dp_replicate=2, dp_shard=2), replica_recovery=True, restart=Restart(budget=5))


def bench(**changes: Any) -> Bench:
    return Bench(replace(JOB, **changes)).started(BASE).loaded()


def orders_of(actions: Sequence[Action]) -> list[tuple[str, dict[str, Any]]]:
    found = [action.order for action in actions if isinstance(action, Broadcast)]
    return [(order.KIND, as_json(vars(order))) for order in found]


def lost(at: Bench, rank: int = 3) -> Bench:
    """A rank is killed; the other one of its group ends as ordered."""
    at.end(rank, KILLED, step=25)
    at.end(rank ^ 1, KILLED, step=25, asked=True)
    return at


def ready(at: Bench, rank: int, start: int) -> list[Action]:
    return at.do(evidence(rank // 2, at.generation, {"what": "ready", "rank": rank, "start": start}))


def test_others_get_the_new_members_and_the_group_restarts_once_ended() -> None:
    at = bench()
    assert orders_of(at.end(3, KILLED, step=25)) == [
        ("members", {"epoch": 1, "replicas": [0]}),
        ("end", {"ranks": [2]}),
    ]
    assert orders_of(at.end(2, KILLED, step=25, asked=True)) == [("restart", {"ranks": [2, 3], "start": 1})]
    assert at.machine.phase is Phase.RUNNING
    assert at.note("replica lost") == {
        "replica": 1,
        "ranks": [2, 3],
        "cause": "killed by 9",
        "cause_kind": "crash",
        "fingerprint": "crash: killed by 9",
        "rank": 3,
        "node": 1,
        "host": "host-1",
        "step": 25,
    }
    assert "failure" not in at.notes()


def test_a_group_is_a_member_again_once_all_its_new_ranks_are_ready() -> None:
    at = lost(bench())
    assert ready(at, 2, 1) == []
    assert orders_of(ready(at, 3, 1)) == [("members", {"epoch": 2, "replicas": [0, 1]})]
    assert at.machine.generation.alive == {0, 1, 2, 3}
    at.end_all([0, 0, 0, 0], step=100)
    assert at.finish().exit_code == 0
    assert at.finish().cause == "all ranks finished"


def test_a_run_may_end_while_a_group_starts() -> None:
    at = lost(bench())
    at.end(0, 0, step=100)
    at.end(1, 0, step=100)
    assert at.finish().exit_code == 0


def test_reports_of_an_earlier_start_do_not_make_a_member() -> None:
    at = lost(bench())
    ready(at, 2, 1), ready(at, 3, 1)
    lost(at, 2)
    for rank in (2, 3):
        assert ready(at, rank, 1) == [], "an agent repeats them when it connects again"
    ready(at, 2, 2)
    assert orders_of(ready(at, 3, 2)) == [("members", {"epoch": 4, "replicas": [0, 1]})]


def test_a_group_that_dies_while_starting_starts_again() -> None:
    at = lost(bench())
    ready(at, 2, 1)
    assert orders_of(at.end(3, KILLED, step=0)) == [("end", {"ranks": [2]})]
    assert orders_of(at.end(2, KILLED, asked=True)) == [("restart", {"ranks": [2, 3], "start": 2})]
    assert at.machine.phase is Phase.RUNNING


@pytest.mark.parametrize("name", ["before all have loaded", "switched off", "an exception of the code", "a preempted run"])
def test_all_ranks_stop_if_restarting_the_group_does_not_help(name: str) -> None:
    at = Bench(replace(JOB, replica_recovery=name != "switched off")).started(BASE)
    if name != "before all have loaded":
        at.loaded()
    if name == "an exception of the code":
        at.say("exception", 3, type="KeyError", text="'x'", at="train.py:3 f", step=25)
    if name == "a preempted run":
        at.say("preempted", 0, age_s=0.0)
    actions = at.end(3, 1 if name == "an exception of the code" else KILLED, step=25)
    assert len(told(actions, "stop")) == 1
    assert at.machine.phase is Phase.STOPPING
    assert "replica lost" not in at.notes()


def test_all_ranks_stop_when_the_last_group_with_the_state_is_lost() -> None:
    at = lost(bench())
    actions = at.end(0, KILLED, step=26)
    assert len(told(actions, "stop")) == 1
    for rank in (1, 2, 3):
        at.end(rank, KILLED, asked=True)
    assert at.note("failure")["rank"] == 0
    assert at.machine.phase is Phase.CLAIMING


def test_a_node_lost_with_its_group_ends_the_wait_for_the_group() -> None:
    at = lost(bench(timeouts={**JOB.timeouts, "replica": Timeout(30.0)}))
    at.do(Lost(1))
    at.pass_time(29.0, 0, step=27)
    assert at.machine.phase.value == "running", "the others train"
    at.pass_time(2.0, 0, step=28)
    assert at.machine.phase is Phase.STOPPING
    for rank in (0, 1):
        at.end(rank, KILLED, asked=True)
    at.pass_time(20.0, 0)
    assert at.machine.phase is not Phase.STOPPING
    assert "lost" in at.notes()


def node_lost(at: Bench) -> list[Action]:
    """Node 1 is gone, and with it replica group 1; the other waits in a collective."""
    at.do(Lost(1))
    return at.pass_time(3.0, 0)


def test_a_lost_node_stops_no_other_group_and_is_replaced_by_a_spare() -> None:
    at = bench()
    at.do(joined(2, at.generation))
    at.pass_time(2.0, 0, 1, 2, step=25)
    before = len(at.actions)
    node_lost(at)
    new = at.actions[before:]
    assert orders_of(new) == [("members", {"epoch": 1, "replicas": [0]}), ("restart", {"ranks": [2, 3], "start": 1})]
    assert sent(new, "take") == [2]
    assert (at.machine.phase, at.machine.roster.slots, at.machine.policy.budget) == (Phase.RUNNING, {0: 0, 1: 2}, 5)
    assert at.note("replica lost")["cause_kind"] == "node lost"
    assert [at.note("rebound")[name] for name in ("slot", "from", "to", "running")] == [1, 1, 2, True]
    at.do(evidence(2, at.generation, {"what": "ready", "rank": 2, "start": 1}))
    members = at.do(evidence(2, at.generation, {"what": "ready", "rank": 3, "start": 1}))
    assert orders_of(members) == [("members", {"epoch": 2, "replicas": [0, 1]})]


def test_a_node_with_dead_ranks_and_a_dead_agent_is_given_up_at_once() -> None:
    at = bench()
    at.pass_time(2.0, 0, 1, step=25)
    at.do(evidence(0, at.generation, {"what": "parted", "rank": 0, "epoch": 0}))
    assert orders_of(at.pass_time(0.5, 0, 1, step=25)) == [], "a node that is there"
    at.do(Lost(1))
    assert orders_of(at.pass_time(0.5, 0)) == [("members", {"epoch": 1, "replicas": [0]})]


@pytest.mark.parametrize("running", [(), (2, 3)], ids=["restarted", "cut off meanwhile"])
def test_without_a_spare_the_group_starts_when_its_node_returns(running: Sequence[int]) -> None:
    at = bench()
    at.pass_time(2.0, 0, 1, step=25)
    assert "restart" not in dict(orders_of(node_lost(at)))
    at.pass_time(20.0, 0, step=60)
    assert at.machine.phase is Phase.RUNNING
    actions = at.do(joined(1, at.generation if running else 0, running))
    for rank in running:
        assert "restart" not in dict(orders_of(actions)), "what runs there ends before"
        actions = at.end(rank, KILLED, asked=True)
    assert ("restart", {"ranks": [2, 3], "start": 1}) in orders_of(actions)
    assert sent(actions, "take") == ([] if running else [1])


def test_a_node_that_restarts_loses_its_group_once() -> None:
    at = bench()
    at.pass_time(2.0, 0, 1, step=25)
    actions = at.do(Lost(1), joined(1, 0))
    assert orders_of(actions) == [("members", {"epoch": 1, "replicas": [0]}), ("restart", {"ranks": [2, 3], "start": 1})]
    assert [kind for kind in at.notes() if kind == "replica lost"] == ["replica lost"]


@pytest.mark.parametrize("why", ["the store is on it", "a group spans both nodes", "copies go to partners"])
def test_all_ranks_stop_if_a_lost_node_takes_more_than_its_group(why: str) -> None:
    changes: dict[str, Any] = {}
    if why == "a group spans both nodes":
        changes["mesh"] = Mesh(dp_replicate=1, dp_shard=4)
    if why == "copies go to partners":
        changes["checkpoint"] = Checkpoint((Tier("peer", 10),))
    at = bench(**changes)
    at.pass_time(2.0, 0, 1, step=25)
    node, other = (0, 1) if why == "the store is on it" else (1, 0)
    at.do(Lost(node))
    at.pass_time(3.0, other)
    assert at.machine.phase is Phase.STOPPING
    assert "replica lost" not in at.notes()


def test_a_group_that_does_not_return_in_time_costs_a_restart_of_all_ranks() -> None:
    at = lost(bench(timeouts={**JOB.timeouts, "replica": Timeout(30.0)}))
    at.pass_time(29.0, 0, 1, step=27)
    assert at.machine.phase.value == "running"
    at.pass_time(2.0, 0, 1, step=28)
    assert at.machine.phase is Phase.STOPPING
    for rank in range(4):
        at.end(rank, KILLED, asked=True)
    assert at.note("failure")["cause"] == "killed by 9"


def test_the_restart_budget_counts_lost_groups() -> None:
    at = bench(restart=Restart(budget=1))
    lost(at)
    ready(at, 2, 1), ready(at, 3, 1)
    at.pass_time(1.0, 0, 1, step=30)
    assert len(told(at.end(0, KILLED, step=30), "stop")) == 1
    for rank in (1, 2, 3):
        at.end(rank, KILLED, asked=True)
    assert at.finish().cause.startswith("no restart left in the budget of 1")


def test_a_node_that_reconnects_gets_the_members() -> None:
    at = lost(bench())
    assert sent(at.do(joined(0, at.generation, (0, 1))), "members") == [0]


def test_the_next_coordinator_continues_with_all_groups() -> None:
    machine = adopted(Members(2, (0, 1)))
    assert machine.generation.replicas is not None
    assert machine.generation.replicas.members == Members(2, (0, 1))


def test_the_next_coordinator_restarts_all_ranks_if_a_group_was_missing() -> None:
    machine = adopted(Members(1, (0,)))
    assert machine.generation.replicas is None
    notes = []
    for node in (0, 1):
        actions = machine.handle(joined(node, 3, range(2 * node, 2 * node + 2)), 1.0)
        notes += [facts(action.entry) for action in actions if isinstance(action, Note)]
    assert machine.phase is Phase.STOPPING
    assert machine.generation.regroups, "no failure is charged for it"


def adopted(members: Members) -> Coordinator:
    """A coordinator that takes generation 3 over."""
    inherited = Inherited(3, BASE, slots={0: 0, 1: 1}, hosts={0: "host-0", 1: "host-1"}, started=True, members=members)
    return Coordinator(JOB, inherited, 0.0)


def test_a_generation_starts_with_all_groups() -> None:
    at = lost(bench())
    at.machine.generation.hang = None
    at.end(0, KILLED, step=26)
    for rank in (1, 2, 3):
        at.end(rank, KILLED, asked=True)
    at.started(BASE)
    assert at.machine.generation.replicas is not None
    assert at.machine.generation.replicas.members == Members.everyone(2)
    assert isinstance(at.machine.generation.order, StartRanks)


def test_members_are_one_word_of_the_heartbeat_page() -> None:
    for members in (Members.everyone(3), Members(1, (0, 2)), Members(7, (1,)), Members(1 << 20, (0, 1, 2))):
        assert Members.of_word(members.word, 3) == members
        assert -(1 << 63) <= members.word < 1 << 63
    many = Members(9, tuple(range(40)))
    assert Members.of_word(many.word, 40) == many
    assert many.after({1, 0}) == Members(10, (0, 1))
