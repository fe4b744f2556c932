"""Tests the questions to NVML: which processes still hold memory, and which devices a job uses. A fake replaces the bindings."""

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.runner.agent import devices
from headway.runner.contract import CauseKind
from headway.runner.coordinator.causes import Ended, cause_of
from headway.runner.health.xid import of_job, parse

BUSES = ("0000:3b:00", "0000:5e:00", "0000:86:00", "0000:af:00")


class NVMLError(Exception):
    """Like pynvml's exception."""


@dataclass
class Nvml:
    """A machine with devices at these addresses. `holders`: processes with memory, by device, with the host's PIDs."""

    NVMLError = NVMLError
    buses: tuple[str, ...] = BUSES
    models: tuple[str, ...] = ("H100",) * 4
    allowed: tuple[bool, ...] = (True,) * 4
    holders: dict[int, set[int]] = field(default_factory=dict)
    asked: int = 0

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802  pynvml's name
        return len(self.buses)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802  pynvml's name
        if not self.allowed[index]:
            raise NVMLError("Insufficient Permissions")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802  pynvml's name
        return self.models[handle]

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802  pynvml's name
        return f"GPU-{handle}234abcd".encode()

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802  pynvml's name
        return SimpleNamespace(busId=f"0000{self.buses[handle].upper()}.0".encode())

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802  pynvml's name
        return name

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part: str) -> int:  # noqa: N802  pynvml's name
        return int(part.removeprefix("MIG-"))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802  pynvml's name
        self.asked += 1
        return [SimpleNamespace(pid=pid) for pid in self.holders.get(handle, ())]


def there(monkeypatch: pytest.MonkeyPatch, nvml: Nvml, *, in_container: bool = False) -> Nvml:
    monkeypatch.setattr(devices, "open_nvml", lambda: nvml)
    monkeypatch.setattr(devices, "numbers_are_the_machines", lambda: not in_container)
    return nvml


# --- memory of dead processes -----------------------------------------------------------------------------------------


def test_a_dead_process_is_awaited_while_the_driver_lists_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = there(monkeypatch, Nvml(holders={1: {4711, 9999}}))

    async def scenario() -> bool:
        waiting = asyncio.create_task(devices.until_free([4711], 60.0))
        while nvml.asked < 8:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        nvml.holders[1].discard(4711)
        return await waiting

    assert asyncio.run(scenario())


def test_waiting_stops_at_the_requested_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, Nvml(holders={1: {4711}}))
    assert not asyncio.run(devices.until_free([4711], 0.0))


def test_an_unrelated_process_with_an_equal_pid_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIDs there are small, and the host uses the same ones for other processes."""
    nvml = there(monkeypatch, Nvml(holders={1: {17}}), in_container=True)
    assert asyncio.run(devices.until_free([17], 60.0))
    assert nvml.asked == 0


def test_whether_pids_are_the_hosts_is_read_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Path("/proc/self/ns/pid").stat().st_ino == devices.FIRST_PID_NAMESPACE
    assert devices.numbers_are_the_machines() == found
    monkeypatch.setattr(devices, "PID_NAMESPACE", tmp_path)  # another inode
    assert not devices.numbers_are_the_machines()
    monkeypatch.setattr(devices, "PID_NAMESPACE", tmp_path / "none")
    assert not devices.numbers_are_the_machines()


def test_a_driver_that_does_not_respond_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is off the bus may block NVML."""
    nvml = there(monkeypatch, Nvml(holders={0: {4711}}))
    monkeypatch.setattr(devices, "ANSWER_S", 0.01)
    answers = threading.Event()

    def count() -> int:
        answers.wait(60.0)
        return 4

    async def scenario() -> None:
        assert await devices.until_free([4711], 60.0)
        assert await devices.used({}, 4) is None
        answers.set()

    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", count)
    asyncio.run(scenario())


# --- which devices a job uses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "processes", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1,3"}, 2, {BUSES[1], BUSES[3]}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2234abcd, GPU-0"}, 2, {BUSES[2], BUSES[0]}),
        ({"CUDA_VISIBLE_DEVICES": "MIG-2"}, 1, {BUSES[2]}),
        ({"CUDA_VISIBLE_DEVICES": ""}, 1, set()),
        ({"CUDA_VISIBLE_DEVICES": "7"}, 1, None),
        ({"CUDA_VISIBLE_DEVICES": "none"}, 1, None),
        ({}, 4, set(BUSES)),
        ({}, 2, None),
    ],
)
def test_the_devices_of_a_job_are_those_visible_to_it(
    named: Mapping[str, str], processes: int, expected: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(monkeypatch, Nvml())
    found = asyncio.run(devices.used(named, processes))
    assert found == (None if expected is None else frozenset(expected))


def test_devices_denied_by_a_control_group_are_not_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, Nvml(allowed=(False, False, True, True)))
    assert asyncio.run(devices.used({}, 2)) == frozenset(BUSES[2:])
    assert asyncio.run(devices.used({"CUDA_VISIBLE_DEVICES": "0,1"}, 2)) == frozenset(BUSES[2:])


def test_indexes_of_unequal_devices_are_trusted_only_in_pci_bus_order(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, Nvml(models=("T4", "H100", "H100", "H100")))
    named = {"CUDA_VISIBLE_DEVICES": "0"}
    assert asyncio.run(devices.used(named, 1)) is None
    assert asyncio.run(devices.used({**named, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 1)) == frozenset(BUSES[:1])


def test_without_nvml_the_devices_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "CONTROL", Path("/nowhere"))
    assert asyncio.run(devices.used({}, 1)) is None
    assert asyncio.run(devices.until_free([1], 60.0))


@pytest.mark.parametrize(("named", "kind"), [("0", CauseKind.HARDWARE), ("1", CauseKind.CRASH), (None, CauseKind.CRASH)])
def test_a_node_is_blamed_for_a_device_only_if_this_job_uses_it(
    named: str | None, kind: CauseKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(monkeypatch, Nvml())
    used = asyncio.run(devices.used({} if named is None else {"CUDA_VISIBLE_DEVICES": named}, 1))
    report = parse(f"NVRM: Xid (PCI:{BUSES[0]}): 79, pid=1234, GPU has fallen off the bus.")
    assert report is not None
    end = Ended(0, 0, -9, "killed by SIGKILL", asked=False, step=3, xids=tuple(of_job([report], used)))
    assert cause_of([end], {}, {0: "n0"}).kind is kind
