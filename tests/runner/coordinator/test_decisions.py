"""Tests the coordinator's decisions, one at a time: when nodes join or are lost, when ranks end, and when a coordinator takes over."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import xxhash

from headway.runner.checkpoint.commit import memory_manifest
from headway.runner.contract import (
    DEFAULT_TIMEOUTS,
    Base,
    CauseKind,
    Checkpoint,
    CheckpointId,
    Domain,
    Exit,
    Ports,
    Restart,
    RunConfig,
    Tier,
    Timeout,
    Trainer,
    journal,
    orders,
    set_by,
)
from headway.runner.coordinator.causes import Ended
from headway.runner.coordinator.events import (
    Action,
    Beat,
    Broadcast,
    Claimed,
    ClaimRefused,
    DropConnection,
    Event,
    Excuse,
    Exited,
    Finish,
    Joined,
    Lost,
    MakeClaim,
    Note,
    Probed,
    Send,
    Tick,
)
from headway.runner.coordinator.machine import STALL_S, Coordinator
from headway.runner.coordinator.state import (
    ENDED_S,
    GRACE_SHARE,
    LAST_SHARE,
    QUIET_S,
    REJOIN_S,
    SURVEY_S,
    Inherited,
    Phase,
)
from headway.runner.health.watch import Findings, Hang, Probe, RankBeat, Straggler, Watch
from tests.support.coordinator import (
    AGENT_S,
    BASE,
    JOIN_S,
    KILL_S,
    LAST_CALL_S,
    LISTEN_S,
    SILENT_S,
    SILENT_SPARE_S,
    STORE_S,
    TERMINATE_S,
    Bench,
    claims,
    config,
    evidence,
    joined,
    sent,
    told,
)

# --- starting ---------------------------------------------------------------------------------------------------------


def test_nothing_is_claimed_before_all_nodes_have_joined() -> None:
    bench = Bench()
    assert bench.do(joined(1), Tick(), Beat(1, 0, None, {})) == []
    assigned = [Send(node, 0, orders.Assign(slot)) for slot, node in ((1, 1), (0, 0))]
    assert bench.do(joined(0)) == [*assigned, MakeClaim(frozenset())]


def test_the_start_is_one_message_with_base_binding_and_rendezvous() -> None:
    bench = Bench()
    bench.join_all()
    actions = bench.do(Claimed(3, BASE, 1))
    where = {"master_addr": "host-0", "master_port": 4000}
    body = {"base": vars(BASE), "slots": 2, "moved": [], **where, "restarts": 0}
    assert isinstance(actions[-1], Broadcast)
    assert (told(actions[-1:], "start"), actions[-1].generation) == ([body], 3)
    assert bench.note("start") == {
        "nodes": [{"slot": 0, "node": 0, "host": "host-0"}, {"slot": 1, "node": 1, "host": "host-1"}],
        "slots": 2,
        "moved": [],
        "world_size": 4,
        "restarts": 0,
    }
    assert bench.do(Beat(0, 3, 4001, {})) == []


def test_the_start_waits_for_a_port_unused_by_any_rendezvous() -> None:
    bench = Bench().started()
    bench.end_all([-9, 1, 1, 1])
    assert told(bench.do(Claimed(2, None, 1)), "start") == []
    assert told(bench.do(Beat(0, 1, 4000, {})), "start") == [], "sent before the agent had opened another"
    assert told(bench.do(Beat(1, 1, 4001, {})), "start") == [], "of another node"
    (body,) = told(bench.do(Beat(0, 1, 4002, {})), "start")
    assert (body["master_port"], body["restarts"]) == (4002, 1)


def test_a_given_port_is_used_for_every_rendezvous() -> None:
    bench = Bench(replace(config(), ports=Ports(store=4000))).started()
    bench.end_all([-9, 1, 1, 1])
    (body,) = told(bench.do(Claimed(2, None, 1)), "start")
    assert (body["master_port"], body["restarts"]) == (4000, 1)


def test_a_generation_starts_only_while_all_nodes_are_connected() -> None:
    bench = Bench()
    bench.join_all()
    assert told(bench.do(Lost(1), Claimed(1, None, 1)), "start") == []
    assert told(bench.do(Beat(0, 0, 4000, {})), "start") == []
    assert len(told(bench.do(joined(1)), "start")) == 1


def test_a_node_that_missed_the_start_gets_it_again() -> None:
    bench = Bench().started()
    (order,) = [each.order for each in bench.actions if isinstance(each, Broadcast)]
    assert bench.do(Lost(0), joined(0)) == [
        Send(0, 1, orders.Assign(0)),
        Send(0, 1, order),
    ]
    bench.do(Beat(0, 1, 4100, {}))
    assert sent(bench.do(Lost(0), joined(0)), "start") == [], "it had begun, and came back without its workers"
    assert bench.machine.phase is Phase.STOPPING


def test_a_refused_claim_ends_the_attempt() -> None:
    for code in (Exit.SUPERSEDED, Exit.UNVERIFIED):
        bench = Bench()
        bench.join_all()
        bench.do(ClaimRefused(code, "because"))
        assert (bench.finish().exit_code, bench.finish().cause) == (code, "because")


# --- slots and their nodes --------------------------------------------------------------------------------------------


def with_spare(**more: Any) -> Bench:
    """Two slots on three nodes, the first generation started, and its steps seen."""
    bench = Bench(replace(config(), spares=1, **more))
    bench.do(joined(2))
    bench.started()
    bench.pass_time(1.0, 0, 1, 2, step=5)
    return bench


def test_a_spare_gets_no_slot_and_starts_nothing() -> None:
    bench = with_spare()
    assert Send(2, 0, orders.Assign(None)) in bench.actions
    assert bench.machine.generation.world_size == 4


def test_a_lost_nodes_slot_goes_to_the_spare_without_a_restart_charge() -> None:
    bench = with_spare(restart=Restart(budget=0))
    bench.do(Lost(1))
    bench.end(0, 1)
    bench.end(1, -9, asked=True)
    actions = bench.pass_time(ENDED_S + 0.5, 0, 2)
    assert claims(actions) == 1
    assert bench.note("lost") == {"node": 1, "host": "host-1", "why": "its connection ended, and ranks elsewhere have ended"}
    assert bench.note("rebound") == {"slot": 1, "from": 1, "to": 2, "host": "host-2"}
    assert (bench.note("failure")["cause_kind"], bench.note("failure")["node"]) == ("node lost", 1)
    (body,) = told(bench.do(Claimed(2, None, 1)), "start")
    assert body["moved"] == [[1, 2]]
    assert bench.machine.roster.ranks(2) == range(2, 4)


def test_the_node_of_slot_0_can_be_replaced_too() -> None:
    bench = with_spare()
    bench.do(Lost(0))
    for rank in (2, 3):
        bench.end(rank, 1)
    bench.pass_time(ENDED_S + 0.5, 1, 2)
    (body,) = told(bench.do(Claimed(2, None, 1)), "start")
    assert (body["moved"], body["master_addr"], body["master_port"]) == ([[0, 2]], "host-2", 4102)


def test_a_spare_of_the_same_domain_is_preferred_over_one_outside() -> None:
    domains = (Domain("a", ("host-0", "host-1", "host-3")), Domain("b", ("host-2",)))
    for spares, expected in (((2, 3), (3, False)), ((2,), (2, True))):
        bench = Bench(replace(config(), spares=len(spares), domains=domains, partner_segment=2))
        bench.do(*(joined(node) for node in spares))
        bench.started()
        bench.do(Lost(1))
        bench.end(0, 1)
        bench.end(1, 1)
        bench.pass_time(ENDED_S + 0.5, 0, *spares)
        assert (bench.note("rebound")["to"], bench.note("rebound").get("outside", False)) == expected


def test_with_fewer_slots_allowed_the_run_continues_on_the_remaining_nodes() -> None:
    bench = Bench(replace(config("script", slots=3), min_slots=1)).started()
    bench.do(Lost(0))
    for rank in (2, 3, 4, 5):
        bench.end(rank, 1)
    bench.pass_time(ENDED_S + 0.5, 1, 2)
    (body,) = told(bench.do(Claimed(2, None, 1)), "start")
    assert (body["slots"], body["moved"]) == (2, [[0, 2]])
    assert sorted(bench.machine.roster.slots.values()) == [1, 2]
    assert (bench.machine.generation.world_size, bench.machine.generation.alive) == (4, {0, 1, 2, 3})


def test_a_node_that_joins_a_smaller_run_enlarges_it_at_no_cost() -> None:
    bench = Bench(replace(config("script", slots=2, budget=0), min_slots=1))
    bench.do(joined(0))
    bench.pass_time(LAST_CALL_S, 0)
    bench.do(Claimed(1, None, 1))
    assert (bench.machine.generation.started, bench.machine.generation.world_size) == (True, 2)
    assert len(told(bench.do(joined(1)), "stop")) == 1
    bench.end(0, -15, asked=True)
    assert claims(bench.end(1, -15, asked=True)) == 1
    (body,) = told(bench.do(Claimed(2, None, 1), Beat(0, 1, 4500, {})), "start")
    assert (body["slots"], body["restarts"]) == (2, 0)


def test_joined_nodes_are_bound_after_the_last_call() -> None:
    bench = Bench(replace(config(), spares=1))
    bench.do(joined(0), joined(2))
    assert claims(bench.pass_time(LAST_CALL_S - 1, 0, 2)) == 0
    assert claims(bench.pass_time(1, 0, 2)) == 1
    assert bench.machine.roster.slots == {0: 0, 1: 2}


def test_without_a_spare_a_node_is_awaited_and_the_run_continues_with_it() -> None:
    timeouts = {"join": Timeout(JOIN_S), "agent": Timeout(AGENT_S), "replace": Timeout(100.0)}
    bench = Bench(replace(config(), timeouts=timeouts)).started()
    bench.do(Lost(1))
    bench.end(0, 1)
    bench.end(1, 1)
    bench.pass_time(50.0, 0)
    assert bench.machine.phase is Phase.REPLACING
    assert claims(bench.do(joined(7))) == 1
    assert bench.machine.roster.slots == {0: 0, 1: 7}


def test_the_fifth_attempt_without_progress_or_a_new_exclusion_is_the_last() -> None:
    def ended(fruitless: int, *, excluded: frozenset[str] = frozenset(), is_excused: bool = False) -> Finish:
        bench = Bench().started(BASE)
        bench.machine.fruitless, bench.machine.excluded = fruitless, excluded
        bench.machine.is_excused = is_excused
        bench.say("unread", rank=3, **UNREAD)
        bench.end_all([Exit.UNVERIFIED] * 4)
        return bench.finish()

    assert ended(4).exit_code is Exit.RETRY_ELSEWHERE, "host-1 is excluded for the first time"
    assert ended(3, excluded=frozenset({"host-1"})).exit_code is Exit.RETRY_ELSEWHERE
    assert ended(4, excluded=frozenset({"host-1"}), is_excused=True).exit_code is Exit.RETRY_ELSEWHERE
    waiting = Bench()
    waiting.machine.fruitless, waiting.machine.excluded = 9, frozenset({"host-1"})
    waiting.do(joined(0))
    waiting.pass_time(JOIN_S + 1.0, 0)
    assert waiting.finish().exit_code is Exit.RETRY_ELSEWHERE, "a pod may still wait for a place"
    last = ended(4, excluded=frozenset({"host-1"}))
    assert last.exit_code is Exit.STOP
    assert last.cause.startswith("5 attempts in a row ended without progress; the last: host-1 could not read step 20")


def test_without_a_spare_or_wait_the_attempt_ends_with_the_node_as_suspect() -> None:
    bench = Bench().started()
    bench.do(Lost(1))
    bench.end(0, 1)
    bench.end(1, 1)
    bench.pass_time(ENDED_S + 0.5, 0)
    finish = bench.finish()
    assert (finish.exit_code, finish.suspects) == (Exit.RETRY_ELSEWHERE, (1,))
    assert bench.notes().count("failure") == 1


def test_a_replaced_node_that_returns_ends_its_workers_and_is_a_spare() -> None:
    bench = with_spare()
    bench.do(Lost(1))
    bench.end(0, 1)
    bench.end(1, 1)
    bench.pass_time(ENDED_S + 0.5, 0, 2)
    bench.do(Claimed(2, None, 1), Beat(0, 1, 4200, {}))
    actions = bench.do(joined(1, 1, (2, 3)))
    assert actions == [Send(1, 1, orders.Stop()), Send(1, 2, orders.Assign(None))]
    assert bench.do(Exited(1, 1, (Ended(2, 1, -9, "killed", True, 9),))) == []
    assert (bench.machine.phase, len(bench.machine.generation.alive)) == (Phase.RUNNING, 4)
    assert bench.machine.roster.spares() == [1]


def test_spares_are_found_without_a_look_at_the_nodes_that_compute() -> None:
    """Of 12,500 nodes a few are spares, and a failure asks for them."""

    class Computing(dict[int, int]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("all nodes are looked at")

        keys = items = values = __iter__

    roster = with_spare().machine.roster
    spare = roster.members.keys() - roster.slot_of.keys()
    roster.slot_of = Computing(roster.slot_of)
    roster.members = {node: roster.members[node] for node in spare}
    assert roster.spares() == [2]


def test_a_suspect_is_excluded_if_there_is_a_spare() -> None:
    bench = with_spare(restart=Restart(budget=9, no_progress=9))
    for step, spare_port in ((10, 4300), (30, 4301)):
        bench.end(2, -9, step=step)
        for rank in (0, 1, 3):
            bench.end(rank, -9, step=step, asked=True)
        if step == 10:
            bench.do(Claimed(2, None, 1), Beat(0, 1, spare_port, {}))
            bench.pass_time(1.0, 0, 1, 2, step=20)
    assert bench.note("excluded")["node"] == 1
    assert bench.machine.roster.slots == {0: 0, 1: 2}


# --- lost nodes and others --------------------------------------------------------------------------------------------


def trains(settings: RunConfig | None = None) -> Bench:
    """Two nodes that have completed steps, a second apart."""
    bench = Bench(settings).started()
    for step in (1, 2):
        bench.pass_time(1.0, 0, 1, step=step)
    return bench


def test_an_unreachable_node_is_never_lost_while_steps_advance() -> None:
    bench = trains()
    bench.do(Lost(1))
    for step in range(3, 300):
        bench.pass_time(1.0, 0, step=step)
    assert (bench.machine.phase, bench.notes().count("lost")) == (Phase.RUNNING, 0)
    bench.do(joined(1, 1, (2, 3)))
    bench.pass_time(2.0, 0, 1, step=300)
    assert (bench.machine.phase, sent(bench.actions, "stop"), told(bench.actions, "stop")) == (Phase.RUNNING, [], [])


def test_a_disconnected_node_is_lost_once_the_others_stall_unusually_long() -> None:
    bench = trains()
    bench.do(Lost(1))
    assert not told(bench.pass_time(ENDED_S, 0), "stop")
    bench.pass_time(3.0, 0)
    assert bench.note("lost")["why"] == "its connection ended, and no rank anywhere makes progress"
    for rank in (0, 1):
        bench.end(rank, -9, asked=True)
    failure = bench.note("failure")
    assert (failure["cause_kind"], failure["node"], failure["host"]) == ("node lost", 1, "host-1")


def test_slow_steps_do_not_indicate_a_dead_node() -> None:
    bench = Bench().started()
    for step in (1, 2, 3):
        bench.pass_time(0.5, 0, 1, step=step)
        bench.pass_time(9.5, 0, 1)
    bench.do(Lost(1))
    bench.pass_time(AGENT_S, 0)
    assert bench.machine.phase is Phase.RUNNING
    bench.do(joined(1, 1, (2, 3)))
    bench.pass_time(30.0, 0, 1)
    assert bench.notes().count("lost") == 0


def patient() -> RunConfig:
    """With the default timeout for a node that does not return."""
    return replace(config(), timeouts={"join": Timeout(JOIN_S), "agent": DEFAULT_TIMEOUTS["agent"]})


@pytest.mark.parametrize(("spare", "silent_s"), [(False, SILENT_S), (True, SILENT_SPARE_S)])
def test_a_silent_node_on_an_open_connection_is_lost_and_disconnected(spare: bool, silent_s: float) -> None:
    bench = with_spare() if spare else trains(patient())
    hearing = (0, 2) if spare else (0,)
    assert DropConnection(1) not in bench.pass_time(silent_s, *hearing)
    bench.pass_time(QUIET_S, *hearing)
    assert DropConnection(1) in bench.actions
    assert bench.note("lost")["why"] == "it stopped sending heartbeats, and no rank anywhere makes progress"


@pytest.mark.parametrize("spare", [False, True])
def test_the_allowed_pause_of_a_node_is_configurable(spare: bool) -> None:
    timeouts = {**config().timeouts, "node": Timeout(60.0), "node_spare": Timeout(20.0), "agent": Timeout(100.0)}
    bench = with_spare(timeouts=timeouts) if spare else trains(replace(config(), timeouts=timeouts))
    hearing, silent_s = ((0, 2), 20.0) if spare else ((0,), 60.0)
    bench.pass_time(silent_s, *hearing)
    assert "lost" not in bench.notes()
    bench.pass_time(1.0, *hearing)
    assert "lost" in bench.notes()


@pytest.mark.parametrize("way", ["its connection stays", "we end its connection", "a rank elsewhere fails"])
def test_a_node_that_pauses_for_seconds_is_not_lost_without_a_spare(way: str) -> None:
    """A virtual machine that migrates, or a host that swaps; messages to it may time out."""
    bench = trains(patient())
    bench.pass_time(4.0, 0)
    if way == "we end its connection":
        bench.do(Lost(1, unanswered=True))
    if way == "a rank elsewhere fails":
        bench.end(0, 1)
    bench.pass_time(4.5, 0)
    assert "lost" not in bench.notes()
    if way == "we end its connection":
        bench.do(joined(1, 1, (2, 3)))
    bench.pass_time(2.0, 0, 1, step=3)
    assert bench.notes().count("lost") == 0
    assert bench.machine.phase is (Phase.STOPPING if way == "a rank elsewhere fails" else Phase.RUNNING)


def test_a_node_with_dead_processes_is_lost_at_once_even_without_a_spare() -> None:
    bench = trains()
    bench.do(Lost(1))
    bench.end(0, 1)
    bench.pass_time(ENDED_S + 0.1, 0, step_s=0.1)
    assert bench.note("lost")["why"] == "its connection ended, and ranks elsewhere have ended"


def test_during_a_restore_a_node_has_the_agents_timeout() -> None:
    bench = Bench().started()
    for _ in range(8):
        bench.now_s += 0.5
        bench.do(bench.beat(0, section="restore"), bench.beat(1, section="restore"), Tick())
    bench.do(Lost(1))
    for _ in range(int(2 * AGENT_S)):
        bench.now_s += 0.5
        bench.do(bench.beat(0, section="restore"), Tick())
    assert bench.notes().count("lost") == 0
    bench.now_s += 0.5
    bench.do(bench.beat(0, section="restore"), Tick())
    assert bench.note("lost")["why"] == "its connection ended, and it has not reconnected for 5 s"


def test_a_coordinator_without_heartbeats_gives_up_no_node() -> None:
    bench = trains()
    bench.do(Lost(0), Lost(1))
    bench.pass_time(1000.0, step_s=5.0)
    assert (bench.machine.phase, bench.notes().count("lost")) == (Phase.RUNNING, 0)


def test_a_coordinator_that_was_itself_stopped_gives_up_no_node() -> None:
    bench = trains()
    bench.now_s += 100 * STALL_S
    bench.do(Tick())
    bench.pass_time(QUIET_S - 0.5, 0, 1)
    assert (bench.machine.phase, bench.notes().count("lost")) == (Phase.RUNNING, 0)


def test_a_node_that_vanishes_before_a_start_is_replaced_by_a_spare() -> None:
    bench = with_spare()
    bench.end_all([-9, 1, 1, 1])
    bench.do(Lost(1))
    bench.pass_time(QUIET_S + 0.5, 0, 2)
    assert bench.machine.phase is Phase.CLAIMING
    assert told(bench.do(Claimed(2, None, 1)), "start")[0]["moved"] == [[1, 2]]


def test_a_node_lost_after_the_claim_does_not_cost_the_claim() -> None:
    bench = with_spare()
    bench.end_all([-9, 1, 1, 1])
    bench.do(Lost(1), Claimed(2, None, 1))
    actions = bench.pass_time(QUIET_S + 0.5, 0, 2)
    assert (claims(actions), told(actions, "start")[0]["moved"], bench.generation) == (0, [[1, 2]], 2)


# --- hangs and stragglers ---------------------------------------------------------------------------------------------


class Script(Watch):
    """A watch with given findings, one per tick."""

    findings: list[Findings]
    probes: list[Mapping[int, Probe]]

    def __init__(self, ranks: int, timeouts: Mapping[str, Timeout], now_s: float, stages: int = 1) -> None:
        super().__init__(ranks, timeouts, now_s, stages)
        self.probes = []

    def tick(self, now_s: float) -> Findings:
        return self.findings.pop(0) if self.findings else Findings()

    def probed(self, ranks: Mapping[int, Probe], now_s: float) -> None:
        self.probes.append(ranks)


def watched(*findings: Findings, **more: Any) -> Bench:
    class Watching(Script):
        pass

    Watching.findings = list(findings)
    return Bench(replace(config(**more), grace_s=10.0), watch=Watching).started()


def test_suspected_ranks_are_probed_where_they_run() -> None:
    bench = watched(Findings(probe=frozenset({1, 2, 3})))
    actions = bench.do(Tick())
    assert actions == [Send(0, 1, orders.ProbeRanks((1,))), Send(1, 1, orders.ProbeRanks((2, 3)))]
    seen = {2: Probe("T", 1.0, 0)}
    bench.do(Probed(1, 1, seen), Probed(1, 0, {3: Probe("T", 1.0, 0)}))
    assert isinstance(bench.machine.watch, Script)
    assert bench.machine.watch.probes == [seen]


def test_a_hang_ends_the_generation_and_names_the_culprits_node() -> None:
    hang = Hang((3,), "compute", 4.0, "its process is stopped")
    bench = watched(Findings(hang=hang), budget=0)
    assert told(bench.do(Tick()), "stop") == [{"grace_s": 0.0}]
    assert bench.note("hang") == {**vars(hang), "ranks": [3]}
    for rank in range(4):
        bench.end(rank, -9, asked=True)
    failure = bench.finish().failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.node) == (CauseKind.HANG, 3, 1)
    assert bench.finish().cause.endswith("no heartbeat for 4.0 s in compute: its process is stopped")


def test_a_straggler_is_only_recorded() -> None:
    bench = watched(Findings(stragglers=(Straggler(2, 1.5, 0.3),)))
    bench.do(Tick())
    assert bench.note("straggler") == {"rank": 2, "ratio": 1.5, "own_step_s": 0.3, "node": 1, "host": "host-1"}
    assert bench.machine.phase is Phase.RUNNING


# --- how a generation ends --------------------------------------------------------------------------------------------


def test_the_run_completes_when_all_ranks_finish() -> None:
    bench = Bench().started()
    for rank in range(3):
        assert bench.end(rank, 0, step=50) == []
    actions = bench.end(3, 0, step=50)
    assert (bench.finish().exit_code, bench.finish().step, bench.finish().failure) == (Exit.COMPLETED, 50, None)
    assert told(actions, "stop") == [{"exit_code": 0}]
    assert bench.end(3, 0) == bench.join_all() == bench.do(Tick()) == []


def test_the_first_failure_stops_all_ranks_before_the_next_generation() -> None:
    bench = Bench().started()
    assert told(bench.end(1, 1), "stop") == [{}]
    assert bench.end(0, -15, asked=True) == bench.end(2, -15, asked=True) == []
    assert claims(bench.end(3, -9, asked=True)) == 1


def test_exits_reported_together_are_one_event() -> None:
    bench = Bench().started()
    ends = tuple(Ended(rank, 0, -9, "killed by 9", False, 7) for rank in (0, 1))
    assert len(told(bench.do(Exited(0, 1, ends)), "stop")) == 1
    assert bench.machine.generation.alive == {2, 3}


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 1, 2, 3), (3, 2, 0, 1)])
def test_the_killed_rank_is_named_even_if_a_peers_error_arrives_first(order: tuple[int, ...]) -> None:
    bench = Bench(config(budget=0)).started()
    for rank in order:
        bench.end(rank, -9 if rank == 1 else 1, step=7)
    failure = bench.finish().failure
    assert failure is not None
    assert (failure.rank, failure.node, failure.host, failure.text, failure.step) == (1, 0, "host-0", "killed by 9", 7)


def test_a_rank_ended_by_headway_is_not_the_cause() -> None:
    bench = Bench(config(budget=0)).started()
    bench.end(2, -9, asked=True)
    bench.end_all([1, -15, 0, -15])
    failure = bench.finish().failure
    assert failure is not None
    assert (failure.rank, failure.text) == (1, "killed by 15")


def test_the_rank_that_disagreed_is_the_cause_and_not_those_that_noticed() -> None:
    """A rank whose data has changed fails alone; its peers exit with the code that they agree on."""
    bench = Bench(config(budget=0)).started(BASE)
    bench.end(0, Exit.UNVERIFIED)
    bench.say("exception", rank=1, text="ValueError: the data has changed", type="ValueError")
    bench.end(1, 1)
    bench.end(2, Exit.UNVERIFIED)
    bench.end(3, Exit.UNVERIFIED)
    assert bench.finish().cause.endswith("exit code 1: ValueError: the data has changed")


def test_codes_that_all_ranks_agree_on_stop_no_rank() -> None:
    for code in (Exit.COMPLETED, Exit.PREEMPTED, Exit.UNVERIFIED, Exit.SUPERSEDED):
        assert told(Bench().started().end(0, code), "stop") == []


def test_a_superseded_generation_ends_the_attempt_with_85() -> None:
    bench = Bench().started()
    bench.end_all([Exit.SUPERSEDED, 1, Exit.SUPERSEDED, 1])
    assert bench.finish().exit_code is Exit.SUPERSEDED


def test_a_repeated_exit_or_one_of_another_generation_does_not_count() -> None:
    bench = Bench().started()
    bench.end_all([1, 1, 1, 1])
    bench.started()
    assert bench.generation == 2
    assert bench.end(0, 1, generation=1) == []
    bench.end(0, 0)
    assert bench.end(0, 1) == []
    assert bench.machine.phase is Phase.RUNNING


def test_evidence_of_an_earlier_generation_does_not_count() -> None:
    bench = Bench().started()
    bench.end_all([1, 1, 1, 1])
    bench.started()
    bench.do(evidence(0, 1, {"what": "committed", "rank": 0, "step": 99, "save_s": 1.0, "bytes": 1}))
    assert bench.machine.committed_step is None


def test_notes_of_an_agent_are_journaled() -> None:
    bench = Bench().started()
    moved = {"path": "last.ckpt", "now": "last.ckpt.refused", "why": "its bytes changed"}
    bench.do(evidence(1, 1, {"what": "note", "kind": "refused file", **moved}))
    assert bench.note("refused file") == {**moved, "node": 1}


# --- refused bases ----------------------------------------------------------------------------------------------------


def test_the_next_claim_excludes_a_refused_base_at_no_cost() -> None:
    bench = Bench(config(budget=1)).started(BASE)
    facts = {"step": 20, "generation": 1, "tier": "shared", "name": "data-0-0.bin", "reason": "changed"}
    bench.say("refused", rank=3, **facts)
    bench.say("refused", rank=3, **facts)
    actions = bench.end_all([Exit.UNVERIFIED] * 4)
    assert actions == [MakeClaim(frozenset({(CheckpointId(20, 1), "shared")}))]
    assert (bench.machine.policy.budget, bench.machine.policy.restarts) == (1, 0)
    assert bench.notes().count("refused") == 1
    older = Base(10, 1, "cd")
    bench.started(older)
    bench.say("refused", rank=0, **{**facts, "step": 10})
    both = frozenset({(CheckpointId(20, 1), "shared"), (CheckpointId(10, 1), "shared")})
    assert bench.end_all([Exit.UNVERIFIED] * 4) == [MakeClaim(both)]


UNREAD = {"step": 20, "generation": 1, "tier": "shared", "name": "manifest.json", "reason": "Stale file handle"}


def test_a_base_unreadable_on_one_node_is_not_refused_and_names_the_node() -> None:
    bench = Bench().started(BASE)
    bench.say("unread", rank=3, **UNREAD)
    bench.say("unread", rank=2, **UNREAD)
    actions = bench.end_all([Exit.UNVERIFIED] * 4)
    assert (claims(actions), bench.machine.refused) == (0, set())
    finish = bench.finish()
    assert (finish.exit_code, finish.suspects) == (Exit.RETRY_ELSEWHERE, (1,))
    assert finish.cause.startswith(
        "host-1 could not read step 20 of generation 1 in tier `shared`: manifest.json: Stale file handle"
    )
    assert bench.note("unread")["node"] == 1


def test_a_base_refused_by_one_node_and_unread_by_another_ends_the_attempt() -> None:
    bench = Bench().started(BASE)
    bench.say("refused", rank=0, **{**UNREAD, "reason": "changed"})
    bench.say("unread", rank=3, **UNREAD)
    assert claims(bench.end_all([Exit.UNVERIFIED] * 4)) == 0
    assert bench.finish().suspects == (1,)


def test_if_no_node_can_read_the_base_none_is_the_suspect() -> None:
    bench = Bench().started(BASE)
    for rank in range(4):
        bench.say("unread", rank=rank, **UNREAD)
    assert claims(bench.end_all([1] * 4)) == 0
    assert (bench.finish().exit_code, bench.finish().suspects) == (Exit.RETRY_ELSEWHERE, ())


def test_a_failure_long_after_an_abandoned_read_is_judged_separately() -> None:
    bench = Bench().started(BASE)
    bench.say("unread", rank=3, **UNREAD)
    bench.loaded()
    assert claims(bench.end_all([-9, 1, 1, 1], step=40)) == 1


def test_a_heartbeat_about_another_nodes_ranks_is_ignored() -> None:
    bench = Bench().started()
    before = bench.machine.vitals.step
    for ranks in ({2: 9}, {0: 9, 4: 9}, {-1: 9}):
        bench.do(Beat(0, 1, None, {rank: RankBeat(step, "compute", step, 0.0) for rank, step in ranks.items()}))
    assert (bench.machine.vitals.step, bench.machine.best_step) == (before, before)


# --- captures in the nodes' memory ------------------------------------------------------------------------------------

TWO_TIERS = Checkpoint((Tier("memory", 2), Tier("shared", 10)))
WHOLE = CheckpointId(24, 1)


def holding(rank: int, step: int = 24, generation: int = 1) -> dict[str, Any]:
    return {"rank": rank, "step": step, "generation": generation, "part_xxh3_128": f"{rank:032x}", "bytes": 10}


def failed(**more: Any) -> Bench:
    """A run whose ranks have all ended after its first generation, and which keeps captures in memory."""
    bench = Bench(replace(config(), checkpoint=TWO_TIERS, run="run-1", **more)).started()
    bench.end_all([-9, 1, 1, 1], step=25)
    return bench


def held(node: int, *holdings: dict[str, Any], generation: int = 1) -> Event:
    return evidence(node, generation, {"what": "held", "holdings": list(holdings)})


def claimed(actions: Sequence[Action]) -> MakeClaim:
    (found,) = [action for action in actions if isinstance(action, MakeClaim)]
    return found


def test_no_survey_before_the_first_generation_or_without_memory_tier() -> None:
    first = Bench(replace(config(), checkpoint=TWO_TIERS))
    assert claims(first.join_all()) == 1
    assert claims(Bench().started().end_all([-9, 1, 1, 1])) == 1


def test_the_claim_includes_every_ranks_captures_on_any_node() -> None:
    bench = failed()
    assert told(bench.actions, "survey") == [{}]
    assert bench.do(held(0, holding(0), holding(1), holding(2), holding(2, step=26))) == []
    claim = claimed(bench.do(held(1, holding(3), holding(0))))
    assert list(claim.held) == [WHOLE]
    manifest = memory_manifest("run-1", WHOLE, bench.config.mesh, [f"{rank:032x}" for rank in range(4)])
    assert claim.held[WHOLE] == xxhash.xxh3_128_hexdigest(manifest)


def test_a_capture_with_a_missing_rank_does_not_count() -> None:
    bench = failed()
    bench.do(held(0, holding(0), holding(1)))
    assert claimed(bench.do(held(1, holding(3)))).held == {}


def test_a_node_that_does_not_respond_holds_nothing() -> None:
    bench = failed()
    bench.do(held(0, holding(0), holding(1)))
    assert bench.pass_time(SURVEY_S, 0, 1) == []
    assert claimed(bench.pass_time(0.1, 0, 1)).held == {}
    assert bench.do(held(1, holding(2), holding(3))) == []


def test_a_lost_node_is_not_awaited_and_its_partners_copies_count() -> None:
    bench = Bench(replace(config(), checkpoint=TWO_TIERS, run="run-1", spares=1))
    bench.do(joined(2))
    bench.started()
    bench.do(Lost(1))
    bench.end(0, 1)
    bench.end(1, 1)
    bench.pass_time(ENDED_S + 0.5, 0, 2)
    assert bench.machine.phase is Phase.SURVEYING
    assert bench.do(held(0, *(holding(rank) for rank in range(4)))) == [], "the spare may hold some too"
    assert list(claimed(bench.do(held(2))).held) == [WHOLE]


def test_a_node_that_returns_is_surveyed_again() -> None:
    bench = failed()
    assert sent(bench.do(held(0), joined(1, 1)), "survey") == [1]
    assert claims(bench.do(held(1))) == 1


def test_a_node_replaced_while_it_returns_is_not_awaited() -> None:
    bench = Bench(replace(config(), checkpoint=TWO_TIERS, run="run-1", spares=1))
    bench.do(joined(2))
    bench.started()
    bench.say("corrupted", ranks=[2], found="a gradient differs", sound_step=0)
    bench.end(0, 1)
    bench.end(1, 1)
    # It restarts without its ranks, which ends the generation.
    bench.do(joined(1))
    assert (bench.machine.phase, sorted(bench.machine.roster.slot_of)) == (Phase.SURVEYING, [0, 2])
    assert claims(bench.do(held(0), held(2))) == 1


def test_a_refused_copy_is_not_offered_again_but_its_twin_on_disk_is() -> None:
    bench = failed()
    everything = [holding(rank) for rank in range(4)]
    bench.do(held(0, *everything), held(1))
    bench.started(Base(24, 1, "ab", "memory"))
    bench.say("refused", step=24, generation=1, tier="memory", name="memory-0", reason="changed")
    bench.end_all([Exit.UNVERIFIED] * 4)
    claim = claimed(bench.do(held(0, *everything, generation=2), held(1, generation=2)))
    assert (claim.refused, claim.held) == (frozenset({(WHOLE, "memory")}), {})


# --- preemption -------------------------------------------------------------------------------------------------------


def preempted(node: int = 1, generation: int = 0, **facts: Any) -> Event:
    return evidence(node, generation, {"what": "preempted", **facts})


def test_the_builtin_trainer_saves_and_the_attempt_ends_with_82() -> None:
    bench = Bench().started().loaded()
    assert told(bench.do(preempted()), "save") == [{}]
    assert bench.do(preempted(0)) == []
    bench.end_all([Exit.PREEMPTED] * 4, step=30)
    assert (bench.finish().exit_code, bench.finish().step) == (Exit.PREEMPTED, 30)


def test_ranks_that_have_not_restored_yet_are_ended_without_a_save() -> None:
    bench = Bench().started()
    assert (told(bench.do(preempted()), "stop"), told(bench.actions, "save")) == ([{}], [])
    bench.end_all([-9] * 4)
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_script_is_stopped_and_the_attempt_ends_with_82() -> None:
    bench = Bench(config("script")).started()
    assert len(told(bench.do(preempted()), "stop")) == 1
    bench.end_all([-15] * 4)
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_crash_while_saving_still_ends_with_82() -> None:
    bench = Bench().started().loaded()
    bench.do(preempted())
    bench.end_all([-9, 1, 1, 1])
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_base_refused_during_preemption_starts_no_generation() -> None:
    bench = Bench().started(BASE)
    bench.do(preempted())
    bench.say("refused", step=20, generation=1, tier="shared", name="x", reason="changed")
    bench.end_all([Exit.UNVERIFIED] * 4)
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_run_that_finishes_while_preempted_is_complete() -> None:
    bench = Bench().started().loaded()
    bench.do(preempted())
    bench.end_all([0] * 4)
    assert bench.finish().exit_code is Exit.COMPLETED


def test_preemption_with_no_running_ranks_ends_the_attempt_at_once() -> None:
    gathering, claiming, waiting, surveying = Bench(), Bench(), Bench(), failed()
    gathering.do(joined(0))
    claiming.join_all()
    waiting.join_all()
    waiting.do(Lost(0), Claimed(1, None, 1))
    for bench in (gathering, claiming, waiting, surveying):
        bench.do(preempted())
        assert bench.finish().exit_code is Exit.PREEMPTED
        assert bench.do(Claimed(bench.generation + 1, None, 1), Beat(0, 0, 4000, {})) == []


def test_a_stop_request_to_a_spare_stops_the_run() -> None:
    bench = with_spare()
    bench.loaded()
    assert told(bench.do(preempted(2)), "save") == [{}]


def test_preemption_during_a_stop_starts_no_other_generation() -> None:
    bench = Bench().started()
    bench.end(0, 1)
    bench.do(preempted())
    bench.end_all([1, 1, 1, 1])
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_an_impossible_save_ends_within_the_grace() -> None:
    bench = Bench().started().loaded()
    bench.do(preempted(0))
    grace_s = bench.config.grace_s
    assert told(bench.pass_time(GRACE_SHARE * grace_s, 0, 1, step=1), "stop") == []
    assert told(bench.pass_time(0.5, 0, 1, step=1), "stop") == [{}]
    for rank in range(4):
        bench.end(rank, -9, asked=True)
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_undying_ranks_do_not_exceed_the_grace() -> None:
    bench = Bench(config("script")).started()
    bench.do(preempted(0))
    bench.pass_time(LAST_SHARE * bench.config.grace_s + 0.5, 0, 1)
    assert (bench.finish().exit_code, told(bench.actions, "stop")[-1]) == (Exit.PREEMPTED, {"exit_code": 82})


def test_the_grace_counts_from_the_signal_and_not_from_its_report() -> None:
    bench = Bench(replace(config("script"), grace_s=100.0)).started()
    (body,) = told(bench.do(preempted(0, age_s=30.0)), "stop")
    assert body == {"grace_s": pytest.approx(GRACE_SHARE * 100.0 - 30.0)}


def test_a_script_that_exits_with_0_after_a_stop_request_was_preempted() -> None:
    bench = Bench(replace(config(), trainer=Trainer("script", {"argv": ["x.py"]}), checkpoint=Checkpoint())).started()
    bench.do(preempted(0))
    bench.end_all([0, 0, 0, 0])
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_script_gets_the_grace_to_save_only_when_the_run_is_to_stop() -> None:
    settings = replace(config(kind="script"), grace_s=100.0)
    asked, failing = Bench(settings).started(), Bench(settings).started()
    asked.do(preempted(0, 1))
    failing.end(0, 1)
    grace_s = GRACE_SHARE * 100.0
    assert (told(asked.actions, "stop"), told(failing.actions, "stop")) == ([{"grace_s": grace_s}], [{}])
    assert Send(1, 1, orders.Stop(grace_s)) in asked.do(Lost(1), joined(1, 1, (2, 3))), "the same to one that comes back"


# --- budget and progress ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "code"), [("builtin", Exit.RETRY_ELSEWHERE), ("script", Exit.STOP)])
def test_the_budget_limits_restarts(kind: str, code: Exit) -> None:
    bench = Bench(config(kind, budget=2, refill_steps=1000))
    for step in (10, 20, 30):
        bench.started()
        bench.end_all([-9, 1, 1, 1], step=step)
    assert (bench.finish().exit_code, bench.machine.policy.restarts, bench.generation) == (code, 2, 3)
    assert "no restart left in the budget of 2" in bench.finish().cause


def test_new_steps_restore_restarts_up_to_the_budget() -> None:
    bench = Bench(config(budget=1, refill_steps=100))
    # The second and the fourth earn a restart.
    for step in (60, 120, 180, 240):
        bench.started()
        bench.end_all([-9, 1, 1, 1], step=step)
    assert (bench.finish().exit_code, bench.generation) == (Exit.RETRY_ELSEWHERE, 3)
    rich = Bench(config(budget=2, refill_steps=10)).started()
    rich.end_all([-9, 1, 1, 1], step=1000)
    assert rich.machine.policy.budget == 1


def test_repeated_steps_restore_no_restarts() -> None:
    bench = Bench(config(budget=2, refill_steps=100, no_progress=9))
    for _ in range(3):
        bench.started()
        bench.end_all([-9, 1, 1, 1], step=99)
    assert bench.finish().exit_code is Exit.RETRY_ELSEWHERE


def test_steps_up_to_the_base_are_not_progress() -> None:
    bench = Bench(config(budget=9, refill_steps=10, no_progress=1)).started(BASE)
    bench.end_all([-9, 1, 1, 1], step=BASE.step)
    assert (bench.finish().exit_code, bench.machine.policy.budget) == (Exit.STOP, 9)


def test_failures_in_a_row_without_a_new_step_stop_the_run() -> None:
    bench = Bench(config(budget=99, no_progress=2))
    for step in (5, 5, 6, 6, 3):
        bench.started()
        bench.end_all([-9, 1, 1, 1], step=step)
    assert (bench.finish().exit_code, bench.generation) == (Exit.STOP, 5)
    assert "2 failures in a row without a new step" in bench.finish().cause


def test_a_scripts_step_count_restarts_with_each_start() -> None:
    bench = Bench(config("script", budget=9, no_progress=2))
    for step in (5, 3, 0, 2, 0):
        bench.started()
        bench.end_all([-9, 1, 1, 1], step=step)
    assert bench.machine.phase is Phase.CLAIMING
    bench.started()
    bench.end_all([-9, 1, 1, 1], step=0)
    assert bench.finish().exit_code is Exit.STOP


def test_generations_without_a_commit_end_the_run_across_attempts() -> None:
    bench = Bench(config(budget=2, no_progress=3))
    bench.join_all()
    assert claims(bench.do(Claimed(5, None, 5))) == 0
    assert bench.machine.phase is Phase.RUNNING
    other = Bench(config(budget=2, no_progress=3))
    other.join_all()
    other.do(Claimed(6, None, 6))
    assert (other.finish().exit_code, other.finish().cause) == (Exit.STOP, "5 generations in a row have saved nothing")


def test_a_script_is_not_expected_to_commit() -> None:
    for kind, verdict in (("builtin", Exit.STOP), ("script", None)):
        bench = Bench(config(kind=kind))
        bench.join_all()
        bench.do(Claimed(9, None, idle=9))
        assert bench.machine.verdict is verdict


def excuses(bench: Bench) -> list[str]:
    """Why an end of the attempt without a verdict would not count against the run."""
    return [action.why for action in bench.actions if isinstance(action, Excuse)]


def test_a_builtin_trainers_attempt_is_excused_by_a_commit_but_not_a_step() -> None:
    bench = Bench().started(BASE).loaded()
    bench.pass_time(2 * DEFAULT_TIMEOUTS["start"].floor_s, 0, 1, step_s=60.0, step=25)
    assert excuses(bench) == []
    bench.say("committed", step=30, save_s=1.0, bytes=1, tier="shared")
    bench.say("committed", step=40, save_s=1.0, bytes=1, tier="shared")
    assert excuses(bench) == ["step 30 is committed"]


def test_an_attempt_with_a_stop_request_is_excused() -> None:
    bench = Bench()
    bench.join_all()
    bench.do(preempted(), preempted(0))
    assert excuses(bench) == ["asked to stop"]


@pytest.mark.parametrize("settings", [config("script"), replace(config(), checkpoint=Checkpoint())])
def test_an_attempt_with_unknown_saves_is_excused_by_its_first_step(settings: RunConfig) -> None:
    bench = Bench(settings).started()
    bench.pass_time(60.0, 0, 1, step=0)
    assert excuses(bench) == []
    bench.pass_time(1.0, 0, 1, step=1)
    assert excuses(bench) == ["step 1 is completed, and what it saves is not known here"]


def test_a_script_without_steps_is_excused_after_the_first_step_timeout() -> None:
    bench = Bench(replace(config("script"), timeouts={**config().timeouts, "start": Timeout(100.0)})).started()
    bench.pass_time(99.0, 0, 1, step=0)
    assert excuses(bench) == []
    bench.pass_time(2.0, 0, 1, step=0)
    assert excuses(bench) == ["its ranks have run for 100 s, and what they save is not known here"]


def test_data_missing_on_one_node_is_the_cause_and_not_its_peers_reset() -> None:
    bench = Bench().started()
    bench.end(2, 1)
    assert told(bench.end(0, Exit.STOP), "stop") == []
    bench.end(1, -9, asked=True)
    bench.end(3, -9, asked=True)
    finish = bench.finish()
    assert (finish.exit_code, finish.failure and finish.failure.rank) == (Exit.STOP, 0)


def test_a_run_at_its_limit_saves_and_stops_and_no_attempt_follows() -> None:
    bench = Bench().started()
    bench.machine.limit_at_s, bench.machine.limit = bench.machine.now_s + 5.0, "20h of all attempts"
    bench.pass_time(4.0, 0, 1)
    assert not bench.machine.preempting
    bench.pass_time(2.0, 0, 1)
    assert bench.machine.preempting
    for rank in range(4):
        bench.end(rank, Exit.PREEMPTED)
    finish = bench.finish()
    assert (finish.exit_code, finish.cause) == (Exit.STOP, "the run has reached its limit: 20h of all attempts")


def test_a_run_beyond_its_limit_starts_nothing() -> None:
    bench = Bench()
    bench.machine.limit_at_s = bench.machine.now_s - 1.0
    bench.pass_time(1.0)
    assert bench.finish().exit_code is Exit.STOP


# --- broken connections -----------------------------------------------------------------------------------------------


def test_a_node_that_never_joins_is_named() -> None:
    bench = Bench(config(slots=3))
    bench.do(joined(0), joined(2))
    assert bench.pass_time(JOIN_S, 0, 2) == []
    bench.pass_time(1.0, 0, 2)
    finish = bench.finish()
    assert (finish.exit_code, finish.suspects) == (Exit.RETRY_ELSEWHERE, (1,))
    assert finish.failure is not None
    assert (finish.failure.node, finish.cause) == (1, "2 of 3 nodes joined (host-0, host-2); silent: [1]")


def test_earlier_coordinators_wait_for_nodes_counts() -> None:
    bench = Bench(config(slots=3))
    bench.machine.waited_before(JOIN_S - 1.0)
    bench.do(joined(0), joined(2))
    bench.pass_time(2.0, 0, 2)
    assert bench.finish().exit_code is Exit.RETRY_ELSEWHERE


def test_a_run_that_has_started_waits_afresh_for_its_nodes() -> None:
    bench = Bench(config(slots=3)).started()
    bench.machine.waited_before(JOIN_S)
    bench.pass_time(2.0, 0, 1, 2)
    assert bench.machine.verdict is None


def test_one_verdict_follows_when_a_node_is_lost_and_another_never_joins() -> None:
    bench = Bench()
    bench.do(joined(0), Lost(0))
    bench.pass_time(JOIN_S + 1)
    assert "silent: [0, 1]" in bench.finish().cause


def test_a_connection_that_breaks_and_returns_stops_nothing() -> None:
    bench = Bench().started()
    bench.do(Beat(0, 1, None, {}), Beat(1, 1, None, {}))
    actions = bench.do(Lost(0), Lost(1), joined(0, 1, (0, 1)), joined(1, 1, (2, 3)))
    assert actions == [Send(1, 1, orders.Assign(1))]


def test_a_node_that_returns_without_its_workers_ends_the_generation() -> None:
    bench = Bench().started()
    bench.do(Beat(1, 1, None, {}))
    assert len(told(bench.do(joined(1)), "stop")) == 1
    actions = [*bench.end(0, -15, asked=True), *bench.end(1, -15, asked=True)]
    assert claims(actions) == 1
    assert (bench.note("failure")["node"], bench.note("failure")["cause"]) == (1, "its node restarted")


def test_workers_of_another_generation_are_stopped() -> None:
    bench = Bench()
    bench.join_all()
    bench.do(Lost(1), Claimed(4, None, 1))
    assert Send(1, 3, orders.Stop()) in bench.do(joined(1, 3, (2, 3)))


def test_workers_of_a_newer_generation_are_not_stopped() -> None:
    bench = Bench().started()
    assert bench.do(Lost(1), joined(1, 2, (2, 3))) == []


def test_a_missed_stop_or_save_is_sent_again() -> None:
    stopping = Bench().started()
    stopping.end(0, 1)
    assert sent(stopping.do(Lost(1), joined(1, 1, (2, 3))), "stop") == [1]
    saving = Bench().started().loaded()
    saving.do(preempted(0))
    assert sent(saving.do(Lost(1), joined(1, 1, (2, 3))), "save") == [1]


# --- a coordinator that takes over ------------------------------------------------------------------------------------


def test_a_coordinator_adopts_a_generation_that_runs_everywhere() -> None:
    bench = Bench(newest=3)
    bench.join_all(generation=3, running=True)
    assert (sent(bench.actions, "stop"), told(bench.actions, "start")) == ([], [])
    assert claims(bench.actions) == 0
    assert (bench.notes(), bench.machine.phase) == (["adopted"], Phase.RUNNING)
    bench.pass_time(1.0, 0, 1, step=8)
    assert told(bench.actions, "start") == []
    bench.end_all([0] * 4, step=9)
    assert (bench.finish().exit_code, bench.finish().step) == (Exit.COMPLETED, 9)


def test_a_coordinator_adopts_a_binding_that_has_moved() -> None:
    bench = Bench(replace(config(), spares=1), newest=3, slots={0: 0, 1: 2})
    bench.do(joined(0, 3, (0, 1)), joined(2, 3, (2, 3)), joined(1))
    assert bench.notes() == ["adopted"]
    assert Send(1, 3, orders.Assign(None)) in bench.actions


def test_a_node_that_was_lost_with_the_coordinator_is_replaced() -> None:
    """The first node was lost with its coordinator; the spare's supervisor has started this one."""
    bench = Bench(replace(config(), spares=1), newest=3)
    bench.do(joined(2), joined(1, 3, (2, 3)))
    for rank in (2, 3):
        bench.end(rank, 1)
    bench.pass_time(ENDED_S + 0.5, 1, 2)
    assert bench.note("lost")["node"] == 0
    assert told(bench.do(Claimed(4, None, 1)), "start")[0]["moved"] == [[0, 2]]


def test_nodes_have_time_to_rejoin_a_coordinator_unless_ranks_ended() -> None:
    bench = Bench(replace(config(), spares=1), newest=3)
    bench.do(joined(2), joined(1, 3, (2, 3)))
    bench.pass_time(REJOIN_S - 0.5, 2)
    assert bench.notes() == []
    bench.do(joined(0, 3, (0, 1)))
    assert bench.notes() == ["adopted"]


def test_a_node_that_does_not_rejoin_is_lost_if_no_rank_makes_progress() -> None:
    """The node with all slots was lost with its coordinator."""
    bench = Bench(replace(config(slots=1), spares=1), newest=3, slots={0: 0})
    bench.do(joined(1))
    bench.pass_time(REJOIN_S + 1.0, 1)
    assert bench.note("lost")["node"] == 0
    assert claims(bench.actions) == 1


def test_exits_reported_before_all_nodes_joined_count() -> None:
    """Rank 1 was killed while there was no coordinator; its node is the first to return."""
    bench = Bench(config(budget=0), newest=3)
    bench.do(joined(0, 3, (0,)))
    assert len(told(bench.end(1, -9), "stop")) == 1
    assert sent(bench.do(joined(1, 3, (2, 3))), "stop") == [1]
    bench.end(0, 1)
    bench.end_all([1, 1, 1, 1])
    failure = bench.finish().failure
    assert failure is not None
    assert (failure.rank, failure.text) == (1, "killed by 9")


def test_a_run_that_finished_meanwhile_is_complete_and_starts_nothing() -> None:
    bench = Bench(newest=3)
    bench.do(joined(0, 3))
    bench.end(0, 0)
    bench.end(1, 0)
    bench.do(joined(1, 3))
    bench.end(2, 0)
    bench.end(3, 0)
    assert bench.finish().exit_code is Exit.COMPLETED
    assert claims(bench.actions) == 0
    assert "adopted" not in bench.notes()


def test_a_generation_unknown_to_one_node_is_ended_everywhere() -> None:
    for other in (0, 2):
        bench = Bench(newest=3)
        bench.do(joined(0, 3, (0, 1)))
        assert len(told(bench.do(joined(1, other)), "stop")) == 1
        assert claims(bench.actions) == 0
        bench.end(0, -15, asked=True)
        assert claims(bench.end(1, -15, asked=True)) == 1


def test_a_start_that_reached_no_node_is_followed_by_the_next_at_no_cost() -> None:
    bench = Bench(config(budget=0), newest=3)
    assert claims(bench.join_all(generation=2)) == 1


def test_a_claim_that_never_started_is_followed_by_one_on_the_same_nodes() -> None:
    machine = Coordinator(replace(config(), spares=1), Inherited(3, slots={0: 0, 1: 2}), 0.0)
    actions = machine.handle(joined(0, 2), 0.0)
    assert (claims(actions), machine.roster.slots) == (1, {0: 0, 1: 2})


def test_preemption_reaches_nodes_that_return_later() -> None:
    bench = Bench(newest=3)
    bench.do(joined(0, 3, (0, 1)))
    assert told(bench.do(preempted(0, 3)), "save") == [{}]
    assert sent(bench.do(joined(1, 3, (2, 3))), "save") == [1]
    bench.end_all([Exit.PREEMPTED] * 4)
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_repeated_report_is_journaled_once() -> None:
    bench = Bench().started().loaded().loaded()
    for _ in range(2):
        bench.say("committed", step=10, bytes=1, save_s=0.1)
    assert bench.notes().count("loaded") == bench.notes().count("committed") == 1
    assert bench.machine.committed_step == 10


# --- every wait is bounded --------------------------------------------------------------------------------------------


def stopping(settings: RunConfig | None = None, *, spare: bool = False, grace_s: float = 0.0) -> Bench:
    """Rank 0 has failed, and all but rank 3 have ended since: SIGKILL does not end it."""
    bench = with_spare() if spare else trains(settings)
    bench.end(0, 1, step=5)
    for rank in (1, 2):
        bench.end(rank, -9, step=5, asked=True)
    return bench


def undead(rank: int = 3, state: str = "D") -> Event:
    return evidence(1, 1, {"what": "undead", "workers": [{"rank": rank, "state": state}]})


def undying(bench: Bench, hearing: Sequence[int] = (0, 1), said: bool = True) -> list[Action]:
    """Let enough time pass that rank 3 is no longer awaited."""
    bench.pass_time(KILL_S / 2, *hearing)
    if said:
        bench.do(undead(), undead())
    assert bench.machine.phase is Phase.STOPPING
    return bench.pass_time(KILL_S / 2 + 1.0, *hearing)


def test_a_node_with_a_rank_that_survives_sigkill_is_replaced_by_a_spare() -> None:
    bench = stopping(spare=True)
    undying(bench, (0, 1, 2))
    assert claims(bench.actions) == 2
    lost = bench.note("lost")
    assert (lost["node"], lost["undying"]) == (1, [3])
    assert lost["why"].startswith(f"rank 3 (state D) does not exit on SIGKILL, for {KILL_S:.0f} s")
    assert "HEADWAY_TIMEOUT_KILL" in lost["why"]
    assert bench.notes().count("undead") == 1
    assert (bench.note("failure")["rank"], bench.note("failure")["node"]) == (0, 0), "what began it is the cause"
    (body,) = told(bench.do(Claimed(2, None, 1)), "start")
    assert body["moved"] == [[1, 2]]


@pytest.mark.parametrize("said", [True, False], ids=["reported by its supervisor", "not reported"])
def test_a_rank_that_survives_sigkill_ends_the_attempt_without_a_spare(said: bool) -> None:
    bench = stopping()
    undying(bench, said=said)
    finish = bench.finish()
    assert (finish.exit_code, finish.suspects) == (Exit.RETRY_ELSEWHERE, (1,))
    assert finish.cause.startswith(f"exit code 1; host-1: rank 3{' (state D)' if said else ''} does not exit on SIGKILL")


def test_a_rank_of_the_only_node_that_survives_sigkill_ends_the_attempt() -> None:
    bench = Bench(config("script", slots=1)).started()
    bench.end(0, 1)
    bench.pass_time(KILL_S + TERMINATE_S + 0.5, 0)
    assert (bench.finish().exit_code, bench.finish().suspects) == (Exit.RETRY_ELSEWHERE, (0,))


def test_a_script_has_its_grace_before_it_counts_as_undying() -> None:
    bench = Bench(replace(config("script"), timeouts={"terminate": Timeout(100.0), "kill": Timeout(200.0)})).started()
    bench.end(0, 1)
    bench.pass_time(300.0, 0, 1)
    assert bench.notes() == ["claim", "start"]
    bench.pass_time(1.0, 0, 1)
    assert "lost" in bench.notes()


def test_a_node_with_an_undying_rank_is_unused_until_that_rank_has_ended() -> None:
    timeouts = {"replace": Timeout(600.0)}
    bench = stopping(replace(config(), timeouts=timeouts))
    undying(bench)
    bench.do(joined(1, 1, (3,)))
    bench.pass_time(10.0, 0, 1)
    assert (bench.machine.phase, claims(bench.actions)) == (Phase.REPLACING, 1)
    assert claims(bench.do(Exited(1, 1, (Ended(3, 1, -9, "killed by SIGKILL", True, 5),)))) == 1
    assert bench.machine.roster.slots == {0: 0, 1: 1}


def test_a_node_that_restarted_after_an_undying_rank_computes_again() -> None:
    bench = stopping(replace(config(), timeouts={"replace": Timeout(600.0)}))
    undying(bench)
    assert claims(bench.do(joined(1))) == 1


def test_the_next_coordinator_has_the_undying_ranks() -> None:
    machine = Coordinator(replace(config(), spares=1), Inherited(2, slots={0: 0, 1: 1}, undying={1: frozenset({3})}), 0.0)
    for node, running in ((0, ()), (1, (3,)), (2, ())):
        actions = machine.handle(joined(node, 1, running), 0.0)
    assert (claims(actions), machine.roster.slots) == (1, {0: 0, 1: 2})


def test_the_next_coordinator_ends_ranks_ordered_ended_by_the_previous() -> None:
    """The stop was sent, and every remaining rank ignores it: nothing else would indicate that this generation is over."""
    bench = Bench(newest=1)
    bench.do(joined(0, 1, (0, 1)), joined(1, 1, (2, 3)))
    assert bench.machine.phase is Phase.RUNNING
    assert told(bench.do(undead()), "stop")
    for rank in (0, 1, 2):
        bench.end(rank, -9, step=5, asked=True)
    undying(bench)
    finish = bench.finish()
    assert (finish.exit_code, finish.suspects) == (Exit.RETRY_ELSEWHERE, (1,))
    assert "rank 3 (state D) does not exit on SIGKILL" in finish.cause


def test_a_supervisors_report_of_unknown_ranks_changes_nothing() -> None:
    bench = stopping()
    bench.do(undead(rank=7), evidence(1, 9, {"what": "undead", "workers": [{"rank": 3, "state": "D"}]}))
    assert "undead" not in bench.notes()


def test_a_hang_whose_culprit_cannot_be_ended_is_still_the_cause() -> None:
    hang = Hang((3,), "restore", 1800.0, "it stands still")
    bench = watched(Findings(hang=hang))
    bench.do(Tick())
    for rank in range(3):
        bench.end(rank, -9, asked=True)
    bench.pass_time(KILL_S + 0.5, 0, 1)
    assert (bench.note("failure")["cause_kind"], bench.note("failure")["rank"]) == ("hang", 3)
    assert bench.finish().exit_code is Exit.RETRY_ELSEWHERE


def deaf(node: int, heard: Sequence[int], bench: Bench, seconds: float) -> list[Action]:
    """Let this time pass while the nodes in `heard` send heartbeats, and `node` has no open socket."""
    found: list[Action] = []
    until_s = bench.now_s + seconds
    while bench.now_s < until_s:
        bench.now_s += 0.5
        for each in heard:
            found += bench.do(Beat(each, bench.generation - 1, None if each == node else 5000 + each, {}))
        found += bench.do(Tick())
    return found


def test_a_node_that_cannot_listen_passes_slot_0_to_another() -> None:
    bench = with_spare()
    bench.do(joined(3))
    bench.do(Lost(0))
    for rank in (2, 3):
        bench.end(rank, 1)
    bench.pass_time(ENDED_S + 0.5, 1, 2, 3)
    bench.do(Joined(2, "host-2", 1, (), None, None), Claimed(2, None, 1))
    assert told(deaf(2, (1, 2, 3), bench, LISTEN_S), "start") == []
    (body,) = told(deaf(2, (1, 2, 3), bench, 1.0), "start")
    assert (body["moved"], body["master_addr"]) == ([[0, 3]], "host-3")
    why = [
        action.entry.why for action in bench.actions if isinstance(action, Note) and isinstance(action.entry, journal.LostNode)
    ][-1]
    assert why.startswith(f"it could not listen on its own name, host-2, for {LISTEN_S:.0f} s")
    assert "HEADWAY_TIMEOUT_LISTEN" in why


@pytest.mark.parametrize("generation", [1, 2])
def test_the_attempt_ends_with_the_reason_if_no_node_can_take_slot_0(generation: int) -> None:
    bench = Bench()
    if generation == 1:
        bench.do(Joined(0, "host-0", 0, (), None, None), joined(1), Claimed(1, None, 1))
    else:
        bench.started()
        bench.end_all([-9, 1, 1, 1])
        bench.do(Claimed(2, None, 1))
    deaf(0, (0, 1), bench, LISTEN_S + 1.0)
    finish = bench.finish()
    assert (finish.exit_code, finish.suspects) == (Exit.RETRY_ELSEWHERE, (0,))
    assert "host-0: it could not listen on its own name" in finish.cause


def test_a_node_that_could_not_listen_is_awaited_and_used_once_it_can() -> None:
    bench = Bench(replace(config(), timeouts={"replace": Timeout(600.0)}))
    bench.do(Joined(0, "host-0", 0, (), None, None), joined(1), Claimed(1, None, 1))
    deaf(0, (0, 1), bench, LISTEN_S + 1.0)
    bench.do(Joined(0, "host-0", 0, (), None, None))
    deaf(0, (0, 1), bench, 300.0)
    assert bench.machine.phase is Phase.REPLACING
    (body,) = told(bench.do(Beat(0, 0, 6000, {})), "start")
    assert (body["moved"], body["master_port"]) == ([], 6000)


def test_an_unresponsive_store_ends_the_attempt() -> None:
    bench = Bench()
    bench.join_all()
    bench.pass_time(STORE_S, 0, 1)
    assert bench.machine.phase is Phase.CLAIMING
    bench.pass_time(0.5, 0, 1)
    assert bench.finish().exit_code is Exit.RETRY_ELSEWHERE
    assert "HEADWAY_TIMEOUT_STORE" in bench.finish().cause


# --- suspension of the whole job --------------------------------------------------------------------------------------

HOUR_S = 3600.0


@pytest.mark.parametrize("ticks_first", [True, False])
def test_a_run_that_was_suspended_as_a_whole_continues(ticks_first: bool) -> None:
    """Heartbeats come from agents that do not count the pause; the coordinator ticks before or after they arrive."""
    bench = trains()
    bench.now_s += HOUR_S
    bench._sign = bench.now_s - 0.1, 2
    beats = [bench.beat(0), bench.beat(1)]
    events: list[Event] = [Tick(), *beats] if ticks_first else [*beats, Tick()]
    bench.do(*events)
    bench.pass_time(3.0, 0, 1)
    assert bench.machine.vitals.quiet_s(bench.now_s) > 2.0, "a node that dies now is found as soon as before"
    bench.pass_time(5.0, 0, 1, step=3)
    assert (bench.machine.phase, bench.notes()) == (Phase.RUNNING, ["claim", "start"])


def test_the_coordinators_own_pause_expires_no_timeout() -> None:
    """Neither ranks that are being ended, nor the store, nor nodes that are awaited."""
    ending = stopping()
    claiming, waiting, deaf_ = Bench(), Bench(), Bench()
    claiming.join_all()
    waiting.do(joined(0))
    deaf_.do(Joined(0, "host-0", 0, (), None, None), joined(1), Claimed(1, None, 1))
    for bench in (ending, claiming, waiting, deaf_):
        phase = bench.machine.phase
        bench.now_s += HOUR_S
        bench.do(Tick())
        bench.pass_time(5.0, 0, 1)
        assert (bench.machine.phase, bench.notes().count("lost"), bench.machine.verdict) == (phase, 0, None)


def test_a_node_disconnected_during_a_suspension_may_return_afterwards() -> None:
    bench = trains()
    bench.do(Lost(1))
    bench.now_s += HOUR_S
    bench.do(Tick(), joined(1, 1, (2, 3)))
    bench.pass_time(2.0, 0, 1, step=4)
    assert (bench.machine.phase, bench.notes().count("lost")) == (Phase.RUNNING, 0)


# --- every bound is listed --------------------------------------------------------------------------------------------


def test_every_wait_and_its_bound_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "resilience.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| ([\d,]+) s", text, re.MULTILINE)
    assert {name: float(seconds.replace(",", "")) for name, seconds in listed} == {
        name: timeout.floor_s for name, timeout in DEFAULT_TIMEOUTS.items()
    }
    for name in DEFAULT_TIMEOUTS:
        assert f"HEADWAY_TIMEOUT_{name.upper()}" in set_by(name)
