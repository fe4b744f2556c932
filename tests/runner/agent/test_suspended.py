"""Tests a run whose processes are all stopped for longer than any timeout and then continue, as under `scontrol suspend`, `docker pause`,
a control group's freezer and a paused virtual machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.runner.contract import DEFAULT_TIMEOUTS, Exit, Mesh, Restart, RunConfig, Timeout, Trainer
from headway.runner.lines import read_lines
from headway.runner.rundir import open_run
from tests.support import LIGHT

pytestmark = pytest.mark.slow

LIMIT_S, BOUND_S = 120.0, 3.0
SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 10**6):
    model(torch.ones(4)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    # In naps, which stop with the process.
    for nap in range(100 if os.path.exists("slowly") else 3):
        time.sleep(0.02)
    done = torch.tensor([float(os.path.exists("enough"))])
    dist.all_reduce(done)
    if dist.get_rank() == 0:
        print(step, file=open("steps", "a"), flush=True)
    if done:
        break
dist.destroy_process_group()
"""


def below(pid: int) -> Iterator[int]:
    """The process and all its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found = (task / "children").read_text().split()
        except OSError:  # it has just ended
            continue
        for child in found:
            yield from below(int(child))


def steps(place: Path) -> int:
    path = place / "steps"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize(
    "all_nodes",
    [
        pytest.param(True, id="with its coordinator"),
        pytest.param(False, id="one node of two, without a spare", marks=pytest.mark.variant),
    ],
)
def test_a_run_that_is_suspended_for_a_while_continues_undisturbed(all_nodes: bool, tmp_path: Path) -> None:
    """The sections' timeouts are shorter than the pause; that of a silent node is longer and applies if only one is paused."""
    (tmp_path / "train.py").write_text(SCRIPT)
    options = {"argv": ["train.py"], "logs": False}
    short = {name: Timeout(BOUND_S) for name in ("data", "compute", "evaluation", "agent")}
    config = RunConfig(
        slots=2,
        procs_per_slot=1,
        mesh=Mesh(dp_shard=2),
        trainer=Trainer("script", options),
        spec_hash="",
        restart=Restart(budget=0),
        timeouts={**DEFAULT_TIMEOUTS, **short, "agent": Timeout(60.0), "node": Timeout(60.0)},
    )
    directory = open_run(tmp_path / "runs", "case-0123abcd-1", config, 0)
    light = {"HEADWAY_STANDBY": "0", "PYTHONPATH": os.pathsep.join([LIGHT, *sys.path])}
    environment = {**os.environ, **light, "HEADWAY_NODES": "127.0.0.1,127.0.0.1"}
    words = [sys.executable, "-m", "headway.runner", str(directory.run_json), "--attempt", "0", "--node"]
    nodes = [subprocess.Popen([*words, str(node)], env=environment, cwd=tmp_path) for node in (0, 1)]
    try:
        until = time.monotonic() + LIMIT_S
        # Then each step takes time, so that the nodes' heartbeats arrive before a rank continues.
        for enough in (40, 42):
            while steps(tmp_path) < enough:
                assert time.monotonic() < until, "no steps"
                assert all(node.poll() is None for node in nodes)
                time.sleep(0.05)
            (tmp_path / "slowly").touch()
        stopped = [pid for node in (nodes if all_nodes else nodes[1:]) for pid in below(node.pid)]
        for number, pause_s in ((signal.SIGSTOP, 3 * BOUND_S), (signal.SIGCONT, BOUND_S)):
            for pid in stopped:
                os.kill(pid, number)
            time.sleep(pause_s)
        (tmp_path / "enough").touch()
        codes = [node.wait(LIMIT_S) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert codes == [Exit.COMPLETED, Exit.COMPLETED]
    lines = [line for path in sorted((directory.root / "shared/journal").glob("*.jsonl")) for line, _ in read_lines(path)]
    assert {line["kind"] for line in lines}.isdisjoint({"hang", "failure", "lost"})
    assert sum(line["kind"] == "start" for line in lines) == 1
