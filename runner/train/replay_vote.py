"""Compares shares of a batch that several ranks computed, and finds the rank that computed wrongly. Pure functions.

In attempt `a` rank `r` computes share `(r + shifts(world_size)[a]) % world_size`, so each share has another witness in
each attempt. A result is valid if two ranks computed it. A rank that is wrong in one attempt had a transient fault; one
that is wrong in two has a permanent one, even if it is wrong the same way each time, which the same rank computing
again would never show.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


def shifts(world_size: int) -> tuple[int, ...]:
    """Return by how many ranks the shares move in each attempt that may be needed. With two ranks each computes twice;
    with one rank there is one share."""
    return {1: (0, 0, 0), 2: (0, 1, 0, 1)}.get(world_size, (0, 1, 2))


@dataclass(frozen=True)
class Judgement:
    """`standing`: the result of each share, None if no two ranks agree. `passing` ranks were wrong once, `lasting` ones
    repeatedly. `divided`: some of these ranks are wrong repeatedly, and no other rank can decide which."""

    standing: tuple[bytes | None, ...]
    passing: tuple[int, ...]
    lasting: tuple[int, ...]
    divided: tuple[int, ...]

    @property
    def suspects(self) -> tuple[int, ...]:
        return self.lasting or self.divided


class ReplayVote:
    """The results of one step's attempts."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        # By share: rank, result.
        self._votes: list[list[tuple[int, bytes]]] = [[] for _ in range(world_size)]

    def heard(self, shift: int, results: Sequence[bytes]) -> None:
        """Record the `results` by rank of an attempt with this shift."""
        for rank, result in enumerate(results):
            self._votes[(rank + shift) % self._world_size].append((rank, result))

    def settled(self) -> bool:
        """Whether no further attempt could change the judgement."""
        return None not in self.judge().standing

    def judge(self) -> Judgement:
        standing = tuple(map(self._standing, self._votes))
        wrong, lasting, divided = Counter[int](), set[int](), set[int]()
        for votes, result in zip(self._votes, standing, strict=True):
            if result is not None:
                wrong.update(rank for rank, given in votes if given != result)
            elif contradicted := _contradicting_themselves(votes):
                lasting |= contradicted
            else:
                divided |= {rank for rank, _ in votes}
        lasting |= {rank for rank, times in wrong.items() if times > 1}
        return Judgement(standing, tuple(sorted(set(wrong) - lasting)), tuple(sorted(lasting)), tuple(sorted(divided)))

    def _standing(self, votes: Sequence[tuple[int, bytes]]) -> bytes | None:
        """Return the result that two ranks computed; with a single rank, the one that it computed twice."""
        given = votes if self._world_size == 1 else sorted(set(votes))
        (result, times), *_ = Counter(result for _, result in given).most_common()
        return result if times > 1 else None


def _contradicting_themselves(votes: Sequence[tuple[int, bytes]]) -> set[int]:
    """Return ranks with two results for one share, where another rank had the same result twice."""
    results: dict[int, set[bytes]] = {}
    for rank, result in votes:
        results.setdefault(rank, set()).add(result)
    found = {rank for rank, given in results.items() if len(given) > 1}
    return found if len(found) < len(results) or len(results) == 1 else set()
