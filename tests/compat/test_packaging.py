"""Tests what an installation of headway brings along: never a torch, and nothing that replaces an image's numpy."""

import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
VENDORS = ("2.6.0+rocm6.2", "2.8.0a0+nv25.05", "2.13.0+cpu")


@pytest.fixture(scope="module")
def requirements(tmp_path_factory: pytest.TempPathFactory) -> list[Requirement]:
    """The requirements in the wheel's METADATA."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("headway-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(name).decode())
    return [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]


def installed(requirements: list[Requirement], extra: str = "") -> dict[str, Requirement]:
    return {each.name: each for each in requirements if each.marker is None or each.marker.evaluate({"extra": extra})}


@pytest.mark.slow
def test_runner_imports_only_headway_and_torch(requirements: list[Requirement]) -> None:
    alone = installed(requirements)
    assert {"msgspec", "numpy", "xxhash"} <= alone.keys()
    assert not [name for name in alone if name.startswith(("torch", "nvidia", "triton"))]
    assert alone["numpy"].specifier.contains("1.26.4")


@pytest.mark.parametrize("version", VENDORS)
def test_torch_extra_accepts_any_installed_torch(version: str, requirements: list[Requirement]) -> None:
    assert installed(requirements, "torch")["torch"].specifier.contains(version, prereleases=True)


@pytest.mark.parametrize("extra", ["kubernetes", "infra", "remote", "huggingface", "metrics", "tensorboard"])
def test_no_other_user_extra_depends_on_torch(extra: str, requirements: list[Requirement]) -> None:
    assert "torch" not in installed(requirements, extra)
