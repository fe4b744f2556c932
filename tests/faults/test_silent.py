"""Tests a node whose device computes wrongly without reporting it: another rank finds it, it is excluded, and its results are undone."""

from pathlib import Path

import pytest

from tests.support import LIGHT

from .runs import JOB, headway, only_run, undisturbed_hashes

pytestmark = pytest.mark.slow

# From step 13 on, the gradients that node 1 computes are a ten-thousandth too large.
FAULT = """
import os
import sys
from headway.runner.boot.after_import import after_import

def spoil(module):
    original = module.Gradients._loss

    def loss(self, tokens):
        found = original(self, tokens)
        if os.environ.get("THIS_NODE") == "1" and self.state.step >= 12:
            found.register_hook(lambda gradient: gradient * 1.0001)
        return found

    module.Gradients._loss = loss

if "--node" in sys.orig_argv:  # a node's supervisor, whose workers inherit it
    os.environ["THIS_NODE"] = sys.orig_argv[sys.orig_argv.index("--node") + 1]
after_import("headway.runner.train.gradients", spoil)
"""


def job(folder: Path) -> Path:
    """The faults' job over 20 steps on three nodes of four, with each fifth step recomputed on another node."""
    text = (
        JOB.read_text()
        .replace("nodes: 1\n", "nodes: 3\n")
        .replace("steps: 60\n", "steps: 20\n")
        .replace("global: 8", "global: 6")
        .replace("micro: 4", "micro: 2")
    )
    (folder / "job.yaml").write_text(f"{text}resilience:\n  spares: 1\n  corruption: {{replay: 5 steps}}\n")
    cluster = (JOB.parent / "cluster.yaml").read_text()
    (folder / "cluster.yaml").write_text(
        cluster.replace("count: 1", "count: 4").replace("cpus: 2", "cpus: 1").replace("procs: 2", "procs: 1")
    )
    return folder / "job.yaml"


def test_a_run_excludes_a_faulty_node_rolls_back_and_ends_as_if_fault_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python imports one `sitecustomize`.
    (tmp_path / "sitecustomize.py").write_text((Path(LIGHT) / "sitecustomize.py").read_text() + FAULT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = headway("run", job(tmp_path), runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path / "runs")
    (found,) = run.journal("corruption")
    assert (found["ranks"], found["nodes"], found["sound_step"]) == ([1], [1], 10)
    assert run.journal("failure")[0]["cause_kind"] == "corruption"
    assert [line["node"] for line in run.journal("excluded")] == [1]
    assert run.journal("claim")[-1]["base"]["step"] == 10
    assert run.steps() == [*range(1, 15), *range(11, 21)]
    assert run.hashes() == undisturbed_hashes(run.run_json, tmp_path / "undisturbed")
