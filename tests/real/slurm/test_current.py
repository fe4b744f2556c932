"""Tests that the newest Slurm runs in parallel with the installed one, from a read-only tree, and that a missing tree has its reason."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.real import sid

from .cluster import SlurmCluster
from .configuration import Shape
from .leftovers import leftovers, pid_namespace
from .programs import SEARCH_PATH

MOUNTS = "/proc/self/mountinfo"


def _version(slurm: SlurmCluster, *prefix: str) -> tuple[int, int]:
    _, version = slurm.run(*prefix, "sbatch", "--version").stdout.split()
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


@pytest.mark.slow
@pytest.mark.fixture
def test_current_slurm_runs_in_parallel_with_the_installed_version(slurm: SlurmCluster, current_slurm: SlurmCluster) -> None:
    assert _version(current_slurm) == _version(current_slurm, "srun")
    assert _version(current_slurm) >= (26, 5)
    assert _version(slurm) == _version(slurm, "srun")
    assert sorted(current_slurm.run("srun", "-N2", "hostname").stdout.split()) == ["n1", "n2"]
    assert {name: current_slurm.node_state(name) for name in ("n1", "n2")} == {"n1": "idle", "n2": "idle"}


@pytest.mark.slow
@pytest.mark.fixture
def test_clients_jobs_and_nodes_see_the_tree_and_run_the_tests_python(current_slurm: SlurmCluster) -> None:
    laid_over = f"lowerdir={sid.sid_tree()}/usr:/usr"
    assert laid_over in current_slurm.run("cat", MOUNTS).stdout
    assert laid_over in current_slurm.run("srun", "cat", MOUNTS).stdout
    assert laid_over in current_slurm.nsenter("n1", ["cat", MOUNTS]).stdout
    assert laid_over not in Path(MOUNTS).read_text()
    python = current_slurm.run("srun", sys.executable, "-c", "import ssl, sys, torch; print(sys.executable)").stdout
    assert python == f"{sys.executable}\n"


@pytest.mark.slow
@pytest.mark.fixture
def test_current_slurm_leaves_the_tree_unchanged_and_is_cleaned_up(current_slurm: SlurmCluster) -> None:
    tree = sid.sid_tree()
    (plugins,) = tree.glob("usr/lib/*/slurm-wlm")
    with SlurmCluster(Shape(nodes=1), current_slurm.programs) as second:
        root, namespaces = second.root, {pid_namespace(machine.pid) for machine in second.machines.values()}
        for folder in ("usr/bin", "etc/alternatives", plugins.relative_to(tree)):
            refused = second.run("srun", "touch", f"/{folder}/of-a-job", check=False)
            assert "Read-only file system" in refused.stderr
        second.run("sbatch", "--output=/dev/null", "--wrap=sleep 600")
        assert any("slurmctld" in line for line in leftovers(root, namespaces))
    assert len(namespaces) == 3
    assert leftovers(root, namespaces) == []


# --- without a tree ---------------------------------------------------------------------------------------------------


def test_missing_debootstrap_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sid, "SEARCH_PATH", "/nonexistent")
    assert sid.obstacle() == "`debootstrap` not found; run `apt-get install debootstrap`"


@pytest.mark.skipif(shutil.which("debootstrap", path=SEARCH_PATH) is None, reason="run `apt-get install debootstrap`")
def test_an_unreachable_apt_mirror_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://127.0.0.1:1/debian bookworm main\n")
    (tmp_path / "apt.conf").write_text(f'Dir::Etc::SourceList "{tmp_path}/sources.list";\nDir::Etc::SourceParts "/dev/null";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sid.obstacle() == "none of apt's sources has sid: http://127.0.0.1:1/debian/; add a mirror of Debian"
