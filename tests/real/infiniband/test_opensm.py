"""Tests that opensm discovers and routes the plan on a simulated fabric from a rendered netlist."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.jobspec.plan import ClusterPlan
from headway.templates.cabling.compare import PlannedCables, miscablings
from headway.templates.cabling.read import read_cables
from headway.templates.switches.opensm.options import OpensmOptions
from headway.templates.switches.opensm.render import render_fabric
from tests.jobspec.test_sizes import Site

pytestmark = pytest.mark.slow

_PROGRAMS = {"opensm": "opensm", "ibsim": "ibsim-utils", "ibsim-run": "ibsim-utils", "ibnetdiscover": "infiniband-diags"}


@pytest.fixture(scope="module")
def programs() -> None:
    # opensm and the diagnostics are in /usr/sbin
    missing = sorted({package for program, package in _PROGRAMS.items() if shutil.which(program, path=_path()) is None})
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (Debian: apt install {' '.join(missing)})")


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Simulated:
    """A fabric of ibsim in a folder, with programs that run on one of its adapters."""

    def __init__(self, folder: Path, netlist: str, host: str) -> None:
        self.folder, self.host = folder, host
        (folder / "topology.net").write_text(netlist)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Simulated":
        with (self.folder / "ibsim.log").open("w") as log:
            self._process = subprocess.Popen(
                ["ibsim", "-s", "-n", "topology.net"],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + 60
        while "Network simulator ready" not in (self.folder / "ibsim.log").read_text():
            is_running = self._process.poll() is None and time.monotonic() < deadline
            assert is_running, (self.folder / "ibsim.log").read_text()
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        # closes its standard input too
        self._process.communicate()

    def run(self, *command: str) -> str:
        done = subprocess.run(
            ["ibsim-run", *command],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _environment(self) -> dict[str, str]:
        # The server's name is that of an abstract socket, which other simulations must not share.
        own = {"PATH": _path(), "SIM_HOST": self.host, "IBSIM_SOCKNAME": f"headway-{self.folder.name}-{os.getpid()}"}
        return {**os.environ, **own, "OSM_TMP_DIR": str(self.folder), "OSM_CACHE_DIR": str(self.folder)}


def plan() -> ClusterPlan:
    """Two pods of two units, in three tiers."""
    switches = {"ports": 8, "tiers": 3}
    fabric = {"shape": "rail-optimized", "pods": 2, "balancing": "adaptive", "service_level": 1}
    return Site(16, nics=2, transport="infiniband", switches=switches, fabric=fabric).plan()


@pytest.fixture(scope="module")
def fabric(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    folder = tmp_path_factory.mktemp("fabric")
    cluster = plan()
    options = OpensmOptions(directory=str(folder))
    files = render_fabric(options, cluster.fabrics[0], cluster)
    for path, text in files.items():
        (folder / path).write_text(text)
    with Simulated(folder, (folder / "topology.net").read_text(), "gpu-1 mlx5_0") as simulated:
        simulated.run("opensm", "-F", str(folder / "opensm.conf"), "-o", "-f", str(folder / "opensm.log"))
        yield simulated


def test_the_discovered_fabric_matches_the_plan(fabric: Simulated) -> None:
    discovered = read_cables(fabric.run("ibnetdiscover"), "", {})
    cluster = plan()
    assert discovered.devices == {switch.name for switch in cluster.switches}
    assert len(discovered.cables) == 2 * len(cluster.links)
    assert list(miscablings(PlannedCables(cluster), [discovered])) == []


def test_opensm_accepts_every_setting_and_routes_up_and_down(fabric: Simulated) -> None:
    log = (fabric.folder / "opensm.log").read_text()
    assert "SUBNET UP" in log
    assert "updn tables configured on all switches" in log
    assert "nrecognized" not in log


def test_cables_swapped_in_the_simulation_are_named(programs: None, tmp_path: Path) -> None:
    cluster = plan()
    (netlist,) = [
        text for path, text in render_fabric(OpensmOptions(), cluster.fabrics[0], cluster).items() if path.suffix == ".net"
    ]
    one, two = '[1]\t"gpu-1 mlx5_0"[1]', '[1]\t"gpu-1 mlx5_1"[1]'
    swapped = netlist.replace(one, "[1]\t?").replace(two, one).replace("[1]\t?", two)
    # the adapters' own rows follow
    own = '"gpu-1 mlx5_{}"\n[1]\t"rails-leaf-{}"[1]'
    first, second = own.format(0, 1), own.format(1, 2)
    assert first in swapped
    assert second in swapped
    swapped = swapped.replace(first, own.format(0, 2)).replace(second, own.format(1, 1))
    with Simulated(tmp_path, swapped, "gpu-2 mlx5_0") as simulated:
        discovered = read_cables(simulated.run("ibnetdiscover"), "", {})
    (difference,) = miscablings(PlannedCables(cluster), [discovered])
    assert difference.what == "swapped"
    assert {("gpu-1", "mlx5_0"), ("gpu-1", "mlx5_1")} <= difference.ends
