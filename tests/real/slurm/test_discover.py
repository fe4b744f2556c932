"""Tests documents discovered from real slurmctlds, with or without JSON from scontrol: they describe the cluster and pass the check."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.ssh import programs as ssh_programs
from tests.real.ssh.hosts import SshHosts

from .clients import user
from .cluster import SlurmCluster
from .record import parse_record

pytestmark = pytest.mark.slow


def test_documents_of_a_real_cluster_name_its_nodes_and_pass_the_check(each_slurm: SlurmCluster, tmp_path: Path) -> None:
    me = user(each_slurm, tmp_path / "me")
    assert me.headway("discover", "slurm", "-o", "found").stdout.split() == ["found/cluster.yaml", "found/inventory.yaml"]
    cluster = (me.folder / "found/cluster.yaml").read_text()
    for line in (
        "name: headway",
        "    partition: main",
        "    kill_wait: 20s",
        "    count: 2",
        "    cpus: 4",
        "    host_memory: 16000MiB",
    ):
        assert f"\n{line}\n" in cluster
    inventory = (me.folder / "found/inventory.yaml").read_text()
    records = [parse_record(each_slurm.run("scontrol", "-o", "show", "node", name).stdout) for name in ("n1", "n2")]
    assert [line for line in inventory.splitlines() if "host:" in line] == [
        f"  - {{name: n-{number}, host: {record['NodeAddr']}}}  # n{number}" for number, record in enumerate(records, 1)
    ]
    me.headway("check", "found")


def test_existing_documents_are_unchanged(slurm: SlurmCluster, tmp_path: Path) -> None:
    me = user(slurm, tmp_path / "me")
    (me.folder / "cluster.yaml").write_text("mine\n")
    refused = me.headway("discover", "slurm", code=1)
    assert "cluster.yaml exists; add `--overwrite`" in refused.stderr
    assert (me.folder / "cluster.yaml").read_text() == "mine\n"
    assert not (me.folder / "inventory.yaml").exists()


@pytest.fixture
def login() -> Iterator[SshHosts]:
    reason = ssh_programs.obstacle()
    if reason is not None:
        pytest.skip(reason)
    with SshHosts({"login": False}) as hosts:
        yield hosts


def test_a_login_node_is_queried_over_ssh_and_written_to_the_document(
    slurm: SlurmCluster, login: SshHosts, tmp_path: Path
) -> None:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/config").write_text(
        f"Host lab\n  HostName 127.0.0.1\n  User root\n  Port {login.hosts['login'].port}\n"
        f"  IdentityFile {login.identity}\n  UserKnownHostsFile {login.known_hosts}\n"
    )
    # No Slurm responds on the laptop: the commands are those of the login node.
    me = user(slurm, tmp_path / "me", HOME=str(tmp_path / "home"), SLURM_CONF="/nowhere")
    setup = f"export SLURM_CONF={slurm.env['SLURM_CONF']} PATH={me.programs}:{slurm.env['PATH']}"
    me.headway("discover", "slurm", "--login", "lab", "--setup", setup, "-o", "found")
    text = (me.folder / "found/cluster.yaml").read_text()
    assert "    login: {host: lab, setup: [" in text
    assert "\n    count: 2\n" in text
