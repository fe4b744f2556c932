"""Measures the planner's accuracy: step times, memory and choices of layouts against published runs, and against peers."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.claim import MeasureError
from benchmarks.planner.goals import goals
from benchmarks.planner.plot import plot
from benchmarks.planner.report import lines
from benchmarks.planner.rows import PUBLISHED, read
from benchmarks.planner.score import as_json, each_row, score


def main(arguments: Sequence[str]) -> int:
    """0 where every goal that could be measured is met, 1 where one is not, 3 without rows or peers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("--rows", nargs="+", type=Path, default=[PUBLISHED], metavar="FILE", help="CSV files of published runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write step-time.png and memory.png into this folder")
    options = parser.parse_args(arguments)
    try:
        found, predictions = score(read(options.rows))
        pictures = plot(predictions, options.plot) if options.plot else []
    except (OSError, MeasureError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 3
    reached = goals(found)
    if options.json:
        reached_json = [{**as_json(goal), "met": goal.met} for goal in reached]
        print(json.dumps({"score": as_json(found), "goals": reached_json, "rows": list(map(each_row, predictions))}))
    else:
        print("\n".join(lines(found)), *(f"written: {picture}" for picture in pictures), sep="\n")
    return 1 if any(goal.met is False for goal in reached) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
