"""Queries NVML, if available: whether dead processes still hold device memory, and which devices belong to this job."""

import asyncio
import importlib
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from headway.runner.health.xid import address

CONTROL = Path("/dev/nvidiactl")
LOOK_S = 0.05
# For NVML: a driver that has lost a device may never answer.
ANSWER_S = 10.0
PID_NAMESPACE = Path("/proc/self/ns/pid")
# The machine's own (linux include/linux/proc_ns.h, PROC_PID_INIT_INO)
FIRST_PID_NAMESPACE = 0xEFFFFFFC

T = TypeVar("T")


async def until_free(pids: Collection[int], patience_s: float) -> bool:
    """Wait until no device holds memory for these processes, `patience_s` at most; return False if one still does then.

    A process that is reaped has closed its devices; the driver may free what it had a moment later. NVML numbers processes as the machine
    does. In a container they have other numbers, which belong to foreign processes on the machine, and a dead process cannot report its
    number there: then there is no wait.
    """
    if not pids or not numbers_are_the_machines() or (nvml := await _answered(open_nvml)) is None:
        return True
    until = time.monotonic() + patience_s
    while not (await _answered(lambda: users(nvml)) or set()).isdisjoint(pids):
        if time.monotonic() > until:
            return False
        await asyncio.sleep(LOOK_S)
    return True


async def used(environment: Mapping[str, str], processes: int) -> frozenset[str] | None:
    """The PCI addresses (health/xid.py: address) of the devices that so many processes with this environment use; None where that is not
    known: no NVML, or more devices than CUDA_VISIBLE_DEVICES or the number of processes distinguish."""
    if (nvml := await _answered(open_nvml)) is None:
        return None
    return await _answered(lambda: visible(nvml, environment, processes))


async def _answered(ask: Callable[[], T]) -> T | None:
    try:
        return await asyncio.wait_for(asyncio.to_thread(ask), ANSWER_S)
    except Exception:
        # NVMLError is only known where the module is; TimeoutError.
        return None


def numbers_are_the_machines() -> bool:
    """Return whether processes have the same numbers here as on the machine."""
    try:
        return PID_NAMESPACE.stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False


def open_nvml() -> Any:
    """The bindings (pynvml), or None without a driver or without them."""
    if not CONTROL.exists():
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        # NVMLError is only known where the module is.
        return None
    return nvml


def users(nvml: Any) -> set[int]:
    """The processes that have memory on any device."""
    return {process.pid for handle in _handles(nvml) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}


def visible(nvml: Any, environment: Mapping[str, str], processes: int) -> frozenset[str] | None:
    """As `used`. Raises what NVML raises."""
    handles = _handles(nvml)
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        # Which of more devices than processes are used, only the processes know.
        return frozenset(_address(nvml, handle) for handle in handles) if processes >= len(handles) else None
    names = [name.strip() for name in named.split(",") if name.strip()]
    # CUDA counts by speed, NVML by address; of equal devices both count by address.
    is_counted_alike = (
        environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({nvml.nvmlDeviceGetName(h) for h in handles}) < 2
    )
    found = set()
    for name in names:
        if name.isdecimal() and is_counted_alike and int(name) < len(handles):
            found.add(_address(nvml, handles[int(name)]))
        elif name.startswith("MIG-"):
            part = nvml.nvmlDeviceGetHandleByUUID(name)
            found.add(_address(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)))
        elif name.startswith("GPU-"):
            found |= {_address(nvml, handle) for handle in handles if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(name)}
        else:
            return None
    return frozenset(found)


def _handles(nvml: Any) -> list[Any]:
    """Of the devices that this process may use: a control group may keep it from others of the machine, as Slurm's does."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            found.append(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError:
            continue
    return found


def _address(nvml: Any, handle: Any) -> str:
    found = address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    assert found is not None  # noqa: S101  NVML's own format
    return found


def _text(value: str | bytes) -> str:
    """Older bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value
