"""Puts a line of the journal into words, for the user who watches the run."""

from collections.abc import Mapping
from typing import Any

from headway.report.events import sentence
from headway.runner.contract import RecordError
from headway.runner.contract.journal import Failure, Loaded, Preempted, Refused, Section, Start, read_entry


def journal_words(line: Mapping[str, Any]) -> str | None:
    """Return the line in words; None for one that the progress bar shows already, or that is damaged."""
    try:
        entry = read_entry(line)
    except RecordError:
        return None
    match entry:
        case Start():
            return f"generation {line['generation']}: starting {entry.world_size} ranks"
        case Loaded() if entry.step:
            return f"step {entry.step:,}: checkpoint verified by all ranks, resuming from it"
        case Failure():
            step = "" if entry.step is None else f"step {entry.step:,}: "
            return f"{step}{_place(entry)} failed ({entry.cause})"
        case Section(name="script"):
            return f"generation {line['generation']}: the script is running; its output is in `logs` of the attempt"
        case Refused():
            return f"step {entry.step:,}: checkpoint refused, {entry.name}: {entry.reason}"
        case Preempted():
            return "preemption requested"
    return sentence(entry)


def _place(failure: Failure) -> str:
    """Return the rank or the node; a failure of several ranks has neither."""
    if failure.rank is not None:
        return f"rank {failure.rank}"
    return "the generation" if failure.node is None else f"node {failure.node}"
