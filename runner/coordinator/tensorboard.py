"""Writes metrics.jsonl as TensorBoard scalars in a thread that follows the file; workers write nothing extra."""

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.runner.contract import RunConfig, step_rates
from headway.runner.lines import read_lines

_log = logging.getLogger(__name__)

FOLDER_VARIABLE = "HEADWAY_TENSORBOARD"
POLL_S = 5.0
_TAGS = ("loss", "grad_norm", "step_s", "save_s", "memory_bytes", "device_bytes", "communication_s")


class Follower:
    """Writes what comes into `metrics` below `folder/<run>` until `close`, which writes what is left.

    Steps that a coordinator before this one has written are written again: TensorBoard shows a step once.
    """

    def __init__(self, metrics: Path, folder: Path, run: str, config: RunConfig | None = None) -> None:
        self._config = config
        self._metrics, self._folder, self._read = metrics, folder / run, 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="tensorboard", daemon=True)
        self._thread.start()

    def close(self, patience_s: float = POLL_S) -> None:
        """Waits until what is in the file is written, so long at most."""
        self._ending.set()
        self._thread.join(patience_s)

    def _follow(self) -> None:
        try:
            # Not torch's SummaryWriter: the coordinator does without torch.
            from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]  # noqa: PLC0415  an extra
        except ImportError:
            _complain("the package `tensorboard` is not installed: install headway's extra `tensorboard`")
            return
        try:
            writer = EventFileWriter(str(self._folder))
            while not self._ending.wait(POLL_S):
                self._write(writer)
            self._write(writer)
            writer.close()
        except OSError as error:
            _complain(f"{self._folder}: {error.strerror}")

    def _write(self, writer: Any) -> None:
        for line, read in read_lines(self._metrics, self._read):
            self._read = read
            writer.add_event(_event(line, self._config))
        writer.flush()


def _event(line: Mapping[str, Any], config: RunConfig | None) -> Any:
    """One optimizer step as an event of TensorBoard's log."""
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]  # noqa: PLC0415  an extra
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]  # noqa: PLC0415

    values = [Summary.Value(tag=tag, simple_value=float(line[tag])) for tag in _TAGS if line.get(tag) is not None]
    if line.get("step_s"):
        rates = step_rates(config, line["tokens"], line["step_s"])
        values += [Summary.Value(tag=tag, simple_value=value) for tag, value in rates.items()]
    return Event(wall_time=line["wall"], step=line["step"], summary=Summary(value=values))


def open_follower(metrics: Path, environment: Mapping[str, str], run: str, config: RunConfig | None = None) -> Follower | None:
    """The follower that the environment asks for."""
    folder = environment.get(FOLDER_VARIABLE, "")
    return Follower(metrics, Path(folder), run, config) if folder else None


def _complain(text: str) -> None:
    _log.warning("tensorboard: %s", text)
