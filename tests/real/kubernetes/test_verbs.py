"""Tests `headway submit`, `status`, `logs`, `cancel` and `resume` on a real Kubernetes."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.templates.schedulers.kubernetes.yaml_text import quote
from tests.faults.runs import LIMIT_S, Run, wait_until
from tests.real.slurm.machine import leashed

from .control_plane import ControlPlane, Object
from .image import IMAGE
from .node import RealNodes
from .test_story import CLUSTER, CPU_NODES, JOB, NOWHERE, end_pod, pods_of

pytest.importorskip("kubernetes", reason="run `pip install 'headway[kubernetes]'`")

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Printed:
    """The output of a verb."""

    stdout: str
    stderr: str


@dataclass(frozen=True)
class User:
    """A person with a kubeconfig, in a folder with job.yaml and cluster.yaml."""

    plane: ControlPlane
    folder: Path
    namespace: str
    capsys: pytest.CaptureFixture[str]

    def headway(self, *words: str, code: int = 0) -> Printed:
        self.capsys.readouterr()
        ended = main(list(words))
        printed = Printed(*self.capsys.readouterr())
        assert ended == code, f"headway {' '.join(words)}: {ended}\n{printed.stdout}{printed.stderr}"
        return printed

    def status(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.headway("status", *words, "--json").stdout)
        return found

    def jobsets(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.plane.objects("jobsets", "-n", self.namespace)]

    def edit(self, old: str, new: str) -> None:
        text = (self.folder / "job.yaml").read_text()
        assert old in text
        (self.folder / "job.yaml").write_text(text.replace(old, new))


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    with control_plane.namespace() as name:
        yield name
        control_plane.kubectl("delete", "jobsets", "--all", "-n", name)


Makes = Callable[[Object, str], User]


@pytest.fixture
def user(
    control_plane: ControlPlane,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Makes:
    """Create a user of a cluster with these options and this folder of runs."""
    monkeypatch.chdir(tmp_path)
    own = {"HEADWAY_CLUSTER": "cluster.yaml", "XDG_CACHE_HOME": str(tmp_path / "cache"), "NO_PROXY": "127.0.0.1"}
    for name, value in {"KUBECONFIG": str(control_plane.kubeconfig), **own}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HEADWAY_RUNS", raising=False)

    def make(options: Object, runs: str) -> User:
        document = CLUSTER.format(options=quote({**options, "namespace": namespace}), runs=quote(runs), nodes=CPU_NODES)
        (tmp_path / "cluster.yaml").write_text(document)
        (tmp_path / "job.yaml").write_text(re.sub(r"cluster: .*", "cluster: pods", JOB))
        return User(control_plane, tmp_path, namespace, capsys)

    return make


def test_a_run_is_submitted_once_and_is_found_without_its_records(
    control_plane: ControlPlane, namespace: str, user: Makes
) -> None:
    """As from a laptop, which does not see the claim of the runs."""
    alice = user(NOWHERE, "/scratch/runs")
    submitted = alice.headway("submit", "job.yaml")
    run = submitted.stdout.strip()
    assert f"$ kubectl --namespace={namespace} create -f -" in submitted.stderr
    assert alice.jobsets() == [run]
    assert alice.headway("submit", "job.yaml").stdout.strip() == run
    assert alice.jobsets() == [run]
    pods = pods_of(control_plane, namespace, 0)
    (listed,) = alice.status()
    assert (listed["run"], listed["state"]) == (run, "pending")
    assert "2 of 2 pods wait" in listed["why"]
    # Which of the scheduler's reasons comes first depends on the existing nodes: no selector matches, and there is no such claim.
    assert re.search(r"no nodes available|node affinity/selector|persistentvolumeclaim", listed["why"])
    printed = alice.headway("logs", run).stdout
    assert printed.startswith(f"run {run}: pending (2 of 2 pods wait")
    # The JobSet's name is the run's, and so are those of its hosts.
    assert [pod["spec"]["hostname"] for pod in pods] == [f"{run}-node-0-{index}" for index in (0, 1)]
    # An edited job can only continue the run once that has no job, and is compared with the run's records.
    alice.edit("steps: 30", "steps: 31")
    assert "has an earlier version of the job" in alice.headway("submit", "job.yaml", "--resume", run, code=1).stderr
    alice.headway("cancel", run)
    assert "does not see the records" in alice.headway("submit", "job.yaml", "--resume", run, code=1).stderr


def test_a_failed_run_is_reported_and_resumed_by_name_only(control_plane: ControlPlane, namespace: str, user: Makes) -> None:
    alice = user(NOWHERE, "/scratch/runs")
    run = alice.headway("submit", "job.yaml").stdout.strip()
    end_pod(control_plane, pods_of(control_plane, namespace, 0)[1], 83)
    wait_until(lambda: alice.status(run)[0]["state"] == "failed", "the end of the JobSet")
    assert alice.status(run)[0]["why"] == "pod 1 ended with exit code 83"
    assert "--resume" in alice.headway("submit", "job.yaml", code=1).stderr
    uid = control_plane.objects("jobsets", "-n", namespace)[0]["metadata"]["uid"]
    alice.headway("resume", run)
    (again,) = control_plane.objects("jobsets", "-n", namespace)
    assert (again["metadata"]["name"], again["metadata"]["labels"]["headway/submission"]) == (run, "2")
    assert again["metadata"]["uid"] != uid
    assert "has a job" in alice.headway("resume", run).stderr
    alice.headway("cancel", run)
    assert alice.jobsets() == []
    assert alice.status(run)[0]["state"] == "cancelled"
    assert "has no job" in alice.headway("cancel", run).stderr


def test_a_manifest_rejected_by_the_api_server_leaves_no_jobset(control_plane: ControlPlane, namespace: str, user: Makes) -> None:
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    alice = user(NOWHERE, "/scratch/runs")
    refused = alice.headway("submit", "job.yaml", code=1).stderr
    assert "the scheduler refuses the job: " in refused
    assert "violates PodSecurity" in refused
    assert alice.jobsets() == []


@pytest.mark.variant
def test_a_killed_client_leaves_at_most_one_jobset(control_plane: ControlPlane, namespace: str, user: Makes) -> None:
    """Between each two requests that change anything, and two clients at the same moment."""
    alice = user(NOWHERE, "/scratch/runs")
    names = set()
    for stop in range(1, 4):
        killed = subprocess.run(
            leashed([sys.executable, "-c", KILLED.format(stop=stop), "submit", "job.yaml"]),
            capture_output=True,
            check=False,
        )
        assert killed.returncode == -9, killed.stderr
        assert len(alice.jobsets()) <= 1
        names.add(alice.headway("submit", "job.yaml").stdout.strip())
        (run,) = alice.jobsets()
        assert {run} == names
        alice.headway("cancel", run)
        control_plane.kubectl("delete", "configmap", run, "-n", namespace)
    words = leashed([sys.executable, "-m", "headway.cli.main", "submit", "job.yaml"])
    clients = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ended = [client.communicate(timeout=LIMIT_S) for client in clients]
    assert {output.strip() for output, _ in ended} == names, ended
    assert alice.jobsets() == [run]


# Ends before the request number `stop` that would change something.
KILLED = """
import os, signal, sys
from headway.cli.main import main
from headway.infra.submit.api_server import ApiServer
count, send = 0, ApiServer._send
def counted(self, method, path, query, body=None, *more, **options):
    global count
    count += method != "GET" and ("dryRun", "All") not in query
    if count == {stop}:
        os.kill(os.getpid(), signal.SIGKILL)
    return send(self, method, path, query, body, *more, **options)
ApiServer._send = counted
main(sys.argv[1:])
"""


@pytest.mark.variant
def test_a_run_is_cancelled_resumed_edited_and_completed_losing_no_step(
    real_nodes: RealNodes, user: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = real_nodes.runs / "verbs"
    runs.mkdir()
    mounts = [{"path": str(m.path), "host_path": str(m.host_path), "read_only": m.read_only} for m in real_nodes.mounts]
    options: Object = {"image": IMAGE, "image_pull_policy": "Never", "mounts": mounts, "setup": [f"PATH={sys.prefix}/bin:$PATH"]}
    alice = user(options, str(runs))
    alice.edit("steps: 30", "steps: 1000000")
    run = alice.headway("submit", "job.yaml").stdout.strip()
    found = Run(runs / run)
    wait_until(lambda: (alice.status(run)[0]["step"] or 0) >= 4, "a step")
    (listed,) = alice.status(run)
    assert (listed["state"], sorted(listed["nodes"].split(",")), listed["attempt"]) == ("running", ["n1", "n2"], 0)
    assert f"--- {run}/attempts/0/logs/0/0.log" in alice.headway("logs", run).stdout
    # From a machine that does not see the records.
    monkeypatch.setenv("HEADWAY_RUNS", str(alice.folder / "elsewhere"))
    assert [each["state"] for each in alice.status(run)] == ["running"]
    assert re.search(r"^--- pod \S+ on n[12]: Running$", alice.headway("logs", run, "--rank", "1").stdout, re.MULTILINE)
    monkeypatch.delenv("HEADWAY_RUNS")
    first = cancelled(alice, run)
    assert first >= 4
    assert alice.status(run)[0]["state"] == "cancelled"
    alice.headway("resume", run)
    wait_until(lambda: (alice.status(run)[0]["step"] or 0) > first, "a step of the next attempt")
    second = cancelled(alice, run)
    alice.edit("steps: 1000000", f"steps: 1000000\nhistory:\n  - {{from_step: {second}, set: {{steps: {second + 10}}}}}")
    assert alice.headway("submit", "job.yaml", "--resume", run).stdout == f"{run}\n"
    assert alice.headway("logs", run, "-f").stdout.splitlines()[-1] == f"run {run}: completed"
    assert found.steps() == list(range(1, second + 11))
    assert [found.verdict(attempt)["verdict"] for attempt in (0, 1, 2)] == ["preempted", "preempted", "completed"]
    assert "has completed" in alice.headway("resume", run, code=1).stderr


def cancelled(user: User, run: str) -> int:
    """The step that the run's pods have saved when they have ended."""
    (saved,) = re.findall(r"; step ([\d,]+) is saved", user.headway("cancel", run).stderr)
    assert user.jobsets() == []
    return int(saved.replace(",", ""))
