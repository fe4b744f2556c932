"""Tests an imported batch script with a loop: its runs train on a real Slurm as the script's iterations would, with one status."""

import json
from pathlib import Path

import pytest

from tests.faults.runs import wait_until

from .clients import user
from .cluster import SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.variant]

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=grid
#SBATCH --nodes=1
#SBATCH --time=00:10:00
export COLOR=blue
for SEED in 1 2; do
  srun torchrun --standalone --nproc-per-node=1 train.py --seed $SEED --out seen
done
"""
PROGRAM = """\
import os, sys
assert sys.argv[1] == "--seed" and sys.argv[3:] == ["--out", "seen"], sys.argv
with open(f"{sys.argv[4]}-{sys.argv[2]}", "w") as file:
    file.write(f"{os.environ['COLOR']} {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")
"""


def test_the_iterations_of_a_submit_loop_run_as_the_points_of_a_sweep(slurm: SlurmCluster, tmp_path: Path) -> None:
    here = user(slurm, tmp_path)
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    (tmp_path / "train.py").write_text(PROGRAM)
    here.headway("import", "sbatch", "train.sbatch", "--cluster", "cluster.yaml", "-o", "grid.yaml")
    names = here.headway("submit", "grid.yaml", "--cluster", "cluster.yaml").stdout.splitlines()
    assert len(names) == 2

    def states() -> list[tuple[str, str]]:
        found = json.loads(here.headway("status", "grid.yaml", "--cluster", "cluster.yaml", "--json").stdout)
        return [(run["run"], run["state"]) for run in found]

    wait_until(lambda: all(state not in ("pending", "starting", "running", "ending") for _, state in states()), "both ends")
    assert states() == [(name, "completed") for name in names]
    assert {path.name: path.read_text() for path in tmp_path.glob("seen-*")} == {
        "seen-1": "blue 0 of 1",
        "seen-2": "blue 0 of 1",
    }
