"""Tests a run's history: each step uses the values in effect, samples continue in order, and a rollback undoes later changes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.contract import Batch, Change, Mesh, Optimizer, RunConfig, Trainer, from_json, in_force, to_json
from headway.runner.history import at, carried_out, limit, position, refusal

CONFIG = RunConfig(
    slots=1,
    procs_per_slot=2,
    mesh=Mesh(dp_shard=2),
    trainer=Trainer("builtin"),
    spec_hash="",
    steps=100,
    batch=Batch(8, 2, 32),
    optimizer=Optimizer(1e-3, warmup_steps=10),
)
LOWER = Change(40, set={"optimizer.lr": 1e-4})
WIDER = Change(60, set={"batch.global_sequences": 16, "steps": 120}, skip_samples=5)


def with_history(*changes: Change) -> RunConfig:
    return replace(CONFIG, history=changes)


def test_a_run_without_history_is_computed_as_specified() -> None:
    assert at(CONFIG, 50) == CONFIG
    assert [position(CONFIG, step) for step in (0, 1, 50)] == [0, 8, 400]
    assert CONFIG.last_step == 100


def test_a_value_is_in_effect_from_its_step_until_a_later_entry() -> None:
    config = with_history(LOWER, Change(70, set={"optimizer.lr": 1e-5}))
    rates = [found.optimizer.lr for step in (0, 39, 40, 69, 70, 99) if (found := at(config, step)).optimizer is not None]
    assert rates == [1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5]
    kept = at(config, 99).optimizer
    assert kept == replace(Optimizer(1e-3, warmup_steps=10), lr=1e-5)


def test_batch_sizes_change_the_reading_rate_and_samples_are_skipped_once() -> None:
    config = with_history(LOWER, WIDER)
    assert [position(config, step) for step in (59, 60, 61, 62)] == [59 * 8, 60 * 8 + 5, 60 * 8 + 5 + 16, 60 * 8 + 5 + 32]
    assert (at(config, 60).batch, at(config, 59).batch) == (Batch(16, 2, 32), Batch(8, 2, 32))


def test_a_finished_run_is_extended_at_its_last_step() -> None:
    config = with_history(Change(100, set={"steps": 250}))
    assert (at(config, 99).steps, at(config, 100).steps, config.last_step) == (100, 250, 250)


def test_a_rollback_continues_after_the_skipped_samples() -> None:
    config = with_history(Change(50, rollback_to=30, skip_samples=1000))
    assert [position(config, step) for step in (29, 30, 31)] == [29 * 8, 30 * 8 + 1000, 31 * 8 + 1000]


def test_a_rollback_undoes_only_changes_in_effect_there_or_later() -> None:
    early, same, late = Change(20, set={"optimizer.clip_norm": 0.5}), LOWER, WIDER
    back = Change(80, rollback_to=40, set={"optimizer.lr": 2e-4})
    config = with_history(early, same, late, back)
    assert in_force(config.history) == (early, back)
    assert config.last_step == 100
    assert position(config, 70) == 70 * 8
    optimizer = at(config, 70).optimizer
    assert optimizer is not None
    assert (optimizer.clip_norm, optimizer.lr) == (0.5, 2e-4)


def test_a_value_without_a_field_in_run_json_raises_an_error() -> None:
    with pytest.raises(TypeError):
        at(with_history(Change(0, set={"model.layers": 3})), 5)


def test_samples_are_counted_in_batches() -> None:
    with pytest.raises(ValueError, match="`batch` is null"):
        position(replace(CONFIG, batch=None), 3)


# --- claims -----------------------------------------------------------------------------------------------------------

BACK, FURTHER = Change(50, rollback_to=30), Change(60, rollback_to=20)


def test_a_claim_rolls_back_once() -> None:
    assert limit((LOWER, BACK), 0) == 30
    assert carried_out((LOWER, BACK)) == 2
    assert limit((LOWER, BACK), 2) is None


def test_a_claim_with_two_rollbacks_goes_to_the_earlier_step() -> None:
    assert limit((BACK, FURTHER), 0) == 20
    assert limit((BACK, FURTHER), 1) == 20
    assert limit((FURTHER, Change(80, rollback_to=70)), 0) == 20


def test_an_entry_that_only_sets_values_rolls_nothing_back_and_can_change() -> None:
    assert (limit((LOWER,), 0), carried_out((LOWER,))) == (None, 0)
    assert limit((BACK, WIDER), 1) is None
    assert limit((BACK, FURTHER), carried_out((BACK, WIDER))) == 20


def test_an_applied_entry_cannot_be_removed() -> None:
    with pytest.raises(ValueError, match="claims rolled back by the first 2 entries"):
        limit((LOWER,), 2)
    assert (
        refusal((LOWER,), 2, [10])
        == "claims rolled back by the first 2 entries of `history`, but run.json does not have all of them"
    )


def test_a_claim_rolls_back_to_the_exact_step_or_names_the_available_ones() -> None:
    assert refusal((BACK,), 0, [10, 30, 50]) is None
    assert refusal((BACK,), 1, []) is None
    expected = "`history` goes back to step 30, but there is no valid checkpoint of that step; there are: 10, 20, 50"
    assert refusal((BACK,), 0, [50, 20, 10]) == expected
    assert refusal((BACK,), 0, []) == expected.replace("10, 20, 50", "none")


def test_rolling_back_to_the_beginning_needs_no_checkpoint() -> None:
    from_scratch = (Change(50, rollback_to=0),)
    assert limit(from_scratch, 0) == 0
    assert refusal(from_scratch, 0, []) is None


@st.composite
def histories(draw: st.DrawFn) -> tuple[Change, ...]:
    """Entries that pass `headway check`: each after the step from which the run continued."""
    found, went_on = [], -1
    for _ in range(draw(st.integers(0, 6))):
        step = went_on + 1 + draw(st.integers(0, 20))
        back = draw(st.none() | st.integers(0, step))
        values = draw(st.sampled_from([{}, {"batch.global_sequences": 16}, {"batch.global_sequences": 4}]))
        found.append(Change(step, back, draw(st.integers(0, 9)), values))
        went_on = found[-1].takes_effect_at
    return tuple(found)


@pytest.mark.slow
@settings(deadline=None)
@given(histories(), st.integers(0, 120))
def test_each_step_reads_after_the_samples_read_or_skipped_before(history: tuple[Change, ...], step: int) -> None:
    """Compared with a run that is executed one step after the other."""
    config = replace(CONFIG, history=history)
    read, standing = 0, in_force(history)
    for done in range(step + 1):
        read += sum(change.skip_samples for change in standing if change.takes_effect_at == done)
        assert position(config, done) == read
        batch = at(config, done).batch
        assert batch is not None
        read += batch.global_sequences


@settings(deadline=None)
@given(histories())
def test_changes_in_effect_have_distinct_steps_in_order(history: tuple[Change, ...]) -> None:
    steps = [change.takes_effect_at for change in in_force(history)]
    assert steps == sorted(set(steps))


@pytest.mark.slow
@settings(deadline=None)
@given(histories())
def test_a_history_is_read_back_from_run_json_unchanged(history: tuple[Change, ...]) -> None:
    config = replace(CONFIG, history=history)
    assert from_json(RunConfig, to_json(config)) == config


@pytest.mark.slow
@settings(deadline=None)
@given(histories(), histories())
def test_changes_after_a_rollback_affect_no_step_before_it(history: tuple[Change, ...], later: tuple[Change, ...]) -> None:
    """The checkpoint that a claim rolls back to was computed by the whole history."""
    last = max([change.takes_effect_at for change in history] + [0])
    more = [replace(change, from_step=change.from_step + last + 1) for change in later]
    back = [change.rollback_to for change in more if change.rollback_to is not None]
    first = min(back + [change.takes_effect_at for change in more], default=None)
    if first is None or first == 0:
        return
    before, after = replace(CONFIG, history=history), replace(CONFIG, history=(*history, *more))
    assert at(after, first - 1).batch == at(before, first - 1).batch
    assert position(after, first - 1) == position(before, first - 1)
