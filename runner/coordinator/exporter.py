"""Exports the state of a run as Prometheus gauges, served on loopback only."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
PORT_VARIABLE = "HEADWAY_METRICS_PORT"
# Of metrics.jsonl, whose lines are shorter.
_TAIL_BYTES = 4096


@dataclass(frozen=True)
class Snapshot:
    """Values of the gauges. None: not known (yet). `nodes` counts them by state: "computing", "spare", "away", "lost"."""

    generation: int
    restarts: int
    step: int | None = None
    loss: float | None = None
    committed_step: int | None = None
    # Since the quietest node's last heartbeat.
    beat_age_s: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)  # by bucket of the ledger
    nodes: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)  # `step_rates` of the newest step
    step_s: float | None = None
    device_bytes: int | None = None


def port_of(configured: int | None, environment: Mapping[str, str]) -> int | None:
    """The port that the environment or the job names, the environment first; None for no exporter. Raises ValueError for what is none."""
    text = environment.get(PORT_VARIABLE, "")
    return int(text) if text else configured


class Exporter:
    """Serves the last `Snapshot` it was shown until `close`. `port` 0 takes any free one."""

    def __init__(self, port: int, run: str) -> None:
        """Raises ImportError without the package prometheus-client, OSError when the port is taken."""
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415  an extra

        self._registry, self._labels = CollectorRegistry(), {"run": run}
        self._gauges: dict[str, Any] = {}
        self._server, self._thread = start_http_server(port, LOOPBACK, self._registry)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def show(self, now: Snapshot) -> None:
        """Sets every gauge that has a value. Costs microseconds, and no I/O."""
        self._set("generation", "number of the newest gang start", now.generation)
        self._set("restarts", "failures that this attempt recovered from", now.restarts)
        self._set("step", "optimizer steps completed", now.step)
        self._set("loss", "loss of the newest step", now.loss)
        self._set("committed_step", "step of the newest committed checkpoint", now.committed_step)
        self._set("heartbeat_age_seconds", "time since the oldest last heartbeat of a node", now.beat_age_s)
        self._set("step_seconds", "time of the newest step", now.step_s)
        self._set("device_memory_bytes", "peak of tensors on the GPU of rank 0 in the newest step", now.device_bytes)
        self._set("tokens_per_second", "tokens of all ranks in the newest step", now.rates.get("tokens_per_s"))
        for attention in ("causal", "full"):
            self._set("tflops", "10^12 operations a second of a rank", now.rates.get(f"tflops_{attention}"), attention=attention)
            self._set(
                "mfu", "operations as a share of the GPU's peak in bf16", now.rates.get(f"mfu_{attention}"), attention=attention
            )
        for bucket, seconds in now.seconds.items():
            self._set("spent_seconds", "wall time by bucket of the goodput ledger", seconds, bucket=bucket)
        for state, count in now.nodes.items():
            self._set("nodes", "nodes by state", count, state=state)
        for queue, share in effective(now.seconds).items():
            self._set("ettr", "productive share of the wall time", share, queue=queue)

    def _set(self, name: str, text: str, value: float | None, **labels: str) -> None:
        if value is None:
            return
        from prometheus_client import Gauge  # noqa: PLC0415  an extra

        if name not in self._gauges:
            names = [*self._labels, *labels]
            self._gauges[name] = Gauge(f"headway_{name}", text, names, registry=self._registry)
        self._gauges[name].labels(**self._labels, **labels).set(value)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def newest_step(metrics: Path) -> dict[str, Any] | None:
    """The last whole line of metrics.jsonl; None where there is none. Raises OSError."""
    if not metrics.exists():
        return None
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - _TAIL_BYTES))
        *whole, _ = file.read().split(b"\n")
    try:
        found = json.loads(whole[-1]) if whole else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and "loss" in found else None


def effective(seconds: Mapping[str, float]) -> dict[str, float]:
    """The effective training time ratio: productive seconds over all, with and without those in the queue (Kokolis et al., HPCA 2025,
    arXiv 2410.21680, count the queue). Empty while no second is accounted."""
    wall, productive = sum(seconds.values()), seconds.get("productive", 0.0)
    running = wall - seconds.get("queue", 0.0)
    return {"without": productive / running, "with": productive / wall} if running > 0 else {}


def open_exporter(configured: int | None, environment: Mapping[str, str], run: str) -> Exporter | None:
    """Return the exporter that the job or the environment asks for; a run continues without one that is unavailable."""
    try:
        port = port_of(configured, environment)
        return None if port is None else Exporter(port, run)
    except ImportError:
        _complain("metrics are enabled, but the package `prometheus-client` is not installed: install headway's extra `metrics`")
    except (ValueError, OverflowError):
        _complain(f"{PORT_VARIABLE}: `{environment.get(PORT_VARIABLE)}` is not a port")
    except OSError as error:
        _complain(f"metrics cannot be served: {error.strerror}")
    return None


def _complain(text: str) -> None:
    _log.warning("exporter: %s", text)
