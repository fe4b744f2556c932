"""Fits the constants of speed.yaml by least squares between estimated and measured step times.

The minimised sum takes the logarithm of estimated over measured time of each row, weighs sources by the root of their rows, counts what is
beyond Huber's bound only in proportion, and pulls every constant towards the value in its source. It is found by steps of Gauss and Newton,
damped as Levenberg and Marquardt do.
"""

import copy
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from benchmarks.planner.rows import Row
from headway.planner.speed import speed
from headway.planner.speed.step import step_time
from headway.planner.training import Training

# A source that measured eight small models on one node, in a line of its own in the score: it has a sixth of a weight.
OWN_LINE, _OWN_WEIGHT = "vtrain-single", 0.15

_Vector = NDArray[np.floating[Any]]
# A row that misses by this much counts as much as a constant that is one `within` away from its source; beyond the bound, in proportion.
_ERROR, _HUBER = 0.05, 0.1
_SHARES = {"tensor_forward", "tensor_backward", "context", "gradients", "parameters", "pipeline"}
_STEP, _LONGEST, _ENOUGH = 1e-3, 0.7, 2e-3


class Constant(Struct, frozen=True):
    """A constant that is fitted, by its path in speed.yaml. It is fitted as a logarithm, a share as log(x / (1 - x))."""

    path: tuple[str, ...]
    prior: float
    within: float

    def encoded(self, value: float) -> float:
        """Return what the fit moves."""
        return math.log(value / (1 - value)) if self.path[-1] in _SHARES else math.log(value)

    def decoded(self, moved: float) -> float:
        """Return the constant's value."""
        return 1 / (1 + math.exp(-moved)) if self.path[-1] in _SHARES else math.exp(moved)


def constants_of(tables: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[Constant]:
    """Return those that have a `prior`."""
    if "prior" in tables:
        return [Constant(path, tables["prior"], tables["within"])]
    inner = ((name, table) for name, table in tables.items() if isinstance(table, dict))
    return [constant for name, table in inner for constant in constants_of(table, (*path, name))]


class Fit:
    """Rows, and the constants that are fitted to them."""

    def __init__(self, rows: Sequence[Row], tables: Mapping[str, Any]) -> None:
        self.constants = constants_of(tables)
        self._tables = copy.deepcopy(dict(tables))
        self._trainings = [training_of(row) for row in rows]
        self._measured = np.array([math.log(row.step_s or 0.0) for row in rows])
        self._weights = _weights(rows) / _ERROR**2
        self._priors = np.array([constant.encoded(constant.prior) for constant in self.constants])
        self._within = np.array([constant.within for constant in self.constants])
        self._touched: list[NDArray[np.int64]] = []

    @property
    def start(self) -> _Vector:
        """The values that the tables have."""
        return np.array([constant.encoded(_entry(self._tables, constant.path)["value"]) for constant in self.constants])

    def speed(self, moved: _Vector) -> speed.Speed:
        """Return all constants, with these of the fit."""
        tables = copy.deepcopy(self._tables)
        for constant, value in zip(self.constants, moved, strict=True):
            _entry(tables, constant.path)["value"] = constant.decoded(float(value))
        return speed.speed_of(tables)

    def errors(self, moved: _Vector, rows: Iterable[int] | None = None) -> _Vector:
        """Logarithms of estimated over measured time."""
        known = self.speed(moved)
        chosen = range(len(self._trainings)) if rows is None else list(rows)
        return np.array([math.log(step_time(self._trainings[row], known).seconds) - self._measured[row] for row in chosen])

    def solve(self, rounds: int) -> _Vector:
        """Return the constants that fit best, from those of the tables."""
        moved, damping = self.start, 1e-2
        errors = self.errors(moved)
        loss = self._loss(errors, moved)
        for _ in range(rounds):
            system = self._system(moved, errors)
            for _ in range(6):
                tried = moved + np.clip(_damped(*system, damping), -_LONGEST, _LONGEST)
                tried_errors = self.errors(tried)
                gained = loss - self._loss(tried_errors, tried)
                if gained > 0:
                    break
                damping *= 4
            else:
                return moved
            moved, errors, loss, damping = tried, tried_errors, loss - gained, damping / 5
            if gained < _ENOUGH * loss:
                break
        return moved

    def _loss(self, errors: _Vector, moved: _Vector) -> float:
        size = np.abs(errors)
        rows = np.where(size < _HUBER, 0.5 * size**2, _HUBER * (size - 0.5 * _HUBER))
        return float((self._weights * rows).sum() + 0.5 * (((moved - self._priors) / self._within) ** 2).sum())

    def _system(self, moved: _Vector, errors: _Vector) -> tuple[_Vector, _Vector]:
        """Return the normal equations: of the rows, each as far as it is within the bound, and of the priors."""
        slopes = self._slopes(moved, errors)
        weights = self._weights * np.minimum(1.0, _HUBER / np.maximum(np.abs(errors), 1e-12))
        matrix = slopes.T @ (weights[:, None] * slopes) + np.diag(1 / self._within**2)
        return matrix, slopes.T @ (weights * errors) + (moved - self._priors) / self._within**2

    def _slopes(self, moved: _Vector, errors: _Vector) -> _Vector:
        """Return the slopes by differences. The rows that a constant affects are determined once."""
        slopes = np.zeros((len(errors), len(moved)))
        everyone = np.arange(len(errors))
        found = []
        for index in range(len(moved)):
            rows = self._touched[index] if self._touched else everyone
            beside = moved.copy()
            beside[index] += _STEP
            slopes[rows, index] = (self.errors(beside, rows) - errors[rows]) / _STEP
            found.append(np.nonzero(slopes[:, index])[0])
        self._touched = self._touched or found
        return slopes


def _damped(matrix: _Vector, gradient: _Vector, damping: float) -> _Vector:
    return -np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), gradient)


def _weights(rows: Sequence[Row]) -> _Vector:
    sizes = Counter(row.source for row in rows)
    own = {OWN_LINE: _OWN_WEIGHT}
    return np.array([own.get(row.source, 1.0) / math.sqrt(sizes[row.source]) for row in rows])


def _entry(tables: Mapping[str, Any], path: Iterable[str]) -> dict[str, Any]:
    found: Any = tables
    for name in path:
        found = found[name]
    entry: dict[str, Any] = found
    return entry


def training_of(row: Row) -> Training:
    """Return the row's. Raises ValueError where it has none."""
    if row.training is None:
        raise ValueError(f"{row.id} has no training")
    return row.training
