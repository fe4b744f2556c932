"""Draws a scatter plot from a JSON object on stdin: `file`, `title`, and `points` of (source, has experts, measured, predicted).

It runs in the peers' virtual environment, so it imports nothing of headway.
"""

import json
import sys
from collections import defaultdict
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found]

mpl.use("Agg")

from matplotlib import pyplot as plt


def draw(picture: dict[str, Any]) -> None:
    """Write the picture: log-log, a colour and mark for each source, triangles for models with experts, lines at 10 % off."""
    figure, axes = plt.subplots(figsize=(11, 7.5))
    groups = defaultdict[tuple[str, bool], list[tuple[float, float]]](list)
    for source, moe, measured, predicted in picture["points"]:
        groups[source, moe].append((measured, predicted))
    sources = sorted({source for source, _ in groups})
    looks = {source: (f"C{number % 10}", "osDP"[number // 10 % 4]) for number, source in enumerate(sources)}
    for (source, moe), points in sorted(groups.items()):
        label = f"{source}{' (experts)' if moe else ''} {len(points)}"
        colour, mark = looks[source]
        axes.scatter(*zip(*points, strict=True), s=20, alpha=0.7, color=colour, marker="^" if moe else mark, label=label)
    _lines(axes, [value for points in groups.values() for point in points for value in point])
    axes.set(xscale="log", yscale="log", xlabel="measured", ylabel="predicted", title=picture["title"])
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(picture["file"], dpi=110, bbox_inches="tight")


def _lines(axes: Any, values: list[float]) -> None:
    ends = (min(values, default=1) * 0.8, max(values, default=10) * 1.25)
    for factor, style in ((1.0, "-"), (0.9, ":"), (1.1, ":")):
        axes.plot(ends, [end * factor for end in ends], style, color="black", linewidth=0.8)
    axes.set(xlim=ends, ylim=ends)


if __name__ == "__main__":
    draw(json.load(sys.stdin))
