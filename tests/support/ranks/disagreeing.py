"""Runs one of two ranks, of which the second cannot save some steps: all others are saved, and keys may be any text."""

import os
import sys
from pathlib import Path

import torch

from headway import checkpoint
from tests.support.worlds import join, leave

BAD = (2, 3, 4)  # more than a rank has buffers


def main(directory: Path) -> None:
    rank = int(os.environ["RANK"])
    join(2, "disagreeing")
    run = checkpoint.open(directory, tiers={"memory": 1, "shared": 1}, keep=9)
    shared = torch.zeros(5000)
    state = {"all\tranks": shared, f"own\n{rank}": torch.zeros(5000), "handle": None}
    for step in range(1, 7):
        refused = False
        bad = rank == 1 and step in BAD
        try:
            run.save(step, {**state, "all\tranks": torch.full((5000,), float(step)), "handle": object() if bad else None})
        except checkpoint.ObjectError:
            refused = True
        assert refused == bad
    run.close()
    again = checkpoint.open(directory)
    assert again.load(state) == 6
    assert shared.tolist() == [6.0] * 5000
    assert sorted(path.name for path in (directory / "shared/checkpoints").glob("step-*")) == [
        f"step-{step:09d}.g000001" for step in (1, 5, 6)
    ]
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
