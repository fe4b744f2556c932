"""`headway submit`, `status`, `logs`, `cancel` and `resume` on a real Kubernetes."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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
class User:
    """A person with a kubeconfig, and a folder with job.yaml and cluster.yaml."""

    plane: ControlPlane
    folder: Path
    namespace: str

    def headway(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            leashed([sys.executable, "-m", "headway.cli.main", *words]),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, f"headway {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    @property
    def environment(self) -> dict[str, str]:
        own = {"HEADWAY_CLUSTER": "cluster.yaml", "XDG_CACHE_HOME": str(self.folder / "cache"), "NO_PROXY": "127.0.0.1"}
        return {**self.plane.env, **own, "COLUMNS": "200"}

    def status(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.headway("status", *words, "--json").stdout)
        return found

    def jobsets(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.plane.objects("jobsets", "-n", self.namespace)]


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    with control_plane.namespace() as name:
        yield name
        control_plane.kubectl("delete", "jobsets", "--all", "-n", name)


def user(plane: ControlPlane, folder: Path, namespace: str, options: Object, runs: str, job: str = JOB) -> User:
    (folder / "cluster.yaml").write_text(
        CLUSTER.format(options=quote({**options, "namespace": namespace}), runs=quote(runs), nodes=CPU_NODES)
    )
    (folder / "job.yaml").write_text(re.sub(r"cluster: .*", "cluster: pods", job))
    return User(plane, folder, namespace)


def test_a_run_is_submitted_once_and_is_known_without_its_records(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """As from a laptop, which does not see the claim of the runs."""
    alice = user(control_plane, tmp_path, namespace, NOWHERE, "/scratch/runs")
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
    # With nodes in the cluster, none matches the selector.
    assert re.search(r"no nodes available|node affinity/selector", listed["why"])
    printed = alice.headway("logs", run).stdout
    assert printed.startswith(f"run {run}: pending (2 of 2 pods wait")
    # The JobSet's name is the run's, and so are those of its hosts.
    assert [pod["spec"]["hostname"] for pod in pods] == [f"{run}-node-0-{index}" for index in (0, 1)]
    # An edited job is another run; of this one it has to be said.
    (tmp_path / "job.yaml").write_text((tmp_path / "job.yaml").read_text().replace("steps: 30", "steps: 31"))
    assert "does not see the records" in alice.headway("submit", "job.yaml", "--resume", run, code=1).stderr


def test_a_run_that_has_failed_is_told_and_resumed_by_name_alone(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    alice = user(control_plane, tmp_path, namespace, NOWHERE, "/scratch/runs")
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


def test_what_the_api_server_refuses_leaves_no_jobset(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    alice = user(control_plane, tmp_path, namespace, NOWHERE, "/scratch/runs")
    refused = alice.headway("submit", "job.yaml", code=1).stderr
    assert "the scheduler refuses the job: " in refused
    assert "violates PodSecurity" in refused
    assert alice.jobsets() == []


def test_a_client_that_was_killed_leaves_at_most_one_jobset(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    """Between each two requests that change anything, and two clients at the same moment."""
    alice = user(control_plane, tmp_path, namespace, NOWHERE, "/scratch/runs")
    names = set()
    for stop in range(1, 4):
        killed = subprocess.run(
            leashed([sys.executable, "-c", KILLED.format(stop=stop), "submit", "job.yaml"]),
            cwd=tmp_path,
            env=alice.environment,
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
    clients = [
        subprocess.Popen(words, cwd=tmp_path, env=alice.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    ended = [client.communicate(timeout=LIMIT_S) for client in clients]
    assert {output.strip() for output, _ in ended} == names, ended
    assert alice.jobsets() == [run]


# Ends before the request of number `stop` that would change something.
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


def test_a_run_is_cancelled_edited_and_resumed_to_the_state_of_a_local_run(
    control_plane: ControlPlane, real_nodes: RealNodes, namespace: str, local: Run, tmp_path: Path
) -> None:
    runs = real_nodes.runs / "verbs"
    runs.mkdir()
    mounts = [{"path": str(m.path), "host_path": str(m.host_path), "read_only": m.read_only} for m in real_nodes.mounts]
    options: Object = {"image": IMAGE, "image_pull_policy": "Never", "mounts": mounts, "setup": [f"PATH={sys.prefix}/bin:$PATH"]}
    alice = user(control_plane, tmp_path, namespace, options, str(runs))
    run = alice.headway("submit", "job.yaml").stdout.strip()
    wait_until(lambda: (alice.status(run)[0]["step"] or 0) >= 4, "a step")
    (listed,) = alice.status(run)
    assert (listed["state"], listed["nodes"]) == ("running", "n1,n2")
    assert "step" in alice.headway("logs", run).stdout
    cancelled = alice.headway("cancel", run).stderr
    (saved,) = re.findall(r"; step (\d+) is saved", cancelled)
    assert int(saved) >= 4
    assert alice.status(run)[0]["state"] == "cancelled"
    alice.headway("resume", run)
    following = alice.headway("logs", run, "-f")
    assert following.stdout.splitlines()[-1] == f"run {run}: completed"
    found = Run(runs / run)
    assert found.hashes() == local.hashes()
    assert [found.verdict(attempt)["verdict"] for attempt in (0, 1)] == ["preempted", "completed"]
    assert found.steps() == list(range(1, 31))
    # Ten more steps at another learning rate.
    (tmp_path / "job.yaml").write_text(
        (tmp_path / "job.yaml").read_text() + "\nhistory:\n  - {from_step: 30, set: {optimizer.lr: 0.001, steps: 40}}\n"
    )
    alice.headway("submit", "job.yaml", "--resume", run)
    wait_until(lambda: alice.status(run)[0]["state"] == "completed" and found.steps()[-1] == 40, "the end of the run")
    assert [each.name for each in sorted(found.directory.glob("attempts/*"))] == ["0", "1", "2"]
    assert "has completed" in alice.headway("resume", run, code=1).stderr
