"""Plots predicted over measured values with draw.py in the peers' virtual environment, which has matplotlib."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.claim import MeasureError
from benchmarks.planner.memories import measured_peaks
from benchmarks.planner.peers import PYTHON
from benchmarks.planner.predict import Predicted
from benchmarks.planner.times import timed

_SCRIPT = Path(__file__).with_name("draw.py")
_TIMEOUT_S = 120


def plot(predictions: Sequence[Predicted], folder: Path) -> list[Path]:
    """step-time.png and memory.png in the folder. Raises MeasureError where the peers are not installed."""
    folder.mkdir(parents=True, exist_ok=True)
    times = ((row.predicted.row.source, row.predicted.row.moe, row.measured, row.seconds) for row in timed(predictions))
    memory = ((each.row.source, each.row.moe, pair[1], pair[0]) for each, pair in measured_peaks(predictions))
    return [
        _drawn(folder / "step-time.png", "Step time, seconds", times),
        _drawn(folder / "memory.png", "Peak memory of a GPU, GiB", memory),
    ]


def _drawn(file: Path, title: str, points: Iterable[tuple[str, bool, float, float]]) -> Path:
    picture = {"file": str(file.resolve()), "title": title, "points": list(points)}
    try:
        subprocess.run(
            [PYTHON, _SCRIPT], input=json.dumps(picture), text=True, capture_output=True, timeout=_TIMEOUT_S, check=True
        )
    except OSError as error:
        raise MeasureError(f"{PYTHON} cannot be started ({error.strerror}); `make peers` installs it") from error
    except subprocess.CalledProcessError as error:
        raise MeasureError(f"{_SCRIPT.name} ended with {error.returncode}: {error.stderr[-1000:]}") from error
    return file
