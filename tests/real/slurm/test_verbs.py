"""Tests one run with one name: submitted, watched, cancelled and resumed under real Slurms, locally and through two sshd in a row."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.watching import RunWatch
from headway.infra.submit.runs import RunsHere
from headway.infra.submit.shell import Here
from headway.infra.submit.site import Site
from headway.infra.submit.slurm import Slurm
from tests.faults.runs import wait_for_step, wait_until
from tests.real.ssh import programs as ssh_programs
from tests.real.ssh.hosts import SshHosts

from .clients import PYTHON, STORY, User, user
from .cluster import SlurmCluster
from .versions import INSTALLED, mostly

pytestmark = pytest.mark.slow

LOGIN = """    login:
      host: 127.0.0.1
      port: {port}
      user: root
      jump: root@127.0.0.1:{jump}
      identity: {identity}
      known_hosts: {known_hosts}
      folder: {folder}
      setup: ['export SLURM_CONF={slurm_conf} PATH={path}:$PATH']
"""


@pytest.fixture(scope="module")
def logins() -> Iterator[SshHosts]:
    """A login host, and one behind it."""
    reason = ssh_programs.obstacle()
    if reason is not None:
        pytest.skip(reason)
    with SshHosts({"bastion": False, "login": False}) as hosts:
        yield hosts


def through(logins: SshHosts, slurm: SlurmCluster, folder: Path, known_hosts: Path | None = None) -> str:
    """The options of a cluster whose login node is behind another host, and its folder for jobs."""
    (folder / "there").mkdir(parents=True)
    return LOGIN.format(
        port=logins.hosts["login"].port,
        jump=logins.hosts["bastion"].port,
        identity=logins.identity,
        known_hosts=known_hosts or logins.known_hosts,
        folder=folder / "there",
        slurm_conf=slurm.env["SLURM_CONF"],
        path=f"{folder / 'laptop' / 'programs'}:{PYTHON}",
    )


def status(of: User, name: str) -> dict[str, object]:
    (found,) = json.loads(of.headway("status", name, "--json").stdout)
    assert isinstance(found, dict)
    return found


@mostly(INSTALLED)
def test_a_run_is_submitted_watched_cancelled_and_resumed_over_ssh(
    each_slurm: SlurmCluster, logins: SshHosts, tmp_path: Path
) -> None:
    options = through(logins, each_slurm, tmp_path)
    # No Slurm on the laptop's PATH: each command is one of the login node.
    laptop = user(
        each_slurm, tmp_path / "laptop", options, XDG_CACHE_HOME=str(tmp_path / "cache"), PATH=PYTHON + ":/usr/sbin:/bin"
    )
    runs = tmp_path / "there" / "runs"
    # One node, whose rank does not end before it is cancelled.
    text = (STORY / "job.yaml").read_text()
    for old, new in (("steps: 30", "steps: 100000"), ("nodes: 2", "nodes: 1"), ("  micro: 1", "  micro: 16")):
        assert text.count(f"\n{old}\n") == 1
        text = text.replace(f"\n{old}\n", f"\n{new}\n")
    (laptop.folder / "job.yaml").write_text(text)
    submitted = laptop.headway("submit", "job.yaml")
    name = submitted.stdout.strip()
    (command,) = (line for line in submitted.stderr.splitlines() if line.startswith("$ "))
    (sbatch,) = (call for call in laptop.calls("sbatch") if "--test-only" not in call)
    assert command.startswith(
        f"$ ssh -J root@127.0.0.1:{logins.hosts['bastion'].port} -p {logins.hosts['login'].port} root@127.0.0.1 "
    )
    assert sbatch in command
    run = wait_for_step(runs, 12)
    assert (run.directory.name, status(laptop, name)["state"]) == (name, "running")
    assert laptop.headway("submit", "job.yaml").stdout.strip() == name
    laptop.headway("cancel", name)
    assert run.verdict(0)["verdict"] == "preempted"
    stood = run.steps()[-1]
    cancelled = status(laptop, name)
    assert (cancelled["state"], cancelled["step"]) == ("cancelled", stood)
    # The edited job rolls back to a checkpoint, and continues from there with another learning rate.
    back = stood // 10 * 10
    entry = f"history:\n  - {{from_step: {stood}, rollback_to: {back}, set: {{optimizer.lr: 0.001, steps: {back + 5}}}}}\n"
    (laptop.folder / "job.yaml").write_text(text + entry)
    resumed = laptop.headway("submit", "job.yaml", "--resume", name)
    assert f"history[0]: from step {stood} on: back to step {back}, optimizer.lr: 0.001, steps: {back + 5}" in resumed.stderr
    followed = laptop.headway("logs", name, "--rank", "0", "-f")
    assert followed.stdout.splitlines()[-1] == f"run {name}: completed"
    assert f'{{"finished": {back + 5}' in followed.stdout
    assert run.steps() == [*range(1, stood + 1), *range(back + 1, back + 6)]
    assert [claim["base"] and claim["base"]["step"] for claim in run.journal("claim")] == [None, back]
    (change,) = json.loads((run.directory / "attempts/1/run.json").read_text())["history"]
    assert change["set"] == {"optimizer.lr": 0.001, "steps": back + 5}
    assert len(laptop.jobs_of(name)) == 2


def test_a_login_node_with_another_key_is_rejected_before_submission(
    slurm: SlurmCluster, logins: SshHosts, tmp_path: Path
) -> None:
    bastion, login = logins.hosts["bastion"], logins.hosts["login"]
    known = tmp_path / "known_hosts"
    for wrong in (login, bastion):
        lines = [host.known_hosts_line for host in (bastion, login) if host is not wrong]
        other = bastion if wrong is login else login
        known.write_text("\n".join([*lines, f"[127.0.0.1]:{wrong.port} {other.host_key}", ""]))
        folder = tmp_path / wrong.name
        laptop = user(slurm, folder / "laptop", through(logins, slurm, folder, known))
        refused = laptop.headway("submit", "job.yaml", code=3)
        assert f"(root@127.0.0.1:{wrong.port}): the host presented ssh-ed25519 SHA256:" in refused.stderr
        assert laptop.calls() == []


def runs_script(of: User, trainer: str) -> None:
    """Let the user's job run a script in place of the training, on one node."""
    head, model, _ = (of.folder / "job.yaml").read_text().partition("\nmodel:")
    assert model
    (of.folder / "job.yaml").write_text(f"{head.replace('nodes: 2', 'nodes: 1')}\n{trainer}\n")


def test_a_failure_is_shown_with_its_rank_and_log_first(slurm: SlurmCluster, tmp_path: Path) -> None:
    here = user(slurm, tmp_path)
    (tmp_path / "fails.py").write_text("import os\nraise SystemExit(f'no data for rank {os.environ[\"RANK\"]}')\n")
    runs_script(here, "run: [fails.py]")
    name = here.headway("submit", "job.yaml").stdout.strip()
    followed = here.headway("logs", name, "-f")
    assert followed.stdout.splitlines()[-1] == f"run {name}: stopped"
    printed = here.headway("logs", name, "--rank", "0").stdout
    heading, _, logs = printed.partition("---")
    assert heading.splitlines()[0] == f"run {name}: stopped"
    assert "first cause of the last failure: exit code 1" in heading or "SystemExit" in heading
    assert "no data for rank" in logs


def test_a_watcher_queries_the_controller_less_than_six_times_a_minute(slurm: SlurmCluster, tmp_path: Path) -> None:
    here = user(slurm, tmp_path)
    runs_script(here, "trainer: {kind: script, options: {python: false, argv: [sleep, '600']}}")
    name = here.headway("submit", "job.yaml").stdout.strip()
    wait_until((here.runs / name / "handle.json").exists, "the run's first attempt")
    shell = Here(str(here.folder), here.environment)
    now = 0.0
    watch = RunWatch(Site(RunsHere(here.runs), Slurm(shell), None), now=lambda: now)
    before = len(here.calls())
    # A minute of status queries, as `headway status` makes them.
    for second in range(0, 60, 2):
        now = float(second)
        assert [each.run for each in watch.look()] == [name]
    assert 1 <= len(here.calls()[before:]) <= 6, here.calls()[before:]
    here.headway("cancel", name)
