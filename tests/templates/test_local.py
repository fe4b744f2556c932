"""The local script: one runner per slot, the worst exit code unless there is a verdict file, and forwarded signals."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from headway.cli.documents import load_job_plan
from headway.compile import compile_documents
from headway.runner.contract import with_shared
from tests.templates.test_slurm import CLUSTER, JOB

PYTHON = """\
#!/bin/bash
printf '%s\\n' "$*" >>"$CALLS"
case "$2 $3" in
"headway.runner.rundir open") cat >"$STDIN"; cat "$9" >"$STDIN.spec"; printf '%s\\n' "$4/run.json" ;;
"headway.runner.rundir exit-code") echo "${VERDICT:-$6}" ;;
"headway.runner "*)
  echo "nodes=$HEADWAY_NODES" >>"$CALLS"
  if [[ -n ${WAIT:-} ]]; then trap 'exit 82' TERM; : >"$WAIT.$7"; sleep 30 & wait; fi
  exit "$((CODE + $7))"
  ;;
esac
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    cluster = re.sub(r"scheduler:.*?node_groups:", "scheduler: {kind: local}\nnode_groups:", CLUSTER, flags=re.DOTALL)
    (tmp_path / "cluster.yaml").write_text(cluster)
    (tmp_path / "it's").mkdir()
    (tmp_path / "it's" / "corpus.txt").touch()
    (tmp_path / "job.yaml").write_text(JOB.replace('limits: {attempt: {time: "1:30:00"}}\n', ""))
    planned = load_job_plan(tmp_path / "job.yaml")
    assert planned is not None
    (text,) = [text for path, text in planned.files().items() if path.suffix == ".sh"]
    path = tmp_path / "run.sh"
    path.write_text(text)
    return path


@contextmanager
def started(script: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the script with stand-ins for its tools; its whole session ends with the block."""
    tools = script.parent / "tools"
    tools.mkdir()
    (tools / "python3").write_text(PYTHON)
    (tools / "python3").chmod(0o755)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CALLS": str(script.parent / "calls"),
        "STDIN": str(script.parent / "stdin"),
    }
    command, own = ["bash", str(script)], {**environment, "CODE": "0", **variables}
    with subprocess.Popen(command, env=own, cwd=script.parent, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(("code", "verdict", "ends"), [("0", None, 1), ("82", None, 83), ("9", "80", 80), ("9", "0", 0)])
def test_exit_code_is_the_worst_code_unless_there_is_a_verdict(script: Path, code: str, verdict: str | None, ends: int) -> None:
    with started(script, CODE=code, **({"VERDICT": verdict} if verdict else {})) as process:
        assert process.wait(30) == ends
    calls = (script.parent / "calls").read_text().splitlines()
    runners = sorted(call for call in calls if call.startswith("-m headway.runner "))
    assert runners == [f"-m headway.runner runs of 'lab'/run.json --attempt 0 --node {node}" for node in (0, 1)]
    assert calls.count("nodes=127.0.0.1,127.0.0.1") == 2
    assert re.fullmatch(
        r"-m headway.runner.rundir open runs of 'lab' case-[0-9a-f]{8}-\d{8}T\d{6}\.\d{9} --attempt 0 --spec /dev/fd/3", calls[0]
    )


def test_run_gets_its_configuration_and_its_spec(script: Path) -> None:
    with started(script) as process:
        process.wait(30)
    assert json.loads((script.parent / "stdin").read_text())["steps"] == 100
    spec = with_shared(*(json.loads((script.parent / name).read_text()) for name in ("stdin.spec", "stdin")))
    assert (spec["kind"], spec["optimizer"]["lr"]) == ("TrainingJob", 0.003)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_reaches_every_runner_and_the_script_waits_for_them(script: Path, number: signal.Signals) -> None:
    ready = script.parent / "ready"
    with started(script, WAIT=str(ready)) as process:
        end = time.monotonic() + 30
        while not all(ready.with_name(f"ready.{node}").exists() for node in (0, 1)):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(30) == 82


def test_spare_adds_a_runner_and_a_node(script: Path) -> None:
    job = (script.parent / "job.yaml").read_text().replace("nodes: 2", "nodes: 1").replace("{grace: 12.5s}", "{spares: 1}")
    (script.parent / "job.yaml").write_text(job)
    planned = load_job_plan(script.parent / "job.yaml")
    assert planned is not None
    script.write_text(next(text for path, text in planned.files().items() if path.suffix == ".sh"))
    with started(script) as process:
        assert process.wait(30) == 1
    calls = (script.parent / "calls").read_text().splitlines()
    assert [call[-1] for call in sorted(calls) if call.startswith("-m headway.runner ")] == ["0", "1"]
    assert calls.count("nodes=127.0.0.1,127.0.0.1") == 2


@pytest.mark.parametrize("kind", ["local", "kubernetes"])
def test_pinned_commit_is_rejected_if_the_scheduler_cannot_start_it(kind: str, tmp_path: Path) -> None:
    cluster = re.sub(r"(?s)scheduler:.*?node_groups:", f"scheduler: {{kind: {kind}}}\nnode_groups:", CLUSTER)
    (tmp_path / "cluster.yaml").write_text(cluster.replace("runs of 'lab'", "/scratch/runs"))
    (tmp_path / "job.yaml").write_text(JOB + f"code: {{commit: {'a' * 40}}}\n")
    refused = [problem for problem in compile_documents([tmp_path / "job.yaml"]).problems if problem.code == "HW214"]
    assert [problem.path for problem in refused] == [("code", "commit")]
