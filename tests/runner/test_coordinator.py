"""The coordinator's decisions, one at a time: what it does when nodes join and are lost, when ranks end, and when it comes back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import xxhash

from headway.runner.checkpoint.chain import Base, CheckpointId
from headway.runner.checkpoint.commit import memory_manifest
from headway.runner.contract import Checkpoint, Exit, Mesh, Restart, RunConfig, Tier, Timeout, Trainer
from headway.runner.coordinator.state import (
    GRACE_SHARE,
    SURVEY_S,
    Action,
    Beat,
    Claimed,
    ClaimRefused,
    Coordinator,
    Event,
    Exited,
    Finish,
    Joined,
    Lost,
    MakeClaim,
    Note,
    Phase,
    Said,
    Send,
    Tick,
)

JOIN_S, AGENT_S = 60.0, 5.0
BASE = Base(20, 1, "ab")


def config(kind: str = "builtin", slots: int = 2, procs: int = 2, **restart: int) -> RunConfig:
    return RunConfig(
        slots=slots,
        procs_per_slot=procs,
        mesh=Mesh(dp_shard=slots * procs),
        trainer=Trainer(kind),
        spec_hash="",
        checkpoint=Checkpoint((Tier("disk", 10),)),
        restart=Restart(**restart),
        timeouts={"join": Timeout(JOIN_S), "agent": Timeout(AGENT_S)},
    )


class Bench:
    """A coordinator with its clock. `do` handles events and returns what the last one led to."""

    def __init__(self, settings: RunConfig | None = None, newest: int = 0) -> None:
        self.config = settings or config()
        self.machine = Coordinator(self.config, newest, now_s=0.0)
        self.now_s = 0.0
        self.actions: list[Action] = []

    def do(self, *events: Event) -> list[Action]:
        found: list[Action] = []
        for event in events:
            found = self.machine.handle(event, self.now_s)
            self.actions += found
        return found

    @property
    def generation(self) -> int:
        return self.machine.generation.number

    def join_all(self, generation: int = 0, running: bool = False) -> list[Action]:
        return self.do(*(joined(node, generation, self.ranks(node) if running else ()) for node in range(self.config.slots)))

    def ranks(self, node: int) -> tuple[int, ...]:
        return tuple(range(node * self.config.procs_per_slot, (node + 1) * self.config.procs_per_slot))

    def started(self, base: Base | None = None) -> "Bench":
        """Claims the next generation and starts it."""
        if self.machine.phase is Phase.GATHERING:
            self.join_all()
        self.do(Claimed(self.generation + 1, base, 1), Beat(0, 4000, {}))
        assert self.machine.generation.started
        return self

    def end(self, rank: int, code: int, step: int = 0, asked: bool = False, generation: int | None = None) -> list[Action]:
        node, how = rank // self.config.procs_per_slot, f"killed by {-code}" if code < 0 else f"exit code {code}"
        return self.do(Exited(node, generation or self.generation, rank, code, how, asked, step))

    def end_all(self, codes: Sequence[int], step: int = 0) -> list[Action]:
        found: list[Action] = []
        for rank, code in enumerate(codes):
            found = self.end(rank, code, step)
        return found

    def say(self, what: str, rank: int = 0, **facts: Any) -> list[Action]:
        return self.do(Said(rank // self.config.procs_per_slot, self.generation, {"what": what, "rank": rank, **facts}))

    def finish(self) -> Finish:
        (found,) = [action for action in self.actions if isinstance(action, Finish)]
        return found

    def notes(self) -> list[str]:
        return [action.kind for action in self.actions if isinstance(action, Note)]


def joined(node: int, generation: int = 0, running: Sequence[int] = ()) -> Joined:
    return Joined(node, f"host-{node}", generation, tuple(running))


def sent(actions: Sequence[Action], kind: str) -> list[int]:
    """The nodes that were told `kind`."""
    return [action.node for action in actions if isinstance(action, Send) and action.kind == kind]


def claims(actions: Sequence[Action]) -> int:
    return sum(isinstance(action, MakeClaim) for action in actions)


# --- starting ---------------------------------------------------------------------------------------------------------


def test_nothing_is_claimed_before_all_nodes_have_joined() -> None:
    bench = Bench()
    assert bench.do(joined(1), Tick(), Beat(1, None, {})) == []
    assert bench.do(joined(0)) == [Send(0, "assign", 0, {"slot": 0}), Send(1, "assign", 0, {"slot": 1}), MakeClaim(frozenset())]


def test_the_start_names_base_and_rendezvous_and_waits_for_the_port() -> None:
    bench = Bench()
    bench.join_all()
    assert sent(bench.do(Claimed(3, BASE, 1)), "start") == []
    assert sent(bench.do(Beat(1, 5000, {})), "start") == []
    starts = [action for action in bench.do(Beat(0, 4000, {})) if isinstance(action, Send)]
    body = {"base": vars(BASE), "master_addr": "host-0", "master_port": 4000, "restarts": 0, "partner": None}
    assert starts == [Send(0, "start", 3, body), Send(1, "start", 3, body)]
    assert bench.do(Beat(0, 4000, {})) == []


def test_a_generation_starts_only_while_all_nodes_are_connected() -> None:
    bench = Bench()
    bench.join_all()
    bench.do(Claimed(1, None, 1), Lost(1))
    assert sent(bench.do(Beat(0, 4000, {})), "start") == []
    bench.do(joined(1))
    assert sent(bench.do(Beat(0, 4000, {})), "start") == [0, 1]


def test_a_port_from_before_a_reconnect_is_not_used() -> None:
    bench = Bench()
    bench.join_all()
    bench.do(Beat(0, 4000, {}), joined(0))
    assert sent(bench.do(Claimed(1, None, 1)), "start") == []
    actions = bench.do(Beat(0, 4001, {}))
    assert [action.body["master_port"] for action in actions if isinstance(action, Send)] == [4001, 4001]


def test_a_refused_claim_ends_the_attempt() -> None:
    for code in (Exit.SUPERSEDED, Exit.UNVERIFIED):
        bench = Bench()
        bench.join_all()
        bench.do(ClaimRefused(code, "because"))
        assert (bench.finish().exit_code, bench.finish().cause) == (code, "because")


# --- how a generation ends --------------------------------------------------------------------------------------------


def test_all_ranks_that_finish_complete_the_run_and_all_agents_are_told_once() -> None:
    bench = Bench().started()
    for rank in range(3):
        assert bench.end(rank, 0, step=50) == []
    actions = bench.end(3, 0, step=50)
    assert (bench.finish().exit_code, bench.finish().step, bench.finish().failure) == (Exit.COMPLETED, 50, None)
    assert [action.body for action in actions if isinstance(action, Send)] == [{"exit_code": 0}] * 2
    assert bench.end(3, 0) == bench.join_all() == bench.do(Tick()) == []


def test_the_first_failure_stops_all_and_the_next_generation_waits_for_all_to_end() -> None:
    bench = Bench().started()
    assert sent(bench.end(1, 1), "stop") == [0, 1]
    assert bench.end(0, -15, asked=True) == bench.end(2, -15, asked=True) == []
    assert claims(bench.end(3, -9, asked=True)) == 1


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 1, 2, 3), (3, 2, 0, 1)])
def test_the_killed_rank_is_named_even_when_a_peers_error_arrives_first(order: tuple[int, ...]) -> None:
    bench = Bench(config(budget=0)).started()
    for rank in order:
        bench.end(rank, -9 if rank == 1 else 1, step=7)
    failure = bench.finish().failure
    assert failure is not None
    assert (failure.rank, failure.node, failure.host, failure.cause, failure.step) == (1, 0, "host-0", "killed by 9", 7)


def test_a_rank_that_we_ended_is_not_the_cause() -> None:
    bench = Bench(config(budget=0)).started()
    bench.end(2, -9, asked=True)
    bench.end_all([1, -15, 0, -15])
    failure = bench.finish().failure
    assert failure is not None
    assert (failure.rank, failure.cause) == (1, "killed by 15")


def test_whoever_disagreed_is_the_cause_and_not_who_noticed_it() -> None:
    """A rank whose data has changed fails by itself; its peers leave by the code that they reach together."""
    bench = Bench(config(budget=0)).started(BASE)
    bench.end(0, Exit.UNVERIFIED)
    bench.say("exception", rank=1, text="ValueError: the data has changed")
    bench.end(1, 1)
    bench.end(2, Exit.UNVERIFIED)
    bench.end(3, Exit.UNVERIFIED)
    assert bench.finish().cause.endswith("exit code 1: ValueError: the data has changed")


def test_codes_that_ranks_reach_together_stop_nobody() -> None:
    for code in (Exit.COMPLETED, Exit.PREEMPTED, Exit.UNVERIFIED, Exit.SUPERSEDED):
        assert sent(Bench().started().end(0, code), "stop") == []


def test_a_superseded_generation_ends_the_attempt_with_85() -> None:
    bench = Bench().started()
    bench.end_all([Exit.SUPERSEDED, 1, Exit.SUPERSEDED, 1])
    assert bench.finish().exit_code is Exit.SUPERSEDED


def test_an_exit_of_another_generation_or_told_twice_does_not_count() -> None:
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
    bench.do(Said(0, 1, {"what": "committed", "rank": 0, "step": 99}))
    assert bench.machine.committed_step is None


# --- refused bases ----------------------------------------------------------------------------------------------------


def test_the_next_claim_leaves_a_refused_base_out_and_the_budget_is_not_charged() -> None:
    bench = Bench(config(budget=1)).started(BASE)
    facts = {"step": 20, "generation": 1, "tier": "disk", "name": "data-0-0.bin", "reason": "changed"}
    bench.say("refused", rank=3, **facts)
    bench.say("refused", rank=3, **facts)
    actions = bench.end_all([Exit.UNVERIFIED] * 4)
    assert actions == [MakeClaim(frozenset({(CheckpointId(20, 1), "disk")}))]
    assert (bench.machine.budget, bench.machine.restarts) == (1, 0)
    assert bench.notes().count("refused") == 1
    older = Base(10, 1, "cd")
    bench.started(older)
    bench.say("refused", rank=0, **{**facts, "step": 10})
    both = frozenset({(CheckpointId(20, 1), "disk"), (CheckpointId(10, 1), "disk")})
    assert bench.end_all([Exit.UNVERIFIED] * 4) == [MakeClaim(both)]


# --- what the nodes hold in memory ------------------------------------------------------------------------------------

TWO_TIERS = Checkpoint((Tier("memory", 2), Tier("disk", 10)))
WHOLE = CheckpointId(24, 1)


def holding(rank: int, step: int = 24, generation: int = 1) -> dict[str, Any]:
    return {"rank": rank, "step": step, "generation": generation, "part_xxh3_128": f"{rank:032x}", "bytes": 10}


def failed(**more: Any) -> Bench:
    """A run whose ranks have all ended after its first generation, and which keeps captures in memory."""
    bench = Bench(replace(config(), checkpoint=TWO_TIERS, run="run-1", **more)).started()
    bench.end_all([-9, 1, 1, 1], step=25)
    return bench


def held(node: int, *holdings: dict[str, Any], generation: int = 1) -> Said:
    return Said(node, generation, {"what": "held", "holdings": list(holdings)})


def claimed(actions: Sequence[Action]) -> MakeClaim:
    (found,) = [action for action in actions if isinstance(action, MakeClaim)]
    return found


def test_nothing_is_asked_before_the_first_generation_or_where_no_tier_is_in_memory() -> None:
    first = Bench(replace(config(), checkpoint=TWO_TIERS))
    assert claims(first.join_all()) == 1
    assert claims(Bench().started().end_all([-9, 1, 1, 1])) == 1


def test_the_claim_knows_what_every_rank_has_in_memory_wherever_it_lies() -> None:
    bench = failed()
    assert sent(bench.actions, "survey") == [0, 1]
    assert bench.do(held(0, holding(0), holding(1), holding(2), holding(2, step=26))) == []
    claim = claimed(bench.do(held(1, holding(3), holding(0))))
    assert list(claim.held) == [WHOLE]
    manifest = memory_manifest("run-1", WHOLE, bench.config.mesh, [f"{rank:032x}" for rank in range(4)])
    assert claim.held[WHOLE] == xxhash.xxh3_128_hexdigest(manifest)


def test_a_capture_that_lacks_a_rank_does_not_count() -> None:
    bench = failed()
    bench.do(held(0, holding(0), holding(1)))
    assert claimed(bench.do(held(1, holding(3)))).held == {}


def test_a_node_that_does_not_answer_holds_nothing() -> None:
    bench = failed()
    bench.do(held(0, holding(0), holding(1)))
    bench.now_s = SURVEY_S
    bench.do(Beat(0, 4000, {}), Beat(1, None, {}))
    assert bench.do(Tick()) == []
    bench.now_s += 0.1
    assert claimed(bench.do(Tick())).held == {}
    assert bench.do(held(1, holding(2), holding(3))) == []


def test_a_node_that_comes_back_is_asked_again() -> None:
    bench = failed()
    assert sent(bench.do(held(0), joined(1, 1)), "survey") == [1]
    assert claims(bench.do(held(1))) == 1


def test_a_copy_that_was_refused_is_not_offered_again_and_its_twin_on_disk_is() -> None:
    bench = failed()
    everything = [holding(rank) for rank in range(4)]
    bench.do(held(0, *everything), held(1))
    bench.started(Base(24, 1, "ab", "memory"))
    bench.say("refused", step=24, generation=1, tier="memory", name="memory-0", reason="changed")
    bench.end_all([Exit.UNVERIFIED] * 4)
    claim = claimed(bench.do(held(0, *everything, generation=2), held(1, generation=2)))
    assert (claim.refused, claim.held) == (frozenset({(WHOLE, "memory")}), {})


def test_each_slot_is_told_who_holds_its_copies() -> None:
    peers = replace(TWO_TIERS, tiers=(*TWO_TIERS.tiers, Tier("peer", 4)))
    bench = Bench(replace(config(slots=3), checkpoint=peers, run="run-1")).started()
    starts = [action for action in bench.actions if isinstance(action, Send) and action.kind == "start"]
    partners = {start.node: start.body["partner"] for start in starts}
    assert sorted(partners.values()) == [0, 1, 2]
    assert all(node != partner for node, partner in partners.items())


# --- preemption -------------------------------------------------------------------------------------------------------


def preempted(node: int = 1) -> Said:
    return Said(node, 0, {"what": "preempted"})


def test_the_builtin_trainer_saves_and_the_attempt_ends_with_82() -> None:
    bench = Bench().started()
    assert sent(bench.do(preempted()), "save") == [0, 1]
    assert bench.do(preempted(0)) == []
    bench.end_all([Exit.PREEMPTED] * 4, step=30)
    assert (bench.finish().exit_code, bench.finish().step) == (Exit.PREEMPTED, 30)


def test_a_script_is_stopped_and_the_attempt_ends_with_82() -> None:
    bench = Bench(config("script")).started()
    assert sent(bench.do(preempted()), "stop") == [0, 1]
    bench.end_all([-15] * 4)
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_crash_while_saving_still_ends_with_82() -> None:
    bench = Bench().started()
    bench.do(preempted())
    bench.end_all([-9, 1, 1, 1])
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_base_refused_during_preemption_starts_nothing_more() -> None:
    bench = Bench().started(BASE)
    bench.do(preempted())
    bench.say("refused", step=20, generation=1, tier="disk", name="x", reason="changed")
    bench.end_all([Exit.UNVERIFIED] * 4)
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_run_that_finishes_while_preempted_is_complete() -> None:
    bench = Bench().started()
    bench.do(preempted())
    bench.end_all([0] * 4)
    assert bench.finish().exit_code is Exit.COMPLETED


def test_preemption_while_nothing_runs_ends_the_attempt_at_once() -> None:
    gathering, claiming, waiting = Bench(), Bench(), Bench()
    gathering.do(joined(0))
    claiming.join_all()
    waiting.join_all()
    waiting.do(Claimed(1, None, 1))
    for bench in (gathering, claiming, waiting):
        bench.do(preempted())
        assert bench.finish().exit_code is Exit.PREEMPTED
        assert bench.do(Claimed(1, None, 1), Beat(0, 4000, {})) == []


def test_preemption_while_stopping_starts_no_other_generation() -> None:
    bench = Bench().started()
    bench.end(0, 1)
    bench.do(preempted())
    bench.end_all([1, 1, 1, 1])
    assert bench.finish().exit_code is Exit.PREEMPTED


# --- budget and progress ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "code"), [("builtin", Exit.RETRY_ELSEWHERE), ("script", Exit.STOP)])
def test_restarts_end_with_the_budget(kind: str, code: Exit) -> None:
    bench = Bench(config(kind, budget=2, refill_steps=1000))
    for step in (10, 20, 30):
        bench.started()
        bench.end_all([-9, 1, 1, 1], step=step)
    assert (bench.finish().exit_code, bench.machine.restarts, bench.generation) == (code, 2, 3)
    assert "no restart left in the budget of 2" in bench.finish().cause


def test_new_steps_give_restarts_back_and_none_beyond_the_budget() -> None:
    bench = Bench(config(budget=1, refill_steps=100))
    for step in (60, 120, 180, 240):  # a restart is earned by the second and the fourth
        bench.started()
        bench.end_all([-9, 1, 1, 1], step=step)
    assert (bench.finish().exit_code, bench.generation) == (Exit.RETRY_ELSEWHERE, 3)
    rich = Bench(config(budget=2, refill_steps=10)).started()
    rich.end_all([-9, 1, 1, 1], step=1000)
    assert rich.machine.budget == 1


def test_steps_done_again_give_nothing_back() -> None:
    bench = Bench(config(budget=2, refill_steps=100, no_progress=9))
    for _ in range(3):
        bench.started()
        bench.end_all([-9, 1, 1, 1], step=99)
    assert bench.finish().exit_code is Exit.RETRY_ELSEWHERE


def test_steps_up_to_the_base_are_no_progress() -> None:
    bench = Bench(config(budget=9, refill_steps=10, no_progress=1)).started(BASE)
    bench.end_all([-9, 1, 1, 1], step=BASE.step)
    assert (bench.finish().exit_code, bench.machine.budget) == (Exit.STOP, 9)


def test_failures_in_a_row_without_a_new_step_stop_the_run() -> None:
    bench = Bench(config(budget=99, no_progress=2))
    for step in (5, 5, 6, 6, 3):
        bench.started()
        bench.end_all([1, 1, 1, 1], step=step)
    assert (bench.finish().exit_code, bench.generation) == (Exit.STOP, 5)
    assert "2 failures in a row without a new step" in bench.finish().cause


def test_a_scripts_steps_begin_anew_with_each_start() -> None:
    bench = Bench(config("script", budget=9, no_progress=2))
    for step in (5, 3, 0, 2, 0):
        bench.started()
        bench.end_all([1, 1, 1, 1], step=step)
    assert bench.machine.phase is Phase.CLAIMING
    bench.started()
    bench.end_all([1, 1, 1, 1], step=0)
    assert bench.finish().exit_code is Exit.STOP


def test_generations_that_save_nothing_end_the_run_across_attempts() -> None:
    bench = Bench(config(budget=2, no_progress=3))
    bench.join_all()
    assert claims(bench.do(Claimed(5, None, 5))) == 0
    assert bench.machine.phase is Phase.RUNNING
    other = Bench(config(budget=2, no_progress=3))
    other.join_all()
    other.do(Claimed(6, None, 6))
    assert (other.finish().exit_code, other.finish().cause) == (Exit.STOP, "5 generations in a row have saved nothing")


# --- nodes that are lost ----------------------------------------------------------------------------------------------


def test_a_node_that_never_joins_is_named() -> None:
    bench = Bench(config(slots=3))
    bench.do(joined(0), joined(2))
    bench.now_s = JOIN_S
    assert bench.do(Tick()) == []
    bench.now_s = JOIN_S + 1
    bench.do(Tick())
    finish = bench.finish()
    assert finish.exit_code is Exit.RETRY_ELSEWHERE
    assert finish.failure is not None
    assert (finish.failure.node, finish.cause) == (1, "2 of 3 nodes joined; silent: [1]")


def test_there_is_one_verdict_when_a_node_is_lost_and_another_never_joins() -> None:
    bench = Bench()
    bench.do(joined(0), Lost(0))
    bench.now_s = JOIN_S + 1
    bench.do(Tick())
    assert "silent: [1]" in bench.finish().cause


def test_a_lost_node_has_its_time_to_come_back() -> None:
    bench = Bench().started()
    bench.do(Lost(1))
    bench.now_s = AGENT_S
    assert bench.do(Beat(0, None, {}), Tick()) == []
    bench.do(joined(1, 1, (2, 3)))
    bench.now_s = 10 * AGENT_S
    assert bench.do(Beat(0, None, {}), Beat(1, None, {}), Tick()) == []
    assert bench.machine.phase is Phase.RUNNING


def test_a_node_that_stays_lost_is_suspected() -> None:
    bench = Bench().started()
    bench.do(Lost(1))
    bench.now_s = AGENT_S + 1
    bench.do(Beat(0, None, {}), Tick())
    finish = bench.finish()
    assert (finish.exit_code, finish.cause) == (Exit.RETRY_ELSEWHERE, "node host-1 was lost")
    assert finish.failure is not None
    assert (finish.failure.node, finish.failure.rank) == (1, None)
    assert bench.do(Tick()) == []


def test_a_node_that_falls_silent_on_an_open_connection_is_suspected_too() -> None:
    bench = Bench().started()
    bench.now_s = AGENT_S + 1
    bench.do(Beat(0, None, {}), Tick())
    assert (bench.finish().exit_code, bench.finish().cause) == (Exit.RETRY_ELSEWHERE, "node host-1 was lost")


def test_a_save_that_cannot_happen_ends_within_the_grace() -> None:
    bench = Bench().started()
    bench.do(Said(0, 1, {"what": "preempted"}))
    bench.now_s = GRACE_SHARE * bench.machine.config.grace_s + 1
    assert sent(bench.do(Beat(0, None, {}), Beat(1, None, {}), Tick()), "stop")[:2] == [0, 1]
    for rank in range(4):
        bench.end(rank, -9, asked=True)
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_script_that_ends_with_0_when_told_to_stop_was_preempted_all_the_same() -> None:
    bench = Bench(replace(config(), trainer=Trainer("script", {"argv": ["x.py"]}), checkpoint=Checkpoint())).started()
    bench.do(Said(0, 1, {"what": "preempted"}))
    bench.end_all([0, 0, 0, 0])
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_script_gets_the_grace_to_save_by_itself_only_when_the_run_is_to_stop() -> None:
    settings = replace(config(kind="script"), grace_s=100.0)
    asked, failed = Bench(settings).started(), Bench(settings).started()
    asked.do(Said(0, 1, {"what": "preempted"}))
    failed.end(0, 1)
    grace_s = GRACE_SHARE * 100.0
    assert [a.body for a in asked.actions if isinstance(a, Send) and a.kind == "stop"] == [{"grace_s": grace_s}] * 2
    assert [a.body for a in failed.actions if isinstance(a, Send) and a.kind == "stop"] == [{}] * 2
    assert Send(1, "stop", 1, {"grace_s": grace_s}) in asked.do(Lost(1), joined(1, 1, (2, 3))), "the same to one that comes back"


def test_a_script_is_not_expected_to_commit() -> None:
    for kind, verdict in (("builtin", Exit.STOP), ("script", None)):
        bench = Bench(config(kind=kind))
        bench.join_all()
        bench.do(Claimed(9, None, idle=9))
        assert bench.machine.verdict is verdict


def test_data_that_one_node_lacks_is_the_cause_and_not_its_peers_reset() -> None:
    bench = Bench().started()
    bench.end(2, 1)
    assert sent(bench.end(0, Exit.STOP), "stop") == []
    bench.end(1, -9, asked=True)
    bench.end(3, -9, asked=True)
    finish = bench.finish()
    assert (finish.exit_code, finish.failure and finish.failure.rank) == (Exit.STOP, 0)


def test_a_connection_that_breaks_and_comes_back_stops_nothing() -> None:
    bench = Bench().started()
    actions = bench.do(Lost(0), Lost(1), joined(0, 1, (0, 1)), joined(1, 1, (2, 3)))
    assert actions == [Send(1, "assign", 1, {"slot": 1})]


def test_a_node_that_comes_back_without_its_workers_ends_the_generation() -> None:
    bench = Bench().started()
    assert sent(bench.do(joined(1)), "stop")[:2] == [0, 1]
    actions = [*bench.end(0, -15, asked=True), *bench.end(1, -15, asked=True)]
    assert claims(actions) == 1
    (failure,) = [action for action in bench.actions if isinstance(action, Note) and action.kind == "failure"]
    assert (failure.body["node"], failure.body["cause"]) == (1, "its node started anew")


def test_workers_of_another_generation_are_stopped() -> None:
    bench = Bench()
    bench.join_all()
    bench.do(Claimed(4, None, 1))
    actions = bench.do(joined(1, 3, (2, 3)))
    assert Send(1, "stop", 3, {}) in actions


def test_a_stop_or_a_save_that_was_missed_is_said_again() -> None:
    stopping = Bench().started()
    stopping.end(0, 1)
    assert sent(stopping.do(Lost(1), joined(1, 1, (2, 3))), "stop") == [1]
    saving = Bench().started()
    saving.do(preempted(0))
    assert sent(saving.do(Lost(1), joined(1, 1, (2, 3))), "save") == [1]


# --- a coordinator that comes back ------------------------------------------------------------------------------------


def test_it_adopts_a_generation_that_runs_everywhere() -> None:
    bench = Bench(newest=3)
    bench.join_all(generation=3, running=True)
    assert sent(bench.actions, "stop") == sent(bench.actions, "start") == []
    assert claims(bench.actions) == 0
    assert (bench.notes(), bench.machine.phase) == (["adopted"], Phase.RUNNING)
    bench.do(Beat(0, 4000, {0: 8, 1: 8}), Beat(1, None, {2: 8, 3: 8}))
    assert sent(bench.actions, "start") == []
    bench.end_all([0] * 4, step=9)
    assert (bench.finish().exit_code, bench.finish().step) == (Exit.COMPLETED, 9)


def test_what_was_reported_before_all_had_joined_counts() -> None:
    """Rank 1 was killed while the coordinator was away; its node is the first to come back."""
    bench = Bench(config(budget=0), newest=3)
    bench.do(joined(0, 3, (0,)))
    bench.end(1, -9)
    assert sent(bench.do(joined(1, 3, (2, 3))), "stop") == [0, 1]
    bench.end(0, 1)
    bench.end_all([1, 1, 1, 1])
    failure = bench.finish().failure
    assert failure is not None
    assert (failure.rank, failure.cause) == (1, "killed by 9")


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


def test_a_generation_that_one_node_does_not_know_is_ended_everywhere() -> None:
    for other in (0, 2):
        bench = Bench(newest=3)
        bench.do(joined(1, other))
        assert sent(bench.do(joined(0, 3, (0, 1))), "stop") == [0, 1]
        assert claims(bench.actions) == 0
        bench.end(0, -15, asked=True)
        assert claims(bench.end(1, -15, asked=True)) == 1


def test_a_claim_that_was_never_started_is_followed_by_the_next() -> None:
    bench = Bench(newest=3)
    assert claims(bench.join_all(generation=2)) == 1


def test_preemption_waits_for_the_nodes_that_may_still_run() -> None:
    bench = Bench(newest=3)
    bench.do(joined(0, 3, (0, 1)), Said(0, 3, {"what": "preempted"}))
    assert bench.machine.phase is Phase.GATHERING
    assert sent(bench.do(joined(1, 3, (2, 3))), "save") == [0, 1]
    bench.end_all([Exit.PREEMPTED] * 4)
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_what_is_said_again_is_noted_once() -> None:
    bench = Bench().started()
    for _ in range(2):
        for rank in range(4):
            bench.say("loaded", rank=rank, step=0)
        bench.say("committed", step=10, bytes=1, save_s=0.1)
    assert bench.notes().count("loaded") == bench.notes().count("committed") == 1
    assert bench.machine.committed_step == 10
