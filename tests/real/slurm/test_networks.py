"""Tests nodes with separate networks under a real Slurm: names that resolve to the node itself or nowhere, and broken connections."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.nodes import why_not
from tests.faults.runs import LIMIT_S, Run, only_run

from .cluster import SlurmCluster
from .configuration import Shape
from .shell import submit
from .test_lost_nodes import ENDED, SCRIPT, impatient, printed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.variant,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "networks can be had"),
]

# Programs of sed for a node's /etc/hosts.
TO_ITSELF = "s/^.* NODE$/127.0.1.1 NODE/"
NOWHERE = "/ n[0-9]*$/d"
UNREACHED = re.compile(r"headway: (n\d) cannot reach the coordinator on (n\d):(\d+), tried for ")


@pytest.fixture(scope="module")
def three(slurm_here: None) -> Iterator[SlurmCluster]:
    """Nodes n1 to n3, whose names resolve to another network than Slurm's."""
    with SlurmCluster(Shape(nodes=3, has_networks=True)) as cluster:
        yield cluster


@contextmanager
def edited_hosts(cluster: SlurmCluster, folder: Path, edit: str) -> Iterator[None]:
    """On each node, /etc/hosts is the output of the program of sed; NODE there is the node's name."""
    for node in cluster.shape.node_names:
        hosts = folder / f"hosts-{node}"
        script = f"sed '{edit.replace('NODE', node)}' /etc/hosts >{hosts} && mount --bind {hosts} /etc/hosts"
        cluster.nsenter(node, ["sh", "-c", script])
    try:
        yield
    finally:
        for node in cluster.shape.node_names:
            cluster.nsenter(node, ["umount", "/etc/hosts"])


@pytest.mark.parametrize("edit", [TO_ITSELF, NOWHERE], ids=["127.0.1.1", "nowhere"])
def test_nodes_find_each_other_whatever_their_names_resolve_to(
    three: SlurmCluster, edit: str, local: Run, tmp_path: Path
) -> None:
    with edited_hosts(three, tmp_path, edit):
        job = submit(three, SCRIPT, tmp_path)
        state = three.wait(job, ENDED, LIMIT_S)["JobState"]
    assert state == "COMPLETED", printed(tmp_path)
    assert three.job(job)["Restarts"] == "0"
    assert only_run(tmp_path / "runs").hashes() == local.hashes()


def test_nodes_that_cannot_connect_are_named_with_the_port_and_separated(three: SlurmCluster, local: Run, tmp_path: Path) -> None:
    three.cut("n1", "n2")
    try:
        job = submit(three, impatient(Path(shutil.copy(SCRIPT, tmp_path))), tmp_path)
        state = three.wait(job, ENDED, LIMIT_S)["JobState"]
    finally:
        three.heal("n1", "n2")
    text = printed(tmp_path)
    assert state == "COMPLETED", text
    run = only_run(tmp_path / "runs")
    assert [run.verdict(attempt)["exit_code"] for attempt in (0, 1)] == [81, 0]
    here, there, port = UNREACHED.findall(text)[0]
    assert {here, there} == {"n1", "n2"}
    assert int(port) > 0
    assert three.job(job)["ExcNodeList"] in ("n1", "n2")
    assert run.hashes() == local.hashes()
