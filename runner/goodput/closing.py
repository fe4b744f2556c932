"""Writes the last line of a run: the cost of its failures by cause, from its ledger and journal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.runner.contract import RunDirectory, cost_by_kind
from headway.runner.lines import read_lines


def closing_line(root: Path) -> str:
    """Return `lost 41.0 s in 3 failures: 2 crash 12.0 s, 1 hang 29.0 s (ETTR 0.987, with queue 0.950)` of the run
    directory `root`.

    Raises OSError when ledger or journal cannot be read.
    """
    files = RunDirectory(root)
    ledger = [line for line, _ in read_lines(files.ledger)]
    journal = [line for path in files.journal_files().values() for line, _ in read_lines(path)]
    failures = [(line["generation"], line.get("cause_kind") or "crash") for line in journal if line["kind"] == "failure"]
    ratio = _ratio(ledger)
    if not failures:
        return f"nothing lost: no failure{ratio}"
    spent = cost_by_kind(((line["generation"], line["buckets"]) for line in ledger), dict(failures), _loaded(journal))
    counts = Counter(kind for _, kind in failures)
    each = ", ".join(
        f"{counts[kind]} {kind} {spent[kind]:.1f} s" for kind in sorted(counts, key=lambda kind: (-spent[kind], kind))
    )
    noun = "failure" if len(failures) == 1 else "failures"
    return f"lost {sum(spent.values()):.1f} s in {len(failures)} {noun}: {each}{ratio}"


def _loaded(journal: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the generations whose ranks had their state, or whose script ran."""
    return frozenset(
        line["generation"]
        for line in journal
        if line["kind"] == "loaded" or (line["kind"] == "section" and line["name"] == "script")
    )


def _ratio(ledger: Sequence[Mapping[str, Any]]) -> str:
    """Return the effective training time ratio without and, if there was one, with the queue."""
    sums: Counter[str] = Counter()
    for line in ledger:
        sums.update(line["buckets"])
    wall, queue = sums.total(), sums["queue"]
    if wall - queue <= 0:
        return ""
    told = f"ETTR {sums['productive'] / (wall - queue):.3f}"
    return f" ({told}, with queue {sums['productive'] / wall:.3f})" if queue else f" ({told})"
