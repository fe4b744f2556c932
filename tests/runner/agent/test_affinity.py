"""Tests which CPUs each rank is bound to, on a machine's real layout of /proc and /sys."""

from pathlib import Path

import pytest

from headway.runner.__main__ import binds_ranks
from headway.runner.agent.affinity import cpus_of_ranks
from headway.runner.contract import Mesh, RunConfig, Trainer

CPUS = {0: "0-3,8-9", 1: "4-7,10"}
ALL = set(range(11))


def machine(root: Path, *numa_of_gpus: int, nodes: int = 2, driver: str = "proc/driver/nvidia/gpus") -> Path:
    for node in range(nodes):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{CPUS[node]}\n")
    for number, node in enumerate(numa_of_gpus):
        address = f"0000:{number + 10:02X}:00.0"
        (root / driver / address).mkdir(parents=True)
        device = root / f"sys/bus/pci/devices/{address.lower()}"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
    return root


@pytest.mark.parametrize("driver", ["proc/driver/nvidia/gpus", "sys/bus/pci/drivers/amdgpu"])
def test_a_rank_is_bound_to_the_cpus_of_its_gpus_numa_node(driver: str, tmp_path: Path) -> None:
    found = cpus_of_ranks(2, {}, ALL, machine(tmp_path, 1, 0, driver=driver))
    assert found == {"0": [4, 5, 6, 7, 10], "1": [0, 1, 2, 3, 8, 9]}


def test_only_cpus_granted_by_the_scheduler_are_used(tmp_path: Path) -> None:
    root = machine(tmp_path, 1, 0)
    assert cpus_of_ranks(2, {}, {0, 4}, root) == {"0": [4], "1": [0]}
    assert cpus_of_ranks(2, {}, {0, 1}, root) == {}


def test_on_part_of_a_node_slurm_identifies_the_gpus(tmp_path: Path) -> None:
    root = machine(tmp_path, 0, 0, 1, 1)
    assert cpus_of_ranks(2, {"SLURM_STEP_GPUS": "1,3"}, ALL, root) == {"0": [0, 1, 2, 3, 8, 9], "1": [4, 5, 6, 7, 10]}
    assert cpus_of_ranks(2, {}, ALL, root) == {}


def test_nothing_is_bound_if_the_numa_node_is_unknown_or_the_only_one(tmp_path: Path) -> None:
    assert cpus_of_ranks(2, {}, ALL, machine(tmp_path / "a", 0, -1)) == {}
    assert cpus_of_ranks(1, {}, {0}, machine(tmp_path / "b", 0, nodes=1)) == {}
    assert cpus_of_ranks(1, {}, ALL, tmp_path / "c") == {}


@pytest.mark.parametrize(
    ("backend", "options", "expected"),
    [("nccl", {}, True), ("gloo", {}, False), ("nccl", {"torchrun": {"shown": None}}, False)],
)
def test_ranks_of_gpu_jobs_are_bound_but_never_those_of_torchrun_commands(
    backend: str, options: dict[str, object], expected: bool
) -> None:
    config = RunConfig(
        slots=1, procs_per_slot=2, mesh=Mesh(dp_shard=2), trainer=Trainer("script", options), spec_hash="ab", backend=backend
    )
    assert binds_ranks(config) is expected
