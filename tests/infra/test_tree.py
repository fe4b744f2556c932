"""Trees on disk contain exactly the rendered files afterwards, and nothing outside of their folders changes."""

from pathlib import Path, PurePosixPath

import pytest

from headway.infra.tree import FileDifference, blocked, compare_tree, remove_files, write_file, write_tree

JOB = PurePosixPath("job/cluster")
FILES = {JOB / "plan.json": "{}\n", JOB / "slurm" / "job.sbatch": "#!/bin/bash\n"}


def tree(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_new_tree_is_written_completely(tmp_path: Path) -> None:
    assert [difference.what for difference in write_tree(tmp_path, FILES, [JOB])] == ["missing", "missing"]
    assert tree(tmp_path) == {path.as_posix(): text for path, text in FILES.items()}
    assert compare_tree(tmp_path, FILES, [JOB]) == []
    assert write_tree(tmp_path, FILES, [JOB]) == []


def test_comparison_lists_missing_changed_extra_files_and_writes_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path, FILES, [JOB])
    (tmp_path / JOB / "plan.json").write_text("{ }\n")
    (tmp_path / JOB / "slurm" / "job.sbatch").unlink()
    (tmp_path / JOB / "old.env").write_text("")
    before = tree(tmp_path)
    assert compare_tree(tmp_path, FILES, [JOB]) == [
        FileDifference(JOB / "old.env", "extra"),
        FileDifference(JOB / "plan.json", "changed"),
        FileDifference(JOB / "slurm" / "job.sbatch", "missing"),
    ]
    assert tree(tmp_path) == before


def test_stale_files_are_removed_and_others_kept(tmp_path: Path) -> None:
    write_tree(tmp_path, {**FILES, JOB / "local" / "run.sh": "old\n"}, [JOB])
    other = tmp_path / "job" / "other" / "plan.json"
    write_file(other, "kept\n")
    write_file(tmp_path / "README", "kept\n")
    assert write_tree(tmp_path, FILES, [JOB]) == [FileDifference(JOB / "local" / "run.sh", "extra")]
    assert not (tmp_path / JOB / "local").exists()
    assert other.read_text() == "kept\n"
    assert (tmp_path / "README").read_text() == "kept\n"


def test_link_is_replaced_and_its_target_is_unchanged(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("{}\n")
    (tmp_path / JOB).mkdir(parents=True)
    (tmp_path / JOB / "plan.json").symlink_to(target)
    assert FileDifference(JOB / "plan.json", "changed") in write_tree(tmp_path, FILES, [JOB])
    assert not (tmp_path / JOB / "plan.json").is_symlink()
    assert target.read_text() == "{}\n"


def test_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_file(path, "old\n")

    def fail(self: Path, target: Path) -> Path:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_file(path, "new\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old\n"


@pytest.mark.parametrize("file", [JOB / "slurm", JOB / "plan.json" / "deep" / "file"])
def test_file_at_a_folders_path_and_folder_at_a_files_path_are_replaced(file: PurePosixPath, tmp_path: Path) -> None:
    write_file(tmp_path / file, "old\n")
    assert FileDifference(file, "extra") in write_tree(tmp_path, FILES, [JOB])
    assert tree(tmp_path) == {path.as_posix(): text for path, text in FILES.items()}


def test_linked_folder_in_a_tree_is_replaced_and_its_target_is_kept(tmp_path: Path) -> None:
    write_file(tmp_path / "elsewhere" / "job.sbatch", "own\n")
    (tmp_path / JOB).mkdir(parents=True)
    (tmp_path / JOB / "slurm").symlink_to(tmp_path / "elsewhere")
    assert FileDifference(JOB / "slurm", "extra") in write_tree(tmp_path, FILES, [JOB])
    assert (tmp_path / "elsewhere" / "job.sbatch").read_text() == "own\n"
    assert compare_tree(tmp_path, FILES, [JOB]) == []


def test_folders_left_empty_by_removed_files_are_removed(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/b/d", "a/kept", "f/g"):
        write_file(tmp_path / "root" / name, "")
    remove_files(tmp_path / "root", [PurePosixPath(name) for name in ("a/b/c", "a/b/d", "f/g")])
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["root", "root/a", "root/a/kept"]


@pytest.mark.parametrize("obstacle", ["above", "above/root", "above/root/job", "above/root/job/cluster"])
def test_file_on_the_path_of_a_tree_blocks_it(obstacle: str, tmp_path: Path) -> None:
    assert blocked(tmp_path / "above" / "root", JOB) is None
    write_file(tmp_path / obstacle, "")
    assert blocked(tmp_path / "above" / "root", JOB) == tmp_path / obstacle


@pytest.mark.parametrize("target", [".", "nowhere"])
@pytest.mark.parametrize("obstacle", ["job", "job/cluster"])
def test_a_link_below_the_root_blocks_a_tree(obstacle: str, target: str, tmp_path: Path) -> None:
    (tmp_path / obstacle).parent.mkdir(exist_ok=True)
    (tmp_path / obstacle).symlink_to(target)
    assert blocked(tmp_path, JOB) == tmp_path / obstacle


def test_a_root_may_be_a_link_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "root").symlink_to("folder")
    assert blocked(tmp_path / "root", JOB) is None
    (tmp_path / "folder").rmdir()
    assert blocked(tmp_path / "root", JOB) == tmp_path / "root"
