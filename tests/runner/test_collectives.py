"""Who is missing in a collective: late, in another one, or held up by who is."""

import pytest

from headway.runner.health.collectives import Collective, missing

SUM, GATHER = "all_reduce(Float[4])", "all_gather(Float[4])"


def at(number: int, group: str = "0", what: str = SUM, *, done: bool = False) -> Collective:
    return Collective(group, "default_pg" if group == "0" else "undefined", number, what, done)


def test_who_has_not_entered_what_the_others_wait_in_is_missing() -> None:
    found = missing({0: [at(7)], 1: [at(6, done=True)], 2: [at(7)], 3: [at(7)]})
    assert found is not None
    assert found.ranks == (1,)
    assert found.why == "rank 1 has not entered all_reduce(Float[4]), number 7 of group default_pg, in which 3 others wait"


def test_of_two_ranks_the_one_that_is_behind_is_missing() -> None:
    found = missing({0: [at(7)], 1: [at(6, done=True)]})
    assert found is not None
    assert found.ranks == (1,)


def test_a_rank_that_has_entered_nothing_is_missing_in_the_group_of_all_ranks_and_in_no_other() -> None:
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
        {0: [at(7, what=SUM)], 1: [at(7, what=GATHER)]},
    ],
    ids=["nothing known", "all wait", "nobody waits", "most are behind", "two in two different ones"],
)
def test_nobody_is_missing_where(entered: dict[int, list[Collective]]) -> None:
    assert missing(entered) is None


def test_who_is_late_because_it_waits_elsewhere_is_not_missing() -> None:
    """Rank 3 is missing in the group of 2 and 3, and so rank 2 in that of all."""
    everybody = {0: [at(9)], 1: [at(9)], 2: [at(8, done=True), at(5, "1")], 3: [at(8, done=True), at(4, "1", done=True)]}
    found = missing(everybody)
    assert found is not None
    assert found.ranks == (3,)


def test_where_all_who_are_late_wait_they_are_named_together() -> None:
    found = missing({0: [at(9)], 1: [at(9)], 2: [at(9)], 3: [at(8, done=True), Collective("1", "", 3, GATHER, done=False)]})
    assert found is not None
    assert found.ranks == (3,)


def test_who_has_entered_another_collective_than_most_is_named_with_both() -> None:
    found = missing({0: [at(7)], 1: [at(7, what=GATHER)], 2: [at(7)]})
    assert found is not None
    assert found.ranks == (1,)
    assert found.why == (
        "rank 1 has entered all_gather(Float[4]) where 2 others wait in all_reduce(Float[4]), number 7 of group default_pg"
    )


def test_many_ranks_are_named_in_a_line() -> None:
    entered = {rank: [at(2)] for rank in range(100)} | {rank: [at(1, done=True)] for rank in range(100, 120)}
    found = missing(entered)
    assert found is not None
    assert found.why.startswith("ranks 100, 101, 102, 103, 104, 105, 106, 107 and 12 more have not entered")
