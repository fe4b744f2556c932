"""Counts what a run has used of its limits over all attempts, from the ledger."""

from headway.runner.contract import RunConfig, RunDirectory
from headway.runner.lines import read_lines


def remaining(config: RunConfig, directory: RunDirectory, now: float) -> tuple[float | None, str]:
    """Return the seconds until the run reaches the nearer of its limits, and that limit in words; None and "" without one.

    `now` is Unix time. The time in the queue does not count; the attempt's own counts from its begin, with all its nodes.
    """
    time_s, gpu_hours = config.limits.time_s, config.limits.gpu_hours
    if time_s is None and gpu_hours is None:
        return None, ""
    nodes, spent_s, spent_node_s = config.slots + config.spares, 0.0, 0.0
    since = directory.run_json.stat().st_mtime
    for line, _ in read_lines(directory.ledger):
        # Generation 0 is the wait before the next one.
        if line["generation"]:
            seconds = line["end"] - line["start"]
            spent_s += seconds
            spent_node_s += seconds * (line["slots"] + line["spares"])
            since = max(since, line["end"])
    begun_s = max(0.0, now - since)
    found = []
    if time_s is not None:
        found.append((time_s - spent_s - begun_s, f"{_written(time_s)} of all attempts together (limits.run.time)"))
    if gpu_hours is not None:
        left_s = (gpu_hours * 3600 / config.procs_per_slot - spent_node_s) / nodes - begun_s
        found.append((left_s, f"{gpu_hours:,g} GPU-hours of all attempts together (limits.run.gpu_hours)"))
    return min(found)


def _written(seconds: float) -> str:
    """Return the duration as a spec has it, in the longest unit of which it is a multiple."""
    unit, length = next(
        ((unit, length) for unit, length in (("d", 86400), ("h", 3600), ("m", 60)) if not seconds % length), ("s", 1)
    )
    return f"{seconds / length:g}{unit}"
