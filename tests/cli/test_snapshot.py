"""`headway snapshot` archives exactly the files of a commit."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.infra.snapshot import SnapshotError, make_snapshot

CPU_STORY = Path(__file__).parents[2] / "examples/two-node-slurm"
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git (Debian: apt install git)")


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def committed(folder: Path, **files: str) -> str:
    """Commit all that is in the folder and these files; return the commit."""
    folder.mkdir(exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a change")
    return git(folder, "rev-parse", "HEAD")


def contents(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as opened:
        return {each.name: file.read().decode() for each in opened if (file := opened.extractfile(each)) is not None}


def test_archive_has_the_files_of_the_commit_despite_later_edits(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    first = committed(
        repository, train="1", **{".gitattributes": "train export-ignore\nlog export-subst\n", "log": "$Format:%H$"}
    )
    second = committed(repository, **{"sub/x": "x"})
    one = make_snapshot(repository / "sub", "HEAD", tmp_path / "code")
    assert one == f"{tmp_path}/code/{second}.tar#sub"
    # Its name makes it the same for every later run; a pinned commit does not require a clean folder.
    before = (tmp_path / "code" / f"{second}.tar").read_bytes()
    (repository / "train").write_text("edited")
    assert make_snapshot(repository / "sub", second, tmp_path / "code") == one
    assert make_snapshot(repository, first, tmp_path / "code") == f"{tmp_path}/code/{first}.tar"
    make_snapshot(repository, second, tmp_path / "again")
    assert (tmp_path / "again" / f"{second}.tar").read_bytes() == before == (tmp_path / "code" / f"{second}.tar").read_bytes()
    assert contents(tmp_path / "code" / f"{second}.tar")["train"] == "1"
    assert contents(tmp_path / "code" / f"{first}.tar")["log"] == "$Format:%H$"
    assert sorted(path.name for path in (tmp_path / "code").iterdir()) == sorted([f"{first}.tar", f"{second}.tar"])
    assert git(repository, "status", "--porcelain") == "M train", "the index of the repository is left alone"


def test_archive_includes_the_files_of_submodules(tmp_path: Path) -> None:
    inner, repository = tmp_path / "inner", tmp_path / "repository"
    committed(inner, module="inner")
    committed(repository, train="1")
    git(repository, "submodule", "--quiet", "add", str(inner), "library")
    commit = committed(repository)
    make_snapshot(repository, "HEAD", tmp_path / "code")
    assert contents(tmp_path / "code" / f"{commit}.tar")["library/module"] == "inner"
    # The submodule has moved.
    committed(repository / "library", module="moved")
    with pytest.raises(SnapshotError, match="differs from its commit: `library`; commit the changes"):
        make_snapshot(repository, "HEAD", tmp_path / "code")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    with pytest.raises(SnapshotError, match="git submodule update --init --recursive"):
        make_snapshot(clone, "HEAD", tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("edit", "shown"),
    [
        ({"train": "2"}, "`train`"),
        ({"new": ""}, "`new`"),
        ({"new": "", "train": "2", "other": "", "third": ""}, "`train`, `new`, `other` and 1 more"),
    ],
)
def test_uncommitted_files_are_rejected_with_a_hint(edit: dict[str, str], shown: str, tmp_path: Path) -> None:
    committed(tmp_path / "repository", train="1", **{".gitignore": "ignored\n"})
    (tmp_path / "repository/ignored").touch()
    make_snapshot(tmp_path / "repository", "HEAD", tmp_path / "code")
    for name, text in edit.items():
        (tmp_path / "repository" / name).write_text(text)
    with pytest.raises(SnapshotError) as error:
        make_snapshot(tmp_path / "repository", "HEAD", tmp_path / "code")
    assert str(error.value) == (
        f"{tmp_path}/repository differs from its commit: {shown}; commit the changes, put them aside (git stash -u), "
        "or list what is no code in .gitignore"
    )


def test_missing_commit_is_rejected(tmp_path: Path) -> None:
    committed(tmp_path / "repository", train="1")
    with pytest.raises(SnapshotError, match=f"commit {'a' * 40} is not in .*; fetch it: git fetch origin {'a' * 40}"):
        make_snapshot(tmp_path / "repository", "a" * 40, tmp_path / "code")
    with pytest.raises(SnapshotError, match="is in no git repository"):
        make_snapshot(tmp_path, "HEAD", tmp_path / "code")


def test_snapshot_is_written_next_to_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(CPU_STORY, repository)
    commit = committed(repository, **{".gitignore": "runs\n"})
    monkeypatch.chdir(repository)
    assert main(["snapshot", "job.yaml"]) == 0
    assert capsys.readouterr().out == f"{repository}/runs/code/{commit}.tar\n"
    monkeypatch.setenv("HEADWAY_RUNS", str(tmp_path / "elsewhere"))
    assert main(["snapshot", "job.yaml"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/elsewhere/code/{commit}.tar\n"
    (repository / "new").touch()
    assert main(["snapshot", "job.yaml"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {repository} differs from its commit: `new`; ")
