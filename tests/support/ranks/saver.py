"""Runs a rank that saves small checkpoints of one run: two generations committed, and both reached one of the steps."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from headway import checkpoint
from tests.support.worlds import join, leave

# Of the first and the third generation. The second started from step 4, which is hidden, and gave up.
STEPS = ((2, 4), (4, 6))
TENSORS = ("sharded", "columns", "replicated", "plain", "counter")


def state_at(step: int, mesh: DeviceMesh) -> dict[str, object]:
    """Tensors of every placement, some of them split among the ranks that hold the same, and other objects."""
    generator = torch.Generator().manual_seed(step)
    whole = {name: torch.randn(64, 24, generator=generator) for name in TENSORS}
    # More than a rank writes alone of replicated data.
    wide = torch.randn(1030, 260, generator=generator)
    placements: dict[str, Shard | Replicate] = {"sharded": Shard(0), "columns": Shard(1), "replicated": Replicate()}
    tensors = {name: distributed(whole[name], mesh, placement) for name, placement in placements.items()}
    return {**tensors, "wide": wide, "plain": whole["plain"], "counter": torch.tensor(step), "schedule": {"lr": 0.1 / step}}


def distributed(whole: torch.Tensor, mesh: DeviceMesh, placement: Shard | Replicate) -> DTensor:
    if isinstance(placement, Replicate):
        return DTensor.from_local(whole, mesh, [placement], run_check=False)
    local = whole.chunk(mesh.size(), placement.dim)[mesh.get_rank()].contiguous()
    return DTensor.from_local(local, mesh, [placement], run_check=False)


def main() -> None:
    path = Path(sys.argv[1])
    join(2, "saver")
    mesh = init_device_mesh("cpu", (2,))
    for generation, steps in enumerate(STEPS, start=1):
        with checkpoint.open(path, tiers={"shared": 1}, keep=9) as run:
            assert run.load(state_at(1, mesh)) == (0 if generation == 1 else STEPS[0][0])
            for step in steps:
                run.save(step, state_at(step, mesh))
        set_aside(path, away=generation == 1)
    leave()


def set_aside(path: Path, *, away: bool) -> None:
    """Hide the first generation's last checkpoint from the second one, or restore it."""
    dist.barrier()
    if dist.get_rank() == 0:
        (newest,) = path.glob(f"shared/checkpoints/*step-{STEPS[0][-1]:09d}.g000001")
        newest.rename(newest.with_name(newest.name.removeprefix("aside-") if not away else f"aside-{newest.name}"))
    dist.barrier()


if __name__ == "__main__":
    main()
