"""Tests that a real systemd-networkd that starts after `headway-qos` keeps its settings, because of the rendered file."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from headway.templates.hosts.render import NETWORKD, SCRIPT, render_host
from tests.templates.test_sonic import cluster

from .planned import addresses_of

DAEMON = Path("/lib/systemd/systemd-networkd")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare (util-linux)"),
    pytest.mark.skipif(not DAEMON.exists(), reason=f"`{DAEMON}` not found; run `apt-get install systemd`"),
]

# In separate network and mount namespaces, whose /sys is read-only as in a container: networkd does not wait for udev then. It writes a
# file for each interface that it has examined, and configures one, with a file such as netplan makes. That one is created when it has all
# rules, as on a host, where udev is slower than the kernel.
STORY = """\
set -eu
mount -t sysfs -o ro sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /etc/systemd
mkdir -p /run/systemd/netif /etc/systemd/network "$(dirname "$FILE")"
chown -R systemd-network: /run/systemd/netif
if [ -e "$SETTINGS" ]; then cp "$SETTINGS" "$FILE"; fi
ip link set lo up
for adapter in mlx5_0 mlx5_1; do
  ip link add "$adapter" type veth peer name "leaf-$adapter"
  ip link set "leaf-$adapter" up
done
printf '[Match]\\nName=eth0\\n[Network]\\nAddress=192.0.2.2/24\\nLinkLocalAddressing=no\\n' >/etc/systemd/network/10-netplan-eth0.network
bash -e "$SCRIPT"
# The kernel adds its own IPv6 routes some time after a link is up.
show() { ip rule; ip -4 route show table all | grep mlx5; ip -6 route show table all | grep mlx5 | grep -v 'proto kernel' || :; }
show >"$BEFORE"
"$DAEMON" &
daemon=$!
states() {
  for _ in $(seq 600); do
    if [ "$(cat /run/systemd/netif/links/* 2>/dev/null | grep -c "ADMIN_STATE=$1")" -ge "$2" ]; then return; fi
    sleep 0.05
  done
  return 1
}
states unmanaged 5
ip link add eth0 type veth peer name gateway
ip link set gateway up
states configured 1
kill "$daemon"
wait "$daemon" || :
show >"$AFTER"
"""


def after_a_start(folder: Path, settings: str | None) -> tuple[list[str], list[str]]:
    """Rules and routes before networkd starts with these settings, and once it knows the adapters."""
    plan = cluster()
    names = {name: folder / name.lower() for name in ("SETTINGS", "SCRIPT", "BEFORE", "AFTER")}
    names["SCRIPT"].write_text(addresses_of(render_host(plan.nodes[1], plan)[SCRIPT]))
    if settings is not None:
        names["SETTINGS"].write_text(settings)
    environment = {
        **os.environ,
        **{name: str(path) for name, path in names.items()},
        "DAEMON": str(DAEMON),
        "FILE": str(NETWORKD),
    }
    command = ["unshare", "--net", "--mount", "bash", "-c", STORY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return names["BEFORE"].read_text().splitlines(), names["AFTER"].read_text().splitlines()


def test_networkd_that_starts_later_keeps_the_adapters_rules_and_routes(tmp_path: Path) -> None:
    plan = cluster()
    before, after = after_a_start(tmp_path, render_host(plan.nodes[1], plan)[NETWORKD])
    assert [line for line in before if "lookup 1000" in line]
    assert after == before


def test_without_the_file_networkd_deletes_the_rules(tmp_path: Path) -> None:
    """The reason for the file: the test above would pass with a networkd that deletes nothing."""
    before, after = after_a_start(tmp_path, None)
    assert [line for line in before if line not in after]
    assert not [line for line in after if "lookup 1000" in line]
