"""Tests devices as NVML reports them to the agent, and NCCL's own report."""

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from headway.runner.agent import devices, ras
from headway.runner.health.xid import address


@pytest.fixture
def bus() -> str:
    # torch's annotations do not have the address.
    found: Any = torch.cuda.get_device_properties(0)
    known = address(f"{found.pci_domain_id:08X}:{found.pci_bus_id:02X}:{found.pci_device_id:02X}.0")
    assert known is not None
    return known


@pytest.mark.parametrize("named", [None, "0", "uuid"])
def test_the_jobs_devices_are_identified_by_their_addresses(named: str | None, bus: str) -> None:
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    if named == "uuid":
        environment = {"CUDA_VISIBLE_DEVICES": f"GPU-{torch.cuda.get_device_properties(0).uuid}"}
    assert asyncio.run(devices.used(environment, torch.cuda.device_count())) == frozenset([bus])


def test_a_dead_process_frees_its_memory_before_the_next_starts() -> None:
    code = "import torch; x = torch.ones(1 << 28, device='cuda'); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        nvml = devices.open_nvml()
        listed = devices.users(nvml)
        print("NVML lists", listed, "for", process.pid, "in its own numbers:", devices.numbers_are_the_machines())
        if devices.numbers_are_the_machines():
            assert process.pid in listed
            assert not asyncio.run(devices.until_free([process.pid], 0.2))
        process.kill()
        process.wait()
    assert asyncio.run(devices.until_free([process.pid], 10))


def test_nccl_reports_on_a_job_of_one_rank() -> None:
    code = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl', init_method='tcp://127.0.0.1:29621', rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(1, device='cuda')); torch.cuda.synchronize()\n"
        "print('ready', flush=True); input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        report = asyncio.run(ras.report(os.environ, 5.0))
        print(report)
        process.kill()
    assert report is not None
    assert "NCCL" in report
