"""Tests `headway torchrun` on several nodes: one loses power, then the endpoint's, and the script ends as if uninterrupted."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from .nodes import OWN_RUNS, Node, Nodes, why_not
from .runs import Run, wait_until
from .scripts import gated

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "nodes can be had")]

LAST = 200
LIMIT_S = 300


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The script's final line after its steps on two ranks: gradients are halved and added, which is exact in either order."""
    model = gated.network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, LAST + 1):
        optimizer.zero_grad()
        for rank in (0, 1):
            (gated.loss_of(model, gated.batch(step, rank)) / 2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return gated.ending(model, LAST)


def printed_end(output: str) -> str:
    (line,) = re.findall(r"finished step .*", output)
    return str(line)


class Cluster:
    """Nodes that share a folder with the script and its checkpoints, and the command to start on them."""

    def __init__(self, nodes: Nodes, runs: str, *flags: str, gates: tuple[int, ...]) -> None:
        self.nodes, self.runs, self.gates = nodes, runs, gates
        self.flags = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "job", *flags)

    def start(self, node: Node, *more: str) -> "subprocess.Popen[bytes]":
        words = (*self.flags, *more, "/mnt/gated.py", "/mnt", str(LAST), *map(str, self.gates))
        return node.torchrun(*words, runs=self.runs)

    def open(self, gate: int) -> None:
        (self.nodes.folder / f"gate-{gate}").touch()

    def saved(self, step: int) -> None:
        self.wait((self.nodes.folder / f"step-{step}/.metadata").exists, f"step {step}")

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        try:
            wait_until(ready, what)
        except TimeoutError as error:
            raise AssertionError(f"{what}; {self.report()}") from error

    def report(self) -> str:
        return "\n".join(f"{node.name}: {node.output[-2000:]}" for node in self.nodes.nodes)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    shutil.copy(gated.__file__, tmp_path)
    with Nodes(tmp_path, 3) as nodes:
        yield nodes


@pytest.mark.variant
def test_a_spare_replaces_a_lost_node_then_the_coordinators_node_is_lost(nodes: Nodes, undisturbed: str) -> None:
    flags = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29400", "--max-restarts", "9")
    cluster = Cluster(nodes, "/mnt/runs", *flags, gates=(40, 80))
    run = Run(nodes.folder / "runs/job")
    members = run.directory / "attempts/0/nodes"
    first = [cluster.start(nodes[0]), cluster.start(nodes[1])]
    cluster.saved(30)
    spare = cluster.start(nodes[2])
    cluster.wait((members / "2.json").exists, "the spare")
    cluster.open(40)
    cluster.saved(50)
    nodes[1].lose_power()
    cluster.wait(lambda: len(run.journal("start")) == 2, "the spare's start")
    back = cluster.start(nodes[1].boot())
    cluster.wait((members / "3.json").exists, "the node that is back")
    cluster.open(80)
    cluster.saved(100)
    nodes[0].lose_power()
    assert (spare.wait(LIMIT_S), back.wait(LIMIT_S)) == (0, 0), cluster.report()
    assert all(process.poll() != 0 for process in first)
    assert printed_end("".join(node.output for node in nodes.nodes)) == undisturbed
    assert [(line["slot"], line["from"], line["to"]) for line in run.journal("rebound")] == [(1, 1, 2), (0, 0, 3)]
    assert {line["node"] for line in run.journal("takeover")} & {2, 3}
    assert [line["node"] for line in run.journal("lost")] == [1, 0]
    assert run.verdict()["verdict"] == "completed"


def test_without_a_shared_store_the_same_command_replaces_a_lost_node(nodes: Nodes, undisturbed: str) -> None:
    flags = ("--master-addr", "node0", "--master-port", "29500", "--max-restarts", "9")
    cluster = Cluster(nodes, OWN_RUNS, *flags, gates=(40,))
    first = [cluster.start(nodes[rank], "--node-rank", str(rank)) for rank in (0, 1)]
    cluster.open(40)
    cluster.saved(50)
    nodes[1].lose_power()
    again = cluster.start(nodes[1].boot(), "--node-rank", "1")
    assert (first[0].wait(LIMIT_S), again.wait(LIMIT_S)) == (0, 0), cluster.report()
    assert printed_end(nodes[0].output) == undisturbed
    run = Run(nodes[0].own(f"{OWN_RUNS}/job"))
    assert {line["node"] for line in run.journal("failure")} == {1}
    assert run.journal("committed") == []
    assert run.verdict()["verdict"] == "completed"
    assert nodes[1].output.count("the nodes share no storage: headway commits no checkpoints") == 2
    assert "node lost" in nodes[0].output, "its last line"
    assert not nodes[1].own(f"{OWN_RUNS}/job/attempts/0/coordinators").exists(), "no node but the endpoint's coordinates"
