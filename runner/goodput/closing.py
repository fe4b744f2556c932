"""The last line of a run: what its failures cost, by cause, from its ledger and journal."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.runner.lines import read_lines

# Seconds that are lost to the failure that ends their generation, and those lost to the one that it follows.
_IN_FAILING = ("detect", "hang")
_IN_RECOVERY = ("restore", "restart", "rendezvous", "queue")


@dataclass(frozen=True)
class Failed:
    """A failure of a generation, by its kind."""

    generation: int
    kind: str


def closing_line(root: Path) -> str:
    """`lost 41.0 s in 3 failures: 2 crash 12.0 s, 1 hang 29.0 s (ETTR 0.987, with queue 0.950)` of the run directory `root`.

    Raises OSError when ledger or journal cannot be read.
    """
    ledger = [line for line, _ in read_lines(root / "ledger.jsonl")]
    journal = [line for path in sorted((root / "shared" / "journal").glob("*.jsonl")) for line, _ in read_lines(path)]
    failures = [Failed(line["generation"], line.get("cause_kind") or "crash") for line in journal if line["kind"] == "failure"]
    ratio = _ratio(ledger)
    if not failures:
        return f"nothing lost: no failure{ratio}"
    spent = costs(ledger, failures, _loaded(journal))
    counts = Counter(failure.kind for failure in failures)
    each = ", ".join(
        f"{counts[kind]} {kind} {spent[kind]:.1f} s" for kind in sorted(counts, key=lambda kind: (-spent[kind], kind))
    )
    noun = "failure" if len(failures) == 1 else "failures"
    return f"lost {sum(spent.values()):.1f} s in {len(failures)} {noun}: {each}{ratio}"


def costs(ledger: Sequence[Mapping[str, Any]], failures: Sequence[Failed], loaded: frozenset[int]) -> dict[str, float]:
    """Seconds by kind: until the failed generation's ranks had ended, until the next one trained, and the steps done again.

    `loaded` are the generations that got their state: what one that did not took is counted with the failure before it.
    """
    ended_by = {failure.generation: failure.kind for failure in failures}
    numbers = sorted({line["generation"] for line in ledger if line["generation"]} | ended_by.keys())
    followed = dict(_followed(numbers, ended_by, loaded))
    opening = {line["attempt"]: line["generation"] for line in reversed(ledger) if line["generation"]}
    spent = dict.fromkeys(ended_by.values(), 0.0)
    for line in ledger:
        number = line["generation"] or opening.get(line["attempt"], 0)
        after, by = followed.get(number), ended_by.get(number)
        again = after or next((ended_by[earlier] for earlier in sorted(ended_by, reverse=True) if earlier < number), by)
        for kind, names in ((by or after, _IN_FAILING), (after, _IN_RECOVERY), (again, ("lost_recompute",))):
            if kind is not None:
                spent[kind] += sum(line["buckets"].get(name, 0.0) for name in names)
    return spent


def _followed(numbers: Sequence[int], ended_by: Mapping[int, str], loaded: frozenset[int]) -> Iterator[tuple[int, str]]:
    kind: str | None = None
    for number in numbers:
        if kind is not None:
            yield number, kind
        if number in ended_by:
            kind = ended_by[number]
        elif number in loaded:
            kind = None


def _loaded(journal: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """The generations whose ranks had their state, or whose script ran."""
    return frozenset(
        line["generation"]
        for line in journal
        if line["kind"] == "loaded" or (line["kind"] == "section" and line["name"] == "script")
    )


def _ratio(ledger: Sequence[Mapping[str, Any]]) -> str:
    """The effective training time ratio without and, where there was one, with the queue."""
    sums: Counter[str] = Counter()
    for line in ledger:
        sums.update(line["buckets"])
    wall, queue = sums.total(), sums["queue"]
    if wall - queue <= 0:
        return ""
    told = f"ETTR {sums['productive'] / (wall - queue):.3f}"
    return f" ({told}, with queue {sums['productive'] / wall:.3f})" if queue else f" ({told})"
