"""How ssh would reach a host: what the user's configuration adds to a cluster's file."""

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
    """The hosts on the way, the last one first."""
    return [] if reach is None else [f"{reach.user}@{reach.place}", *places(reach.jump)]


def test_the_configuration_gives_what_the_cluster_omits(config: Path) -> None:
    assert places(reached(config, "cluster")) == [
        "alice@login.example.com:2222",
        "carol@inner:22",
        "bob@bastion.example.com:2200",
    ]


def test_the_values_of_the_cluster_win(config: Path) -> None:
    assert places(reached(config, "cluster", "dave", 22, "eve@[::1]:99")) == ["dave@login.example.com:22", "eve@::1:99"]
    assert places(reached(config, "cluster", "dave", jump="none")) == ["dave@login.example.com:2222"]


def test_a_host_without_an_entry_and_no_configuration_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "me")
    assert places(reached(tmp_path / "none", "n1")) == ["me@n1:22"]


def test_a_jump_that_leads_to_itself_is_refused(config: Path) -> None:
    with pytest.raises(ConnectError, match="a ProxyJump may lead to itself"):
        reached(config, "loop")
