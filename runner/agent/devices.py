"""Whether dead processes still hold memory of a device, as NVML says where it is there."""

import asyncio
import importlib
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

CONTROL = Path("/dev/nvidiactl")
LOOK_S = 0.05


async def until_free(pids: Collection[int], patience_s: float) -> bool:
    """Waits until no device holds memory for these processes, `patience_s` at most; False when one still does then.

    A process that is reaped has closed its devices; the driver may free what it had a moment later.
    """
    if not pids or (nvml := open_nvml()) is None:
        return True
    until = time.monotonic() + patience_s
    while not users(nvml).isdisjoint(pids):
        if time.monotonic() > until:
            return False
        await asyncio.sleep(LOOK_S)
    return True


def open_nvml() -> Any:
    """The bindings (pynvml), or None without a driver or without them."""
    if not CONTROL.exists():
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # NVMLError is only known where the module is
        return None
    return nvml


def users(nvml: Any) -> set[int]:
    """The processes that have memory on any device."""
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return {process.pid for handle in handles for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except nvml.NVMLError:
        return set()
