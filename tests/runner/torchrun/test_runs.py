"""Tests where runs are stored, and where they are searched for."""

import os
import tempfile
from pathlib import Path

import pytest

from headway.runner.torchrun.launcher import prepare
from headway.runs import runs_folder, searched


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory for runs without a better place: this user's folder in it, not created."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp" / f"headway-{os.getuid()}"


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "home/.local/state/headway/runs"),
        ({"HEADWAY_RUNS": ""}, "home/.local/state/headway/runs"),
        ({"XDG_STATE_HOME": "{}/state"}, "state/headway/runs"),
        ({"XDG_STATE_HOME": "state"}, "home/.local/state/headway/runs"),
    ],
)
def test_runs_are_stored_in_the_users_state_folder(environment: dict[str, str], expected: str, tmp_path: Path) -> None:
    known = {"HOME": str(tmp_path / "home"), **{name: value.format(tmp_path) for name, value in environment.items()}}
    assert runs_folder(known) == (tmp_path / expected, None)
    assert (tmp_path / expected).is_dir()
    assert searched(known) == (Path("runs"), tmp_path / expected)


@pytest.mark.usefixtures("temporary")
def test_headway_runs_takes_precedence_and_creates_no_other_folder(tmp_path: Path) -> None:
    known = {"HOME": str(tmp_path / "home"), "HEADWAY_RUNS": "mine"}
    assert runs_folder(known) == (Path("mine"), None)
    assert searched(known) == (Path("mine"),)
    assert not (tmp_path / "home").exists()


def test_without_a_writable_home_a_private_folder_is_used_and_reported(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("is no folder")
    known = {"HOME": str(tmp_path / "home")}
    folder, told = runs_folder(known)
    assert folder == temporary / "runs"
    assert folder.is_dir()
    assert told == (
        f"`{tmp_path}/home/.local/state/headway/runs` cannot be written, so the run lies in `{folder}`; "
        "set HEADWAY_RUNS to keep it elsewhere"
    )
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert runs_folder(known) == (folder, told)
    assert searched(known)[-1] == folder


@pytest.mark.parametrize("how", ["open to others", "a link"])
def test_a_temporary_folder_shared_with_others_is_neither_written_nor_read(how: str, temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("is no folder")
    known = {"HOME": str(tmp_path / "home")}
    if how == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        temporary.symlink_to(tmp_path / "theirs")
    else:
        temporary.mkdir()
        temporary.chmod(0o777)
    with pytest.raises(PermissionError, match="is not this user's alone; set HEADWAY_RUNS"):
        runs_folder(known)
    assert temporary / "runs" not in searched(known)
    assert not (temporary / "runs").exists()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that does nothing, in the working directory; runs are stored next to it."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "HEADWAY_", "PET_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "work" / "train.py"


def test_torchrun_leaves_the_working_folder_unchanged(script: Path, tmp_path: Path) -> None:
    place, _ = prepare([script.name])
    assert place.directory.root == tmp_path / "state" / "headway" / "runs" / "train-1"
    assert [path.name for path in script.parent.iterdir()] == ["train.py"]


def test_a_script_gets_neither_the_secret_nor_the_name_of_its_run(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_SECRET", "never to be seen")
    monkeypatch.setenv("HEADWAY_RUN", "mine")
    place, environment = prepare([script.name])
    assert place.directory.root == tmp_path / "state" / "headway" / "runs" / "mine"
    assert not {"HEADWAY_SECRET", "HEADWAY_RUN"} & {*os.environ, *environment}
