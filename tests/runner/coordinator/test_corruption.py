"""Tests a run that has computed wrongly: its rollback, its excluded nodes, and that no later attempt resumes from unsound state."""

from dataclasses import replace
from pathlib import Path

import pytest

from headway.runner.checkpoint.chain import Chain, Commit, Retire, lineage
from headway.runner.checkpoint.stores import open_store
from headway.runner.contract import Base, Change, CheckpointId, Exit, RunConfig, RunDirectory
from headway.runner.coordinator.claiming import claim
from headway.runner.coordinator.events import Action, Beat, Claimed, ClaimRefused, Finish, Lost, MakeClaim, Tick
from headway.runner.coordinator.main import rebuilt
from headway.runner.coordinator.state import Phase
from headway.runner.lines import append_line
from tests.support.coordinator import AGENT_S, BASE, Bench, config, joined

FOUND = "rank 3 computes what no other rank does, again and again: step 40 was not applied; steps up to 20 are verified"


def with_spare() -> Bench:
    bench = Bench(replace(config(), spares=1))
    bench.do(joined(2))
    return bench.started(Base(10, 1, "ab")).loaded()


def wanted(actions: list[Action]) -> MakeClaim:
    (found,) = [action for action in actions if isinstance(action, MakeClaim)]
    return found


def corrupted(bench: Bench, ranks: tuple[int, ...] = (3,), sound_step: int | None = 20) -> list[Action]:
    bench.say("corrupted", ranks=list(ranks), found=FOUND, sound_step=sound_step)
    return bench.end_all([1, 1, 1, 1], step=39)


def test_a_spare_replaces_the_node_and_later_checkpoints_do_not_count() -> None:
    bench = with_spare()
    actions = corrupted(bench)
    assert bench.note("corruption") == {
        "ranks": [3],
        "found": FOUND,
        "sound_step": 20,
        "nodes": [1],
        "hosts": ["host-1"],
    }
    failure = bench.note("failure")
    assert (failure["cause_kind"], failure["cause"], failure["rank"], failure["host"]) == ("corruption", FOUND, 3, "host-1")
    assert bench.note("excluded")["why"] == "host-1 has a device that computes wrong values: a spare takes its place"
    assert wanted(actions).sound_step == 20
    bench.do(Claimed(bench.generation + 1, BASE, 1))
    assert bench.machine.roster.slots == {0: 0, 1: 2}
    bench.started(BASE)
    assert wanted(bench.end_all([-9, 1, 1, 1])).sound_step is None, "the claim has undone it"


def test_without_a_spare_the_attempt_ends_after_a_claim_rolls_back() -> None:
    bench = Bench().started(BASE).loaded()
    actions = corrupted(bench)
    assert wanted(actions).sound_step == 20
    assert not any(isinstance(action, Finish) for action in actions)
    bench.do(Claimed(2, BASE, 2))
    found = bench.finish()
    assert (found.exit_code, found.cause, found.suspects) == (Exit.RETRY_ELSEWHERE, FOUND, (1,))
    assert bench.notes().count("start") == 1


def test_two_suspects_are_not_excluded_and_both_are_named_at_the_end() -> None:
    bench = Bench(replace(config(budget=1), spares=0)).started(BASE).loaded()
    corrupted(bench, (0, 3))
    assert "excluded" not in bench.notes()
    bench.started(BASE).loaded()
    corrupted(bench, (0, 3))
    bench.do(Claimed(3, BASE, 2))
    assert (bench.finish().exit_code, bench.finish().suspects) == (Exit.RETRY_ELSEWHERE, (0, 1))


def test_a_stop_request_during_corruption_leaves_no_unsound_checkpoint() -> None:
    bench = Bench().started(BASE).loaded()
    bench.say("preempted")
    assert wanted(corrupted(bench)).sound_step == 20
    bench.do(Claimed(2, BASE, 2))
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_a_node_that_computed_wrongly_is_not_used_again_in_the_attempt() -> None:
    bench = with_spare()
    corrupted(bench)
    bench.started(BASE).loaded()
    bench.do(Lost(0))
    bench.pass_time(AGENT_S + 1, 1, 2)
    for rank in (2, 3):
        bench.end(rank, -15, asked=True)
    bench.do(Tick())
    assert bench.machine.phase in (Phase.REPLACING, Phase.ENDED)
    found = bench.finish()
    assert (found.exit_code, found.suspects) == (Exit.RETRY_ELSEWHERE, (0, 1))


def test_every_later_verdict_of_the_attempt_names_the_node() -> None:
    bench = with_spare()
    corrupted(bench)
    bench.started(BASE).loaded()
    bench.say("preempted")
    bench.end_all([82, 82, 82, 82])
    assert (bench.finish().exit_code, bench.finish().suspects) == (Exit.PREEMPTED, (1,))


def test_the_suspects_of_a_refused_claim_are_still_named() -> None:
    bench = Bench(config(budget=0)).started(BASE).loaded()
    corrupted(bench, (0, 3))
    bench.do(ClaimRefused(Exit.UNVERIFIED, "no checkpoint is left"))
    found = bench.finish()
    assert (found.exit_code, found.cause, found.suspects) == (Exit.UNVERIFIED, "no checkpoint is left", (0, 1))


def test_a_stop_request_before_the_claim_waits_for_it() -> None:
    bench = Bench().started(BASE).loaded()
    corrupted(bench)
    bench.say("preempted")
    assert not any(isinstance(action, Finish) for action in bench.actions)
    bench.do(Claimed(2, BASE, 2))
    assert (bench.finish().exit_code, bench.finish().suspects) == (Exit.PREEMPTED, (1,))


def test_two_suspects_are_named_after_any_number_of_fruitless_starts() -> None:
    bench = Bench(config(no_progress=2)).started(BASE).loaded()
    for _ in range(2):
        corrupted(bench, (0, 3))
        bench.do(Claimed(bench.generation + 1, BASE, 1))
        if bench.machine.phase is not Phase.ENDED:
            bench.do(Beat(0, bench.generation - 1, 5000 + bench.generation, {}))
            bench.loaded()
    corrupted(bench, (0, 3))
    bench.do(Claimed(bench.generation + 1, BASE, 1))
    assert (bench.finish().exit_code, bench.finish().suspects) == (Exit.RETRY_ELSEWHERE, (0, 1))


def test_a_scripts_commits_up_to_its_last_equal_comparison_are_sound() -> None:
    bench = Bench(config("script")).started(BASE)
    for step, compared in ((30, True), (40, True), (50, False)):
        bench.say("committed", step=step, tier="shared", bytes=1, files=1, save_s=0.1)
        if compared:
            bench.say("compared", step=step)
    assert wanted(corrupted(bench, sound_step=None)).sound_step == 40


def test_a_never_compared_script_has_only_its_base_as_sound() -> None:
    bench = Bench(config("script")).started(BASE)
    bench.say("committed", step=30, tier="shared", bytes=1, files=1, save_s=0.1)
    assert wanted(corrupted(bench, sound_step=None)).sound_step == BASE.step


# --- the claim --------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "run", 0)
    for folder in (found.chain, found.checkpoints, found.journal(0).parent):
        folder.mkdir(parents=True)
    return found


@pytest.fixture
def settings() -> RunConfig:
    return replace(config(), run="run-1")


@pytest.fixture
def chain(directory: RunDirectory) -> Chain:
    """Steps 10, 20 and 30 of generation 1."""
    found = Chain(open_store(str(directory.chain)), "run-1")
    found.read()
    found.claim(None, 0, "test")
    for step in (10, 20, 30):
        found.append(Commit(step, "ab"), 1, 0, "test")
    return found


def claimed(chain: Chain, settings: RunConfig, directory: RunDirectory, sound_step: int | None) -> Base | str | None:
    """The base of the claim, or the reason why there is none."""
    held = {CheckpointId(28, 1): "cd", CheckpointId(18, 1): "ef"} if sound_step in (19, 25, None) else {}
    found = claim(chain, settings, directory, MakeClaim(frozenset(), held, sound_step))
    return found.cause if isinstance(found, ClaimRefused) else found.base


def test_every_later_claim_starts_from_the_newest_sound_checkpoint(
    chain: Chain, settings: RunConfig, directory: RunDirectory
) -> None:
    assert claimed(chain, settings, directory, 25) == Base(20, 1, "ab")
    assert [committed.step for committed in lineage(chain.read())] == [20, 10]
    assert claimed(chain, settings, directory, None) == Base(20, 1, "ab")
    assert claimed(chain, settings, directory, 19) == Base(18, 1, "ef", "memory")


def test_a_run_never_verified_as_sound_restarts_from_scratch(chain: Chain, settings: RunConfig, directory: RunDirectory) -> None:
    assert claimed(chain, settings, directory, 0) is None
    assert lineage(chain.read()) == []


def test_a_run_without_a_sound_checkpoint_restarts_from_scratch(
    chain: Chain, settings: RunConfig, directory: RunDirectory
) -> None:
    assert claimed(chain, settings, directory, 9) is None


def test_if_the_sound_checkpoints_are_gone_the_run_stops_for_a_person(
    chain: Chain, settings: RunConfig, directory: RunDirectory
) -> None:
    chain.append(Retire((CheckpointId(10, 1),)), 1, 0, "test")
    why = claimed(chain, settings, directory, 15)
    assert why == "no checkpoint of step 15 or earlier is left, and all later ones are from a corrupted run"


def test_a_history_rolls_back_to_no_unsound_checkpoint(chain: Chain, settings: RunConfig, directory: RunDirectory) -> None:
    back = replace(settings, history=(Change(30, rollback_to=30),))
    assert claimed(chain, back, directory, 20) == (
        "`history` goes back to step 30, but everything after step 20 is from a corrupted run"
    )
    back = replace(settings, history=(Change(30, rollback_to=10),))
    assert claimed(chain, back, directory, 20) == Base(10, 1, "ab")


@pytest.mark.parametrize("attempt", [0, 1], ids=["the same attempt", "the next one"])
def test_a_later_coordinator_follows_the_journal(
    chain: Chain, settings: RunConfig, directory: RunDirectory, attempt: int
) -> None:
    body = {"ranks": [3], "found": FOUND, "sound_step": 20, "nodes": [1], "hosts": ["host-1"]}
    append_line(directory.journal(1), {"wall": 1.0, "kind": "corruption", "generation": 1, "attempt": 0, **body})
    machine = rebuilt(settings, chain, RunDirectory(directory.root, attempt))
    assert machine.generation.corrupted is not None
    assert machine.generation.corrupted.sound_step == 20
    chain.claim(Base(20, 1, "ab"), attempt, "test", rolled_back=True)
    assert rebuilt(settings, chain, RunDirectory(directory.root, attempt)).generation.corrupted is None


def test_a_coordinator_that_takes_over_has_barred_nodes_and_sound_step(
    chain: Chain, settings: RunConfig, directory: RunDirectory
) -> None:
    def noted(generation: int, kind: str, **facts: object) -> None:
        append_line(directory.journal(generation), {"wall": 1.0, "kind": kind, "generation": generation, "attempt": 0, **facts})

    noted(1, "compared", step=20, sound_step=20)
    assert rebuilt(settings, chain, directory).proven_step == 20
    noted(1, "failure", cause="corruption", cause_kind="corruption", node=1)
    noted(1, "failure", cause="crash", cause_kind="crash", node=0)
    chain.claim(Base(10, 1, "ab"), 0, "test", rolled_back=True)
    machine = rebuilt(settings, chain, directory)
    assert (machine.roster.barred, machine.proven_step) == ({1}, 10), "step 20 does not count any more"
    assert rebuilt(settings, chain, RunDirectory(directory.root, 1)).roster.barred == set(), "another attempt has other nodes"
