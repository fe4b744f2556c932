"""Tests the monitoring of a run: Prometheus over real HTTP on loopback, and TensorBoard's own files read back."""

import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from headway.runner.contract import MetricsLine
from headway.runner.coordinator.exporter import Exporter, Snapshot, effective, newest_step, open_exporter, port_of
from headway.runner.coordinator.tensorboard import open_follower
from headway.runner.lines import append_line

SECONDS = {"productive": 60.0, "restart": 15.0, "detect": 5.0, "queue": 20.0}


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


@pytest.fixture(scope="module")
def exporter() -> Iterator[Exporter]:
    found = Exporter(0, "r-1")
    yield found
    found.close()


def test_unknown_values_are_not_exported_and_known_ones_persist(exporter: Exporter) -> None:
    exporter.show(Snapshot(1, 0))
    assert sorted(scraped(exporter.port)) == ['headway_generation{run="r-1"}', 'headway_restarts{run="r-1"}']
    exporter.show(Snapshot(3, 2, 120, 2.5, 100, 0.25, SECONDS, {"computing": 2, "spare": 1}))
    assert scraped(exporter.port) == {
        'headway_generation{run="r-1"}': 3.0,
        'headway_restarts{run="r-1"}': 2.0,
        'headway_step{run="r-1"}': 120.0,
        'headway_loss{run="r-1"}': 2.5,
        'headway_committed_step{run="r-1"}': 100.0,
        'headway_heartbeat_age_seconds{run="r-1"}': 0.25,
        **{f'headway_spent_seconds{{bucket="{name}",run="r-1"}}': value for name, value in SECONDS.items()},
        'headway_nodes{run="r-1",state="computing"}': 2.0,
        'headway_nodes{run="r-1",state="spare"}': 1.0,
        'headway_ettr{queue="with",run="r-1"}': 0.6,
        'headway_ettr{queue="without",run="r-1"}': 0.75,
    }
    rates = {"tokens_per_s": 9.0, "tflops_causal": 2.0, "tflops_full": 3.0, "mfu_causal": 0.2, "mfu_full": 0.3}
    exporter.show(Snapshot(3, 2, 120, rates=rates, step_s=1.5, device_bytes=7))
    page = (Path(__file__).parents[3] / "docs/resilience.md").read_text()
    assert [name for each in scraped(exporter.port) if f"`{(name := each.partition('{')[0])}`" not in page] == []
    assert (
        scraped(exporter.port).items()
        >= {
            'headway_step_seconds{run="r-1"}': 1.5,
            'headway_device_memory_bytes{run="r-1"}': 7.0,
            'headway_tokens_per_second{run="r-1"}': 9.0,
            'headway_tflops{attention="causal",run="r-1"}': 2.0,
            'headway_tflops{attention="full",run="r-1"}': 3.0,
            'headway_mfu{attention="causal",run="r-1"}': 0.2,
            'headway_mfu{attention="full",run="r-1"}': 0.3,
        }.items()
    )
    exporter.show(Snapshot(4, 3, 121))
    again = scraped(exporter.port)
    assert (again['headway_generation{run="r-1"}'], again['headway_step{run="r-1"}']) == (4.0, 121.0)
    assert again['headway_loss{run="r-1"}'] == 2.5


def test_the_exporter_listens_on_loopback_only(exporter: Exporter) -> None:
    assert exporter._server.server_address[0] == "127.0.0.1"


def test_the_environment_overrides_the_job_and_the_default_is_off() -> None:
    assert port_of(9000, {"HEADWAY_METRICS_PORT": "9100"}) == 9100
    assert port_of(9000, {}) == 9000
    assert open_exporter(None, {}, "r-1") is None


def test_an_unavailable_port_is_logged_and_does_not_stop_the_run(exporter: Exporter, caplog: pytest.LogCaptureFixture) -> None:
    assert open_exporter(exporter.port, {}, "r-2") is None
    assert open_exporter(None, {"HEADWAY_METRICS_PORT": "http"}, "r-2") is None
    assert open_exporter(70000, {}, "r-2") is None
    told = caplog.messages
    assert told[:2] == [
        "exporter: metrics cannot be served: Address already in use",
        "exporter: HEADWAY_METRICS_PORT: `http` is not a port",
    ]
    assert len(told) == 3


def test_ratios_are_computed_with_and_without_queue_time() -> None:
    assert effective(SECONDS) == {"without": 0.75, "with": 0.6}
    assert effective({}) == effective({"queue": 3.0}) == {}


def test_the_newest_step_is_read_from_the_last_complete_line(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert newest_step(metrics) is None
    for step in range(1, 101):
        append_line(metrics, metrics_line(step))
    with metrics.open("a") as file:
        file.write('{"wall": 18')
    found = newest_step(metrics)
    assert found is not None
    assert found["loss"] == 4.0 / 100


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def metrics_line(step: int) -> dict[str, object]:
    return asdict(MetricsLine(1_800_000_000.0 + step, step, 0, 1, step, 4.0 / step, 1.5, 2048, 0.5, 1 << 20, save_s=0.25))


def test_steps_become_tensorboard_scalars(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    append_line(metrics, metrics_line(1))
    follower = open_follower(metrics, {"HEADWAY_TENSORBOARD": str(tmp_path / "tb")}, "r-1")
    assert follower is not None
    append_line(metrics, metrics_line(2))
    follower.close()
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(tmp_path / "tb" / "r-1"))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == ["grad_norm", "loss", "memory_bytes", "save_s", "step_s", "tokens_per_s"]
    values = [(each.step, each.value, each.wall_time) for each in found.Scalars("loss")]
    assert values == [(1, 4.0, 1_800_000_001.0), (2, 2.0, 1_800_000_002.0)]
    assert [each.value for each in found.Scalars("tokens_per_s")] == [4096.0, 4096.0]


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    assert open_follower(tmp_path / "metrics.jsonl", {}, "r-1") is None
