"""Tests a node that joins an attempt after its end, such as a pod that is recreated after its run."""

import subprocess
import sys
from pathlib import Path

import pytest

from headway.runner.contract import Mesh, RunConfig, Trainer, Verdict, to_json
from headway.runner.rundir import open_run


@pytest.mark.slow
def test_a_node_that_joins_after_the_verdict_exits_with_its_code(tmp_path: Path) -> None:
    config = RunConfig(slots=1, spares=1, procs_per_slot=1, mesh=Mesh(), trainer=Trainer("builtin"), spec_hash="0" * 64)
    directory = open_run(tmp_path, "case-00000000-1", config, 0)
    verdict = Verdict(directory.root.name, 0, 1, "completed", "completed", exit_code=0)
    command = [sys.executable, "-m", "headway.runner", str(directory.run_json), "--attempt", "0", "--node", "1"]
    for code in (0, 82):
        directory.verdict.write_text(to_json(verdict).replace('"exit_code": 0', f'"exit_code": {code}'))
        done = subprocess.run(command, env={"HEADWAY_NODES": "a,b"}, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert not directory.node(1).exists()
