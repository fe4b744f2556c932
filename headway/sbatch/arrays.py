"""Turns an array of jobs, or the turns of loops, into a sweep: the script is read once for each, and what differs becomes the points."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headway.sbatch.notes import NoteKind, Notes
from headway.sbatch.options import Option

MOST_POINTS = 1000
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
# Arguments whose value a job has in a field of its own.
_FIELDS = {"seed": "seed", "lr": "optimizer.lr", "learning_rate": "optimizer.lr"}


def indices(option: Option | None) -> list[int]:
    """Return the numbers of an array's tasks (sbatch(1), --array); none for what is not an array, or has more than 1000."""
    if option is None:
        return []
    found: list[int] = []
    for part in (option.value.known or "").partition("%")[0].split(","):
        numbers = _RANGE.fullmatch(part)
        if numbers is None:
            return []
        first, last, step = int(numbers[1]), int(numbers[2] or numbers[1]), int(numbers[3] or 1)
        if not step or len(found) + (last - first) // max(step, 1) >= MOST_POINTS:
            return []
        found += range(first, last + 1, step)
    return found


def swept(job: dict[str, Any], jobs: Sequence[Mapping[str, Any]], option: Option, notes: Notes) -> None:
    """Add a sweep to the job, with a point for each of the jobs of the array's tasks."""
    if not jobs:
        notes.add(
            NoteKind.UNREAD,
            option.line,
            option.written,
            "not an array that a sweep can have: numbers and ranges, 1000 tasks at most",
        )
        return
    if "%" in (option.value.known or ""):
        why = "how many tasks run at a time: the runs of a sweep are submitted one by one"
        notes.add(NoteKind.UNREAD, option.line, f"%{(option.value.known or '').partition('%')[2]}", why)
    points = _points(job, jobs)
    if points is None:
        notes.add(
            NoteKind.UNREAD, option.line, option.written, "what differs between the tasks is not one of arguments and variables"
        )
    elif not any(points):
        why = "the tasks differ in nothing that the script shows: what reads SLURM_ARRAY_TASK_ID needs a field with `sweep`"
        notes.add(NoteKind.UNREAD, option.line, option.written, why)
    else:
        _write(job, points)


def swept_by_turns(job: dict[str, Any], jobs: Sequence[Mapping[str, Any]]) -> bool:
    """Add a sweep to the job, with a point for each of the jobs of the turns of its loops; False where a sweep cannot have them."""
    points = _points(job, jobs)
    if points is None or not any(points):
        return False
    _write(job, points)
    return True


def _points(job: dict[str, Any], jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the values of each task; None where the tasks differ in something else."""
    points: list[dict[str, Any]] = [{} for _ in jobs]
    environments = [each.get("environment", {}) for each in jobs]
    for name in dict.fromkeys(name for each in environments for name in each):
        values = [each.get(name) for each in environments]
        if None in values:
            return None
        if len(set(values)) > 1:
            for point, value in zip(points, values, strict=True):
                point[f"environment.{name}"] = value
    rest = [{key: value for key, value in each.items() if key not in ("environment", "run", "trainer", "seed")} for each in jobs]
    if any(each != rest[0] for each in rest):
        return None
    _compare_arguments(job, jobs, points)
    return points


def _compare_arguments(job: dict[str, Any], jobs: Sequence[Mapping[str, Any]], points: list[dict[str, Any]]) -> None:
    argvs = [_argv(each) for each in jobs]
    seeds = [each.get("seed") for each in jobs]
    if len(set(seeds)) > 1:
        for point, seed in zip(points, seeds, strict=True):
            point["seed"] = seed
    own = _argv(job)
    same_length = len({len(argv) for argv in argvs}) == 1
    differing = [index for index in range(len(own)) if len({argv[index] for argv in argvs}) > 1] if same_length else []
    fields = {index: _field(own, index) for index in differing}
    values = {index: [_value(argv, index) for argv in argvs] for index in differing}
    if same_length and all(fields.values()) and all(None not in each for each in values.values()):
        for index, field in fields.items():
            for point, value in zip(points, values[index], strict=True):
                point[str(field)] = value
            flag, equals, _ = own[index].partition("=")
            own[index] = f"{flag}{equals}{{{field}}}" if equals else f"{{{field}}}"
    elif not same_length or differing:
        for point, argv in zip(points, argvs, strict=True):
            point["trainer.options.argv"] = list(argv)


def _argv(job: Mapping[str, Any]) -> list[str]:
    found: list[str] = job["run"] if "run" in job else job["trainer"]["options"]["argv"]
    return found


def _field(argv: Sequence[str], index: int) -> str | None:
    """Return the field of a job whose value the argument at the index is."""
    flag = argv[index].partition("=")[0] if argv[index].startswith("-") else argv[index - 1] if index else ""
    return _FIELDS.get(flag.lstrip("-").rpartition(".")[2].replace("-", "_"))


def _value(argv: Sequence[str], index: int) -> float | int | None:
    """Return the number that the argument at the index has."""
    word = argv[index].partition("=")[2] if argv[index].startswith("-") else argv[index]
    try:
        return int(word) if word.isdigit() else float(word)
    except ValueError:
        return None


def _write(job: dict[str, Any], points: list[dict[str, Any]]) -> None:
    """Write the points into the job: a field with one value for each point as a grid, and the first point's values in their places."""
    names = list(points[0])
    if "trainer.options.argv" in names and "run" in job:
        job["trainer"] = {"kind": "script", "options": {"argv": job.pop("run")}}
    if "optimizer.lr" in names:
        job["optimizer"] = {"lr": points[0]["optimizer.lr"]}
    for name in names:
        if name == "seed":
            job["seed"] = points[0]["seed"]
    if len(names) == 1 and names[0] != "trainer.options.argv":
        values = [point[names[0]] for point in points]
        job["sweep"] = {"grid": {names[0]: list(dict.fromkeys(values))}}
    else:
        unique = [point for index, point in enumerate(points) if point not in points[:index]]
        job["sweep"] = {"points": unique}
