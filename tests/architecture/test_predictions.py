"""One changed line of the cluster file changes exactly the files that the table of docs/fabric.md lists."""

import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest

from headway.cli.main import main

ROOT = Path(__file__).parents[2]
STORY = ROOT / "examples" / "two-node-roce"
CLUSTER = "slurm-cluster.yaml"
ROW = re.compile(r"^\| `([^`]+)` to `([^`]+)`[^|]*\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs" / "fabric.md").read_text())


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def patterns(cells: tuple[str, str]) -> list[str]:
    """Return the patterns for the cluster's tree and the job's, relative to the folder of rendered files."""
    cluster, job = (re.findall(r"`([^`]+)`", cell) for cell in cells)
    return [f"two-roce-nodes/{each}" for each in cluster] + [f"small-llama/two-roce-nodes/{each}" for each in job]


def test_table_includes_the_lossless_dscp() -> None:
    assert ("dscp: 26", "dscp: 34") in {row[:2] for row in ROWS}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_one_changed_line_changes_exactly_the_listed_files(row: tuple[str, str, str, str], tmp_path: Path) -> None:
    before, after, *cells = row
    story = tmp_path / "story"
    shutil.copytree(STORY, story)
    text = (story / CLUSTER).read_text()
    assert text.count(before) == 1
    assert main(["render", str(story)]) == 0
    old = files(story / "rendered")
    (story / CLUSTER).write_text(text.replace(before, after))
    assert main(["render", str(story)]) == 0
    new = files(story / "rendered")
    changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    predicted = patterns((cells[0], cells[1]))
    assert {path for path in changed if not any(fnmatch(path, pattern) for pattern in predicted)} == set()
    assert [pattern for pattern in predicted if not any(fnmatch(path, pattern) for path in changed)] == []
    unchanged = {path for path in old if any(fnmatch(path, pattern) for pattern in predicted)} - changed
    assert unchanged == set()
