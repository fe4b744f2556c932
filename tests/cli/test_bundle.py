"""`headway bundle` writes the same bytes everywhere, completely or not at all; its launcher sets a Python's path."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.infra import bundle as bundles
from headway.infra.bundle import BundleError, make_bundle, pinned, verify_bundle

OWN = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def wheel(folder: Path, name: str, tags: str, text: str) -> None:
    with zipfile.ZipFile(folder / f"{name}-1.0-{tags}.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", text)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with small wheels instead of the pinned ones, for this machine and for an unused one."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    machine = os.uname().machine
    for name in ("msgspec", "xxhash"):
        wheel(folder, name, f"{OWN}-{OWN}-manylinux_2_17_{machine}.manylinux2014_{machine}", "OF = 'bundle'")
        wheel(folder, name, f"cp310-cp310-manylinux_2_17_{'x86_64' if machine == 'aarch64' else 'aarch64'}", "OF = 'other'")
    wheel(folder, "prometheus_client", "py3-none-any", "")
    lock = tmp_path / "wheels.sha256"
    lock.write_text(
        "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir()))
    )
    monkeypatch.setattr(bundles, "LOCK", lock)
    return folder


def tree(folder: Path) -> dict[str, tuple[bytes, int, float]]:
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_bundles_of_one_version_have_equal_names_bytes_modes_and_times(wheels: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        first, is_new = make_bundle(tmp_path / "one", wheels, print)
    finally:
        os.umask(before)
    second, _ = make_bundle(tmp_path / "two", wheels, print)
    assert is_new
    assert first.name == second.name
    assert tree(first) == tree(second)
    assert {path.name for path in (first / "lib").iterdir()} == {wheel.target for wheel in pinned()}
    assert (first / "headway/runner/start.py").exists()
    assert not list((first / "headway").rglob("*.pyc"))
    assert make_bundle(tmp_path / "one", wheels, print) == (first, False)
    assert [path.name for path in (tmp_path / "one").iterdir()] == [first.name], "no scratch folder is left"


def test_bundle_for_one_python_has_only_its_wheels(wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = f"{OWN}-{os.uname().machine}"
    assert main(["bundle", "-o", str(tmp_path), "--wheels", str(wheels), "--only", own]) == 0
    made = Path(capsys.readouterr().out.strip())
    assert {path.name for path in (made / "lib").iterdir()} == {"any", own}
    assert main(["bundle", "--only", "cp27-sparc"]) == 2
    assert "`--only cp27-sparc` is none of " in capsys.readouterr().err


def test_changed_bundle_is_detected(wheels: Path, tmp_path: Path) -> None:
    made, _ = make_bundle(tmp_path / "bundles", wheels, print)
    (made / "headway/runner/__pycache__").mkdir()
    (made / "headway/runner/__pycache__/start.pyc").touch()
    verify_bundle(made)
    (made / "headway/runner/start.py").write_text("edited")
    (made / "headway/extra.py").touch()
    with pytest.raises(BundleError, match=r"has changed: headway/extra\.py, headway/runner/start\.py; delete it"):
        make_bundle(tmp_path / "bundles", wheels, print)


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_bundle_is_not_made_from_a_wheel_that_is_not_pinned(
    fault: str, wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(wheels.glob("xxhash*"))
    path.write_bytes(b"PK") if fault == "damaged" else path.unlink()
    assert main(["bundle", "-o", str(tmp_path / "bundles"), "--wheels", str(wheels)]) == 1
    error = capsys.readouterr().err
    assert path.name in error
    assert ("has the SHA-256" if fault == "damaged" else "has no ") in error
    assert list((tmp_path / "bundles").iterdir()) == []


def test_pinned_wheels_match_the_requirements_of_headway_and_ci() -> None:
    constraints = (Path(__file__).parents[2] / ".ci/constraints.txt").read_text().splitlines()
    targets = {f"cp3{minor}-{machine}" for minor in range(10, 15) for machine in ("x86_64", "aarch64")}
    assert {wheel.target for wheel in pinned()} == targets | {"any"}
    for target in targets:
        assert {wheel.file.split("-")[0] for wheel in pinned() if wheel.target == target} == {"msgspec", "xxhash"}
    assert {wheel.requirement.partition(" ")[0] for wheel in pinned()} <= set(constraints)


def started(made: Path, code: str, *, python_path: Path | None = None, folder: Path | None = None) -> str:
    """Return the output of `code` as a module that the bundle's launcher runs, in a Python without site-packages."""
    modules = made.parent / "modules"
    modules.mkdir(exist_ok=True)
    (modules / "shown.py").write_text(code)
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, [str(python_path or ""), str(modules)]))}
    command = [sys.executable, "-S", f"{made}/headway/runner/start.py", "shown", "a"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    return done.stdout + done.stderr


def test_packages_of_the_bundle_come_last_but_its_headway_first(wheels: Path, tmp_path: Path) -> None:
    made, _ = make_bundle(tmp_path / "bundles", wheels, print)
    show = "import headway.runs, msgspec, sys; print(headway.__file__, msgspec.OF, sys.argv[1:], len(sys.path))"
    assert started(made, show).startswith(f"{made}/headway/__init__.py bundle ['a'] ")
    # The msgspec of an image is used, but not its other version of headway.
    image = tmp_path / "image"
    for name, text in {"msgspec": "OF = 'image'", "headway": "raise ImportError"}.items():
        (image / name).mkdir(parents=True)
        (image / name / "__init__.py").write_text(text)
    assert started(made, show, python_path=image).startswith(f"{made}/headway/__init__.py image ['a'] ")
    # No module of the working folder is found.
    assert "ModuleNotFoundError" in started(made, "import only_here", folder=tmp_path)


def test_python_without_wheels_in_the_bundle_is_rejected_by_name(wheels: Path, tmp_path: Path) -> None:
    made, _ = make_bundle(tmp_path / "bundles", wheels, print, ["cp310-riscv64"])
    expected = f"headway: {made} has nothing for this Python, {OWN}-{os.uname().machine} ({sys.executable}); it has any\n"
    assert started(made, "print('started')") == expected


def test_bundle_json_has_the_hash_of_every_file(wheels: Path, tmp_path: Path) -> None:
    made, _ = make_bundle(tmp_path, wheels, print)
    record = json.loads((made / "bundle.json").read_text())
    assert record["schema"] == "headway.bundle/1"
    hashes = {path: hashlib.sha256(data).hexdigest() for path, (data, _, _) in tree(made).items()}
    del hashes["bundle.json"]
    assert record["files"] == hashes
