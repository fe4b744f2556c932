"""Corrects estimated steps by measured ones of the same cluster, model and framework."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from headway.planner.speed.speed import Speed, constants
from headway.planner.speed.step import EstimatedStep, step_time
from headway.planner.training import Training

# Steps of a run that are not counted: the first ones compile kernels, fill caches and set up communicators.
WARM_UP = 5
# By how much, as a logarithm, a step of the same run differs when it is measured again.
_REPEATED = 0.01


class MeasurementError(Exception):
    """Measurements without information on a step's time; the text is the reason."""


class Calibration(Struct, frozen=True):
    """Steps as they will be, where `measured` ones are known.

    The logarithms of measured over estimated time are taken as a Gaussian process: a part that all runs on the cluster share, a part that
    only layouts like each other share, and what is each run's own (C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine
    Learning, algorithm 2.1). So one measurement moves every estimate, most those of layouts like it, and none by all of its own error.
    `shared` is the variance of the first part.
    """

    measured: tuple[Training, ...]
    weights: tuple[float, ...]
    speed: Speed
    shared: float

    def factor(self, training: Training) -> float:
        """Return what the estimate of the training is multiplied by."""
        pairs = zip(self.measured, self.weights, strict=True)
        return math.exp(sum(weight * self._with(training, other) for other, weight in pairs))

    def step_time(self, training: Training) -> EstimatedStep:
        """Return the training's step. Raises ScheduleError where the pipeline's schedule does not take the layout."""
        step, factor, left = step_time(training, self.speed), self.factor(training), self._left_open(training)
        return replace(
            step,
            seconds=step.seconds * factor,
            parts={name: seconds * factor for name, seconds in step.parts.items()},
            low=step.seconds * factor * (step.low / step.seconds) ** left,
            high=step.seconds * factor * (step.high / step.seconds) ** left,
            extrapolated=tuple(reason for reason in step.extrapolated if reason not in self._lifted),
        )

    @property
    def _lifted(self) -> set[str]:
        """Reasons for a wide interval that a measured step had too."""
        return {reason for training in self.measured for reason in self.speed.intervals.of(training).reasons}

    def _left_open(self, training: Training) -> float:
        """Return the share of the estimate's spread, as a logarithm, that the measurements leave open."""
        covariances = [self._with(training, other) for other in self.measured]
        solved = _solved(_matrix(self.measured, self.speed, self.shared), covariances)
        explained = sum(one * other for one, other in zip(covariances, solved, strict=True))
        return math.sqrt(1 - explained / _matrix((training,), self.speed, self.shared)[0][0])

    def _with(self, training: Training, other: Training) -> float:
        return _covariance(training, other, self.speed, self.shared)


def calibrate(measured: Sequence[tuple[Training, float]], speed: Speed | None = None) -> Calibration:
    """Calibrate from trainings and the seconds of a step of each. Raises MeasurementError."""
    speed = constants() if speed is None else speed
    if not measured:
        raise MeasurementError("no step was measured")
    if any(not seconds > 0 for _, seconds in measured):
        raise MeasurementError("a measured step takes no time")
    trainings = tuple(training for training, _ in measured)
    errors = [math.log(seconds / step_time(training, speed).seconds) for training, seconds in measured]
    shared = _shared(errors, speed)
    return Calibration(trainings, tuple(_solved(_matrix(trainings, speed, shared), errors)), speed, shared)


def _shared(errors: Sequence[float], speed: Speed) -> float:
    """Variance of what all runs on the cluster have in common: that of the constants, or what the measurements' mean error shows beyond
    two standard deviations of all that the constants know. A cluster that is very different is then believed to be."""
    known = speed.likeness
    expected = known["shared"] ** 2 + (known["similar"] ** 2 + known["own"] ** 2) / len(errors)
    return max(known["shared"] ** 2, statistics.fmean(errors) ** 2 - 4 * expected)


def measured_step(metrics: Path) -> float:
    """Return seconds of a step of a run by its metrics.jsonl: the median, without those that warm up each generation.

    Raises MeasurementError, OSError.
    """
    seconds, seen = [], dict[int, int]()
    for line in _whole_lines(metrics):
        generation, step_s = _step_of(line)
        seen[generation] = seen.get(generation, 0) + 1
        if seen[generation] > WARM_UP:
            seconds.append(step_s)
    if not seconds:
        raise MeasurementError(f"{metrics} has only the first {WARM_UP} steps of each generation")
    return statistics.median(seconds)


def _whole_lines(metrics: Path) -> list[str]:
    """Return the lines without blank ones, and without a last one of several that is being written, or was when the machine stopped."""
    text = metrics.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[:-1] if len(lines) > 1 and not text.endswith(("\n", "}")) else lines


def _step_of(line: str) -> tuple[int, float]:
    try:
        found = json.loads(line)
        return int(found["generation"]), float(found["step_s"])
    except (ValueError, KeyError, TypeError) as error:
        raise MeasurementError(f"not a line of metrics.jsonl: {line[:80]}") from error


def _covariance(one: Training, other: Training, speed: Speed, shared: float) -> float:
    """Return the covariance of the errors of two estimates; a run's own part is measured with it, and a step of the
    same run has it again."""
    known = speed.likeness
    own = known["own"] ** 2 if one == other else 0.0
    return shared + own + known["similar"] ** 2 * math.exp(-distance(one, other) / known["distance"])


def distance(one: Training, other: Training) -> float:
    """Return how unlike two layouts are: doublings between their degrees, microbatches, sequences and GPUs, and kernels
    or recomputation that differ."""
    doublings = sum(abs(math.log2(first / second)) for first, second in zip(_sizes(one), _sizes(other), strict=True))
    return doublings + sum(first != second for first, second in zip(_choices(one), _choices(other), strict=True))


def _sizes(training: Training) -> tuple[float, ...]:
    degrees = training.degrees
    return (degrees.tp, degrees.pp, degrees.cp, degrees.ep, training.micro, training.sequence, training.gpus)


def _choices(training: Training) -> tuple[object, ...]:
    return (training.recompute, training.kernels, training.formats, training.degrees.sharding, training.degrees.sequence_parallel)


def _matrix(trainings: Sequence[Training], speed: Speed, shared: float) -> list[list[float]]:
    return [
        [_covariance(one, other, speed, shared) + _REPEATED**2 * (i == j) for j, other in enumerate(trainings)]
        for i, one in enumerate(trainings)
    ]


def _solved(matrix: list[list[float]], right: Sequence[float]) -> list[float]:
    """Return the solution of a symmetric, positive definite system, by elimination."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column, pivot in enumerate(rows):
        for row in rows[column + 1 :]:
            share = row[column] / pivot[column]
            for index in range(column, len(row)):
                row[index] -= share * pivot[index]
    solution = [0.0] * len(rows)
    for index in reversed(range(len(rows))):
        known = sum(rows[index][other] * solution[other] for other in range(index + 1, len(rows)))
        solution[index] = (rows[index][-1] - known) / rows[index][index]
    return solution
