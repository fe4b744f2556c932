"""ssh reaches a host by the cluster's file and the user's configuration."""

from pathlib import Path

import pytest

from headway.infra.reach import ConnectError, Reach
from headway.infra.ssh import as_ssh_would

CONFIG = """
Host cluster
  HostName login.example.com
  User alice
  Port 2222
  ProxyJump bob@bastion:2200,inner

Host bastion
  HostName bastion.example.com

Host inner
  User carol

Host loop
  ProxyJump loop
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config").write_text(CONFIG)
    return tmp_path / "config"


def reached(config: Path, host: str, user: str = "", port: int = 0, jump: str | None = None) -> Reach:
    return as_ssh_would(host, Reach(host, host, port, user), jump, config)


def places(reach: Reach | None) -> list[str]:
    """Return the hosts on the path, the last one first."""
    return [] if reach is None else [f"{reach.user}@{reach.place}", *places(reach.jump)]


def test_ssh_configuration_supplies_values_that_the_cluster_omits(config: Path) -> None:
    assert places(reached(config, "cluster")) == [
        "alice@login.example.com:2222",
        "carol@inner:22",
        "bob@bastion.example.com:2200",
    ]


def test_values_of_the_cluster_override_the_ssh_configuration(config: Path) -> None:
    assert places(reached(config, "cluster", "dave", 22, "eve@[::1]:99")) == ["dave@login.example.com:22", "eve@::1:99"]
    assert places(reached(config, "cluster", "dave", jump="none")) == ["dave@login.example.com:2222"]


def test_host_without_an_ssh_configuration_is_reached_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "me")
    assert places(reached(tmp_path / "none", "n1")) == ["me@n1:22"]


def test_proxy_jump_to_itself_is_rejected(config: Path) -> None:
    with pytest.raises(ConnectError, match="a ProxyJump may lead to itself"):
        reached(config, "loop")
