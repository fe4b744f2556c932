"""Tests which rank is missing in a collective, late or blocked by a late one, and which waits in another collective than the others."""

import pytest

from headway.runner.health.collectives import Collective, CollectiveOperation, at_odds, missing

SUM, GATHER = "all_reduce(Float[4])", "all_gather(Float[4])"


def at(number: int, group: str = "0", what: str = SUM, *, done: bool = False) -> Collective:
    return Collective(group, "default_pg" if group == "0" else "undefined", number, what, done)


def test_a_rank_that_has_not_entered_the_others_collective_is_missing() -> None:
    found = missing({0: [at(7)], 1: [at(6, done=True)], 2: [at(7)], 3: [at(7)]})
    assert found is not None
    assert found.ranks == (1,)
    assert found.why == "rank 1 has not entered all_reduce(Float[4]), number 7 of group default_pg, in which 3 others wait"


def test_the_rank_behind_the_other_is_missing() -> None:
    found = missing({0: [at(7)], 1: [at(6, done=True)]})
    assert found is not None
    assert found.ranks == (1,)


def test_a_rank_without_any_collective_is_missing_only_in_the_group_of_all() -> None:
    found = missing({0: [at(1)], 1: []})
    assert found is not None
    assert found.ranks == (1,)
    assert missing({0: [at(1, "4")], 1: []}) is None


@pytest.mark.parametrize(
    "entered",
    [
        {},
        {0: [at(7)], 1: [at(7)]},
        {0: [at(7, done=True)], 1: [at(6, done=True)]},
        {0: [at(7)], 1: [at(6, done=True)], 2: [at(6, done=True)]},
    ],
    ids=["nothing is known", "all wait", "none waits", "most are behind"],
)
def test_no_rank_is_missing_if(entered: dict[int, list[Collective]]) -> None:
    assert missing(entered) is None


def test_a_rank_that_is_late_because_it_waits_elsewhere_is_not_missing() -> None:
    """Rank 3 is missing in the group of 2 and 3, and therefore rank 2 in the group of all."""
    everybody = {0: [at(9)], 1: [at(9)], 2: [at(8, done=True), at(5, "1")], 3: [at(8, done=True), at(4, "1", done=True)]}
    found = missing(everybody)
    assert found is not None
    assert found.ranks == (3,)


def test_if_all_late_ranks_wait_they_are_named_together() -> None:
    found = missing({0: [at(9)], 1: [at(9)], 2: [at(9)], 3: [at(8, done=True), Collective("1", "", 3, GATHER, done=False)]})
    assert found is not None
    assert found.ranks == (3,)


def waits(operation: str, number: int = 7, before: str = "same", group: str = "0") -> Collective:
    """The rank is in `operation`, with more operations entered after it."""
    recent = (
        CollectiveOperation(number - 1, SUM, "old"),
        CollectiveOperation(number, operation, before),
        CollectiveOperation(number + 2, SUM, "new"),
    )
    return Collective(group, "default_pg", number + 2, SUM, False, number, recent)


def has_done(operation: str, number: int = 7) -> Collective:
    """It waits in the operation after it."""
    recent = (CollectiveOperation(number, operation, "same"), CollectiveOperation(number + 1, SUM, "new"))
    return Collective("0", "default_pg", number + 1, SUM, False, number + 1, recent)


def test_a_rank_in_another_operation_than_most_is_named_with_both() -> None:
    found = at_odds({0: [waits("all_reduce of 4 elements")], 1: [waits("barrier")], 2: [waits("all_reduce of 4 elements")]})
    assert found is not None
    assert found[0].ranks == (1,)
    assert found[0].why == (
        "rank 1 has entered barrier as number 7 of group default_pg, and 2 others all_reduce of 4 elements: they will never match"
    )
    assert found[1] == {0, 1, 2}


def test_two_ranks_in_different_operations_are_not_culprits() -> None:
    found = at_odds({0: [waits("barrier")], 1: [waits("broadcast")], 2: [at(6, done=True)]})
    assert found is not None
    assert found[0].ranks == ()
    assert (
        found[0].why == "rank 1 has entered broadcast as number 7 of group default_pg, and 1 other barrier: they will never match"
    )
    assert found[1] == {0, 1}, "rank 2 waits for no rank"


def test_a_rank_whose_operation_completed_without_the_others_is_mismatched() -> None:
    """Like the root of a broadcast, which only sends."""
    found = at_odds({0: [waits("all_reduce of 4 elements")], 1: [has_done("broadcast")]})
    assert found is not None
    assert found[1] == {0, 1}
    assert at_odds({0: [has_done("broadcast")], 1: [has_done("broadcast")]}) is None


def test_ranks_match_if_one_has_completed_an_operation_of_all() -> None:
    """Its count differs: it could not have completed the operation without the others."""
    assert at_odds({0: [waits("all_reduce of 4 elements")], 1: [has_done("all_gather")]}) is None


def test_a_rank_that_waits_for_no_other_rank_is_not_compared() -> None:
    done = Collective("0", "default_pg", 7, SUM, True, 0, (CollectiveOperation(7, "broadcast", "same"),))
    assert at_odds({0: [waits("barrier")], 1: [done]}) is None


@pytest.mark.parametrize(
    "other",
    [waits("barrier"), waits("broadcast", 8), waits("broadcast", before="other"), waits("broadcast", group="4"), at(7)],
    ids=["the same", "another number", "another count", "another group", "an unknown operation"],
)
def test_ranks_are_not_mismatched_if_one_waits_in(other: Collective) -> None:
    assert at_odds({0: [waits("barrier")], 1: [other]}) is None


def test_many_ranks_are_named_in_one_line() -> None:
    entered = {rank: [at(2)] for rank in range(100)} | {rank: [at(1, done=True)] for rank in range(100, 120)}
    found = missing(entered)
    assert found is not None
    assert found.why.startswith("ranks 100, 101, 102, 103, 104, 105, 106, 107 and 12 more have not entered")
