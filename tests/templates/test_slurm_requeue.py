"""The batch script on a real Slurm: a run to be retried elsewhere restarts without its suspects."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.slurm.cluster import SlurmCluster
from tests.real.slurm.configuration import Shape
from tests.real.slurm.programs import obstacle

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples/two-node-slurm/rendered/small-llama/two-cpu-nodes/slurm/job.sbatch"

# A stand-in for headway.runner: the first attempt suspects n2, the second completes.
PYTHON = """\
#!/bin/bash
attempt=${SLURM_RESTART_COUNT:-0}
if [[ $2 != headway.runner ]]; then exit; fi
hostname >>"$RECORD.$attempt"
if ((attempt == 0)); then
  echo n2 >"${3%/*}/exclude"
  printf '{\\n  "exit_code": 81,\\n  "step": 0\\n}\\n' >"${3%/*}/verdict.json"
fi
"""


@pytest.fixture
def three_nodes() -> Iterator[SlurmCluster]:
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    with SlurmCluster(Shape(nodes=3)) as cluster:
        yield cluster


def test_retry_elsewhere_excludes_the_suspect(three_nodes: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "python3").write_text(PYTHON)
    (tmp_path / "python3").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{three_nodes.env['PATH']}", "RECORD": str(tmp_path / "ran")}
    job = three_nodes.submit(SCRIPT, env=environment, cwd=tmp_path)
    done = three_nodes.wait(job, {"COMPLETED"}, 120)
    assert (done["Restarts"], done["ExcNodeList"]) == ("1", "n2")
    assert [sorted((tmp_path / f"ran.{attempt}").read_text().split()) for attempt in (0, 1)] == [["n1", "n2"], ["n1", "n3"]]
