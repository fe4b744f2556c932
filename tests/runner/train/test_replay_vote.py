"""Tests which rank is found to have computed wrongly, from the results of all attempts at a step."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.runner.train.replay_vote import Judgement, ReplayVote, shifts

# Attempt, rank, share -> a wrong result.
Wrong = Callable[[int, int, int], bytes | None]


def judged(world_size: int, wrong: Wrong) -> tuple[Judgement, int]:
    """The verdict if each share has one right result, and the number of attempts."""
    witnesses = ReplayVote(world_size)
    for attempt, shift in enumerate(shifts(world_size)):
        shares = [(rank + shift) % world_size for rank in range(world_size)]
        witnesses.heard(shift, [wrong(attempt, rank, share) or b"right %d" % share for rank, share in enumerate(shares)])
        if attempt and witnesses.settled():
            break
    return witnesses.judge(), attempt + 1


def right(world_size: int) -> tuple[bytes, ...]:
    return tuple(b"right %d" % share for share in range(world_size))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 9])
def test_equal_results_end_the_vote_after_two_attempts_without_a_suspect(world_size: int) -> None:
    found, attempts = judged(world_size, lambda *_: None)
    assert (found, attempts) == (Judgement(right(world_size), (), (), ()), 2)


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 9])
def test_a_rank_that_is_wrong_once_had_a_transient_fault(world_size: int, attempt: int) -> None:
    rank = world_size - 1
    found, _ = judged(world_size, lambda at, who, share: b"wrong" if (at, who) == (attempt, rank) else None)
    assert found == Judgement(right(world_size), (rank,), (), ())


@pytest.mark.parametrize("world_size", [3, 4, 9])
def test_a_rank_with_the_same_wrong_result_each_time_is_named(world_size: int) -> None:
    found, _ = judged(world_size, lambda _, who, share: b"wrong %d" % share if who == 1 else None)
    assert (found.lasting, found.passing, found.divided) == ((1,), (), ())
    assert found.standing == right(world_size)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_rank_with_another_wrong_result_each_time_is_named(world_size: int) -> None:
    found, _ = judged(world_size, lambda at, who, share: b"wrong %d" % at if who == 1 else None)
    assert (found.lasting, found.suspects) == ((1,), (1,))


def test_two_ranks_that_repeat_different_results_are_not_named() -> None:
    found, attempts = judged(2, lambda _, who, share: b"wrong %d" % share if who == 1 else None)
    assert (found.lasting, found.divided, found.standing, attempts) == ((), (0, 1), (None, None), 4)


def test_a_single_rank_with_varying_results_is_named() -> None:
    found, attempts = judged(1, lambda at, *_: b"wrong %d" % at)
    assert (found.lasting, attempts) == ((0,), 3)


@given(st.integers(3, 12), st.data())
def test_no_healthy_rank_is_suspected_whichever_single_rank_is_faulty(world_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    wrongs = data.draw(st.lists(st.sampled_from([None, b"x", b"y"]), min_size=3, max_size=3))
    found, _ = judged(world_size, lambda at, who, share: wrongs[at] if who == rank else None)
    assert {*found.passing, *found.suspects} <= {rank}
    assert found.standing == right(world_size)
