"""Predicts each row with the planner, next to the measurement."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct

from benchmarks.planner.rows import Row
from headway.planner.memory.ledger import MemoryUse, peak
from headway.planner.speed.step import EstimatedStep, step_time
from headway.planner.training import Training

Answer = TypeVar("Answer")


class Predicted(Struct, frozen=True):
    """A row whose training is known, and the planner's answer; `refused` is the reason if there is none."""

    row: Row
    training: Training
    step: EstimatedStep | None
    memory: MemoryUse | None
    refused: str = ""


def predict(rows: Iterable[Row]) -> list[Predicted]:
    """Return the planner's answers for the rows whose training is known, in order."""
    return [_predicted(row, row.training) for row in rows if row.training is not None]


def _predicted(row: Row, training: Training) -> Predicted:
    step, why_not = _answer(step_time, training)
    memory, nor = _answer(peak, training)
    return Predicted(row, training, step, memory, "; ".join(filter(None, (why_not, nor))))


def _answer(ask: Callable[[Training], Answer], training: Training) -> tuple[Answer | None, str]:
    try:
        return ask(training), ""
    except (ValueError, LookupError, ArithmeticError) as error:
        return None, f"{ask.__name__}: {type(error).__name__}: {error}"
