"""Trees on disk: they hold exactly the rendered files afterwards, and nothing outside of their folders is touched."""

from pathlib import Path, PurePosixPath

import pytest

from headway.infra.tree import Difference, compare_tree, write_file, write_tree

JOB = PurePosixPath("job/cluster")
FILES = {JOB / "plan.json": "{}\n", JOB / "slurm" / "job.sbatch": "#!/bin/bash\n"}


def tree(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_a_new_tree_is_written_whole_and_then_equal(tmp_path: Path) -> None:
    assert [difference.what for difference in write_tree(tmp_path, FILES, [JOB])] == ["missing", "missing"]
    assert tree(tmp_path) == {path.as_posix(): text for path, text in FILES.items()}
    assert compare_tree(tmp_path, FILES, [JOB]) == []
    assert write_tree(tmp_path, FILES, [JOB]) == []


def test_comparing_names_what_is_missing_changed_and_extra_and_writes_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path, FILES, [JOB])
    (tmp_path / JOB / "plan.json").write_text("{ }\n")
    (tmp_path / JOB / "slurm" / "job.sbatch").unlink()
    (tmp_path / JOB / "old.env").write_text("")
    before = tree(tmp_path)
    assert compare_tree(tmp_path, FILES, [JOB]) == [
        Difference(JOB / "old.env", "extra"),
        Difference(JOB / "plan.json", "changed"),
        Difference(JOB / "slurm" / "job.sbatch", "missing"),
    ]
    assert tree(tmp_path) == before


def test_stale_files_go_and_others_stay(tmp_path: Path) -> None:
    write_tree(tmp_path, {**FILES, JOB / "local" / "run.sh": "old\n"}, [JOB])
    other = tmp_path / "job" / "other" / "plan.json"
    write_file(other, "kept\n")
    write_file(tmp_path / "README", "kept\n")
    assert write_tree(tmp_path, FILES, [JOB]) == [Difference(JOB / "local" / "run.sh", "extra")]
    assert not (tmp_path / JOB / "local").exists()
    assert other.read_text() == "kept\n"
    assert (tmp_path / "README").read_text() == "kept\n"


def test_a_link_is_replaced_and_what_it_points_to_is_not(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("{}\n")
    (tmp_path / JOB).mkdir(parents=True)
    (tmp_path / JOB / "plan.json").symlink_to(target)
    assert Difference(JOB / "plan.json", "changed") in write_tree(tmp_path, FILES, [JOB])
    assert not (tmp_path / JOB / "plan.json").is_symlink()
    assert target.read_text() == "{}\n"


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_file(path, "old\n")

    def fail(self: Path, target: Path) -> Path:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_file(path, "new\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old\n"
