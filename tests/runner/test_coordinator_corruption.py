"""A run that has computed wrongly: what it goes back to, without whom, and that no later attempt goes on from what is not sound."""

from dataclasses import replace
from pathlib import Path

import pytest

from headway.runner.checkpoint.chain import Base, Chain, CheckpointId, Commit, lineage
from headway.runner.checkpoint.stores import open_store
from headway.runner.contract import Exit, RunConfig
from headway.runner.coordinator.claiming import claim
from headway.runner.coordinator.events import Action, Claimed, ClaimRefused, Finish, MakeClaim
from headway.runner.coordinator.main import rebuilt
from headway.runner.lines import append_line
from headway.runner.rundir import RunDirectory

from .test_coordinator import BASE, Bench, config, joined

FOUND = "rank 3 computes what no other rank does, again and again: step 40 was not applied; all was sound up to step 20"


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


def test_a_spare_takes_the_place_of_the_node_and_what_was_saved_since_does_not_count() -> None:
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
    assert bench.note("excluded")["why"] == "host-1 has a device that computes wrongly: a spare takes its place"
    assert wanted(actions).sound_step == 20
    bench.do(Claimed(bench.generation + 1, BASE, 1))
    assert bench.machine.roster.slots == {0: 0, 1: 2}
    bench.started(BASE)
    assert wanted(bench.end_all([-9, 1, 1, 1])).sound_step is None, "the claim has undone it"


def test_without_a_spare_the_attempt_ends_once_a_claim_has_undone_what_is_not_sound() -> None:
    bench = Bench().started(BASE).loaded()
    actions = corrupted(bench)
    assert wanted(actions).sound_step == 20
    assert not any(isinstance(action, Finish) for action in actions)
    bench.do(Claimed(2, BASE, 2))
    found = bench.finish()
    assert (found.exit_code, found.cause, found.suspects) == (Exit.RETRY_ELSEWHERE, FOUND, (1,))
    assert bench.notes().count("start") == 1


def test_of_two_suspects_nobody_is_left_out_and_in_the_end_both_are_named() -> None:
    bench = Bench(replace(config(budget=1), spares=0)).started(BASE).loaded()
    corrupted(bench, (0, 3))
    assert "excluded" not in bench.notes()
    bench.started(BASE).loaded()
    corrupted(bench, (0, 3))
    bench.do(Claimed(3, BASE, 2))
    assert (bench.finish().exit_code, bench.finish().suspects) == (Exit.RETRY_ELSEWHERE, (0, 1))


def test_who_is_asked_to_stop_meanwhile_leaves_nothing_behind_that_is_not_sound() -> None:
    bench = Bench().started(BASE).loaded()
    bench.say("preempted")
    assert wanted(corrupted(bench)).sound_step == 20
    bench.do(Claimed(2, BASE, 2))
    assert bench.finish().exit_code is Exit.PREEMPTED


def test_of_a_script_what_was_committed_when_its_ranks_last_were_equal_is_sound() -> None:
    bench = Bench(config("script")).started(BASE)
    for step, compared in ((30, True), (40, True), (50, False)):
        bench.say("committed", step=step, tier="disk", bytes=1, files=1, save_s=0.1)
        if compared:
            bench.say("compared", step=step)
    assert wanted(corrupted(bench, sound_step=None)).sound_step == 40


def test_of_a_script_that_was_never_compared_what_it_began_with_is_sound() -> None:
    bench = Bench(config("script")).started(BASE)
    bench.say("committed", step=30, tier="disk", bytes=1, files=1, save_s=0.1)
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
    """The base of the claim, or why there is none."""
    held = {CheckpointId(28, 1): "cd", CheckpointId(18, 1): "ef"}
    found = claim(chain, settings, directory, MakeClaim(frozenset(), held, sound_step))
    return found.cause if isinstance(found, ClaimRefused) else found.base


def test_the_claim_starts_from_the_newest_that_is_sound_and_so_does_every_later_one(
    chain: Chain, settings: RunConfig, directory: RunDirectory
) -> None:
    assert claimed(chain, settings, directory, 25) == Base(20, 1, "ab")
    assert [committed.step for committed in lineage(chain.read())] == [20, 10]
    assert claimed(chain, settings, directory, None) == Base(20, 1, "ab")
    assert claimed(chain, settings, directory, 19) == Base(18, 1, "ef", "memory")


def test_a_run_that_was_never_shown_to_be_sound_begins_anew(chain: Chain, settings: RunConfig, directory: RunDirectory) -> None:
    assert claimed(chain, settings, directory, 0) is None
    assert lineage(chain.read()) == []


def test_where_nothing_sound_is_left_a_person_must_look(chain: Chain, settings: RunConfig, directory: RunDirectory) -> None:
    why = claimed(chain, settings, directory, 9)
    assert why == "no checkpoint of step 9 or before is left, and all later ones are of a run that was computed wrongly"


@pytest.mark.parametrize("attempt", [0, 1], ids=["the same attempt", "the next one"])
def test_a_coordinator_that_comes_after_goes_by_what_the_journal_says(
    chain: Chain, settings: RunConfig, directory: RunDirectory, attempt: int
) -> None:
    body = {"ranks": [3], "found": FOUND, "sound_step": 20, "nodes": [1], "hosts": ["host-1"]}
    append_line(directory.journal(1), {"wall": 1.0, "kind": "corruption", "generation": 1, "attempt": 0, **body})
    machine = rebuilt(settings, chain, RunDirectory(directory.root, attempt))
    assert machine._sound() == 20
    chain.claim(Base(20, 1, "ab"), attempt, "test", rolled_back=True)
    assert rebuilt(settings, chain, RunDirectory(directory.root, attempt))._sound() is None
