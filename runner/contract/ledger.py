"""Defines the buckets of ledger.jsonl, and what a failure costs by them."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence

LEDGER_BUCKETS = (
    "productive",
    "lost_recompute",
    "save_block",
    "restore",
    "detect",
    "restart",
    "rendezvous",
    "queue",
    "hang",
    "straggle",
    "spare_idle",
)

# Seconds that are lost to the failure that ends their generation, and seconds that are lost to the failure before it.
_IN_FAILING = ("detect", "hang")
_IN_RECOVERY = ("restore", "restart", "rendezvous", "queue")


def cost_by_kind(
    ledger: Iterable[tuple[int, Mapping[str, float]]], ended_by: Mapping[int, str], loaded: Collection[int]
) -> dict[str, float]:
    """Return the seconds lost by kind of failure: until the failed generation's ranks had ended, until the next generation
    trained, and for the repeated steps.

    `ledger` has generation and buckets of each line, in their order; generation 0 is the wait before the next one.
    `ended_by` has the kind of failure of each failed generation. `loaded` are the generations that loaded their state: the
    seconds of one that did not are counted with the failure before it.
    """
    known, failed = sorted({*ended_by, *loaded}), sorted(ended_by)
    spent = dict.fromkeys(ended_by.values(), 0.0)
    newest = 0
    for generation, buckets in ledger:
        number = generation or newest + 1
        newest = max(newest, generation)
        by, after = ended_by.get(number), ended_by.get(_last_before(number, known))
        again = after or ended_by.get(_last_before(number, failed)) or by
        for kind, names in ((by or after, _IN_FAILING), (after, _IN_RECOVERY), (again, ("lost_recompute",))):
            if kind is not None:
                spent[kind] += sum(buckets.get(name, 0.0) for name in names)
    return spent


def _last_before(number: int, numbers: Sequence[int]) -> int:
    """Return the highest of the sorted `numbers` below `number`; 0, which is not a generation, if there is none."""
    place = bisect_left(numbers, number)
    return numbers[place - 1] if place else 0
