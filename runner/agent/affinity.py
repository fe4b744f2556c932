"""Finds the processors next to each rank's GPU: those of its NUMA node, from /proc and /sys alone."""

import os
from collections.abc import Mapping
from pathlib import Path

# NVIDIA's driver lists its GPUs by PCI address; AMD's are the devices of the driver amdgpu.
_NVIDIA, _AMD = "proc/driver/nvidia/gpus", "sys/bus/pci/drivers/amdgpu"
# Numbers of the step's GPUs on the node, where Slurm gives out some of them (srun(1)).
_OF_STEP = "SLURM_STEP_GPUS"


def cpus_of_ranks(
    procs: int, environment: Mapping[str, str], own: set[int] | None = None, root: Path = Path("/")
) -> dict[str, list[int]]:
    """Return by local rank the processors of its GPU's NUMA node, as far as this process may use them (`own`, its affinity).

    Empty where binding helps nothing or could be wrong: one NUMA node, GPUs whose node is unknown, or another number of GPUs than ranks.
    CUDA numbers GPUs of one model by their PCI address, as this does.
    """
    addresses = sorted(path.name for folder in (_NVIDIA, _AMD) for path in (root / folder).glob("*:*:*.*"))
    step = environment.get(_OF_STEP, "")
    if step.replace(",", "").isdecimal() and all(int(number) < len(addresses) for number in step.split(",")):
        addresses = [addresses[int(number)] for number in step.split(",")]
    if len(addresses) != procs:
        return {}
    nodes = [_number(root / "sys/bus/pci/devices" / address.lower() / "numa_node") for address in addresses]
    if len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) < 2 or any(node is None or node < 0 for node in nodes):
        return {}
    allowed = os.sched_getaffinity(0) if own is None else own
    found = {str(rank): sorted(_cpus(root, node) & allowed) for rank, node in enumerate(nodes) if node is not None}
    return found if all(found.values()) else {}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _cpus(root: Path, node: int) -> set[int]:
    """Return the processors of a NUMA node, from its list such as `0-3,8-11`."""
    try:
        text = (root / f"sys/devices/system/node/node{node}/cpulist").read_text().strip()
    except OSError:
        return set()
    parts = [part.partition("-") for part in text.split(",") if part]
    return {cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)}
