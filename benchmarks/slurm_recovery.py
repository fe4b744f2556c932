"""Prints how long jobs of a real Slurm take from the loss of a node to the next step on a spare one, headway's and torchrun's in turn.

Three nodes of this machine (tests/real/slurm): two compute and one is spare. Under torchrun the third agent waits in the rendezvous. The
loss of the first node ends torchrun's job, whose rendezvous is there; headway's continues on the two others. Needs root, Slurm and munge.

python -m benchmarks.slurm_recovery [--json] [--rounds N]
"""

import argparse
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from benchmarks.claim import Claim, MeasureError, compared, report, spread, within
from benchmarks.recovery import train
from benchmarks.recovery.launchers import QUICK, RANKS, SCRIPT, STEPS, TUNED, free_port, settle, standbys, tree
from benchmarks.recovery.trace import await_steps, steps_of, wait_until
from headway.compile import compile_documents
from tests.real.slurm.cluster import SlurmCluster
from tests.real.slurm.configuration import Shape
from tests.real.slurm.current import obstacle

NODES = 3
# Before the loss.
STEADY = 20
ROUNDS = 3

_CLUSTER = f"""apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {{kind: slurm, options: {{partition: main}}}}
node_groups: [{{name: cpu, count: {NODES}, cpus: 1, procs: 1}}]
storage: [{{name: runs, kind: posix, path: FOLDER/runs, shared: true}}]
"""
_JOB = f"""apiVersion: headway/v1alpha1
kind: TrainingJob
name: recovery
cluster: lab
nodes: {RANKS}
resilience: {{spares: {NODES - RANKS}}}
run: [{SCRIPT}, FOLDER, "{STEPS}"]
"""
# `--no-kill`: the job outlives a node, as headway's does.
_TORCHRUN = f"""#!/bin/bash
#SBATCH --job-name=recovery
#SBATCH --nodes={NODES}
#SBATCH --no-kill
#SBATCH --output=torchrun.out
srun --no-kill --wait=0 --kill-on-bad-exit=0 --ntasks-per-node=1 --mpi=none --cpu-bind=none COMMAND
"""


# --- a job that loses a node ------------------------------------------------------------------------------------------


def headway_script(folder: Path) -> str:
    """The batch script that headway renders."""
    (folder / "cluster.yaml").write_text(_CLUSTER.replace("FOLDER", str(folder)))
    (folder / "job.yaml").write_text(_JOB.replace("FOLDER", str(folder)))
    compiled = compile_documents([folder / "job.yaml"])
    if wrong := [problem.message for problem in compiled.problems if problem.is_error]:
        raise MeasureError("; ".join(wrong))
    return next(text for path, text in compiled.jobs[0].files().items() if path.suffix == ".sbatch")


def torchrun_script(folder: Path) -> str:
    """A batch script with torchrun, tuned for quick restarts, on all nodes, of which two at a time compute."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{RANKS}", "--nproc-per-node", "1"]
    words += ["--max-restarts", "100", "--monitor-interval", "0.05", "--rdzv-backend", "c10d", "--rdzv-id", "recovery"]
    words += ["--rdzv-endpoint", f"n1:{free_port()}", "--rdzv-conf", QUICK, str(SCRIPT), str(folder), STEPS]
    return _TORCHRUN.replace("COMMAND", shlex.join(words))


def computing(slurm: SlurmCluster) -> list[str]:
    """Return the nodes on which a rank runs."""
    return [name for name in slurm.shape.node_names if any(map(_is_rank, tree(slurm.node_pid(name))))]


def _is_rank(pid: int) -> bool:
    """Return whether the process steps: its command line is the script's, and not its launcher's."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        mapped = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return str(SCRIPT).encode() in words and any(word.startswith(b"RANK=") for word in mapped)


def with_a_standby(slurm: SlurmCluster, names: list[str]) -> None:
    """Wait until each of the nodes has a standby that has imported what it needs: nodes are not lost in the first seconds."""
    for name in names:
        pid = slurm.node_pid(name)
        wait_until(partial(standbys, pid), f"a standby worker of {name}")
        settle(standbys(pid))


def lost(slurm: SlurmCluster, script: Callable[[Path], str], environment: Mapping[str, str], is_first: bool) -> float:
    """Return seconds from the loss of the first or another computing node to the first new step of every rank.

    The ranks of a restart begin after the step that was saved. Process numbers say nothing: each node has its own.
    """
    with tempfile.TemporaryDirectory(prefix="headway-slurm-recovery-") as path:
        folder = Path(path)
        (folder / "job.sbatch").write_text(script(folder))
        own = {"PATH": f"{Path(sys.executable).parent}:{slurm.env['PATH']}", **environment}
        job = slurm.submit(folder / "job.sbatch", env=own, cwd=folder)
        victim = ""
        try:
            await_steps(folder, RANKS, STEADY)
            nodes = computing(slurm)
            victim = "n1" if is_first else next(name for name in reversed(nodes) if name != "n1")
            if script is headway_script:
                with_a_standby(slurm, [name for name in slurm.shape.node_names if name != victim])
            await_steps(folder, RANKS, 2 * STEADY)
            lost_s = time.monotonic()
            slurm.kill_node(victim)
            wait_until(
                lambda: all(_resumed_s(folder, rank, lost_s) for rank in range(RANKS)), f"a step after the loss of {victim}"
            )
            return max(_resumed_s(folder, rank, lost_s) or 0.0 for rank in range(RANKS)) - lost_s
        finally:
            slurm.run("scancel", str(job), check=False)
            if victim:
                slurm.mend_node(victim)
            for name in slurm.shape.node_names:
                slurm.wait_node(name, {"idle"}, 120)


def _resumed_s(folder: Path, rank: int, after_s: float) -> float | None:
    """Return when the rank had completed the step that follows the saved one again."""
    first = train.SAVED_AT + 1
    return next((step.ended_s for step in steps_of(folder, rank) if step.number == first and step.ended_s > after_s), None)


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(rounds: int) -> Iterator[Claim]:
    if (missing := obstacle()) is not None:
        raise MeasureError(missing)
    # By default, the jobs of this cluster keep no standbys and have light ranks.
    plain = {"PYTHONPATH": "", "HEADWAY_STANDBY": "1"}
    another, first, theirs = [], [], []
    with SlurmCluster(Shape(nodes=NODES)) as slurm:
        # Alternate, so that all run on the same machine state.
        for _ in range(rounds):
            theirs.append(lost(slurm, torchrun_script, {**plain, **TUNED}, is_first=False))
            another.append(lost(slurm, headway_script, plain, is_first=False))
            first.append(lost(slurm, headway_script, plain, is_first=True))
    what = "one of two nodes of a Slurm job lost to the next step on a spare"
    peer = f"torchrun {torch.__version__} under srun --no-kill with --nnodes 2 on three nodes, --monitor-interval 0.05, {QUICK}"
    conditions = (
        f"{rounds} rounds in turn, {RANKS} gloo ranks, DDP with AdamW, a state of 12.6 MB loaded, steps of 50 ms and more; three nodes on "
        f"one machine; Python {platform.python_version()}, {os.cpu_count()} CPUs"
    )
    mine, other = spread(another), spread(theirs)
    yield within(f"{what}, not the first", (mine, other), peer, 5.0, conditions)
    yield compared(f"{what}, not the first", (mine, other), peer, 0.5, conditions)
    yield within(
        f"{what}, the first", (spread(first), other), f"{peer}, not the first: that one has the rendezvous", 10.0, conditions
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slurm_recovery", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    return report(claims(arguments.rounds), ["--json"] if arguments.json else [])


if __name__ == "__main__":
    sys.exit(main())
