"""Tests the record of a script's environment at its first import of a library, per local rank, which later warm starts read."""

import os
import subprocess
import sys
from pathlib import Path

from headway.runner.imports import MODULES, recorded, under

SCRIPT = """
import os
from headway.runner.boot.seen import record_changes
os.environ["GONE"] = "1"
record_changes(1)
os.environ["A"], os.environ["MASTER_PORT"] = "1", "2"
del os.environ["GONE"]
import einops
os.environ["A"] = "2"
import yaml, tqdm
"""


def test_each_librarys_first_import_counts(tmp_path: Path) -> None:
    for name in ("einops", "yaml", "tqdm"):
        (tmp_path / f"{name}.py").touch()
    modules = tmp_path / "attempts/0/modules-3.json"
    modules.parent.mkdir(parents=True)
    environment = {**os.environ, MODULES: str(modules), "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment, cwd=tmp_path, check=True)
    noted = {"A": "1", "GONE": None}
    expected = {"einops": noted, "yaml": {**noted, "A": "2"}, "tqdm": {**noted, "A": "2"}}
    assert recorded(modules, 1) == expected
    assert recorded(modules.with_name("modules-0.json"), 1) == expected, "a spare's node has none of its own"
    assert recorded(tmp_path / "attempts/1/modules-3.json", 1) == expected, "nor has a further attempt"
    assert recorded(modules, 0) == {}


def test_the_environment_is_restored_afterwards() -> None:
    before = dict(os.environ)
    with under({"HEADWAY_TEST_NEW": "1", "PATH": None}):
        assert (os.environ["HEADWAY_TEST_NEW"], "PATH" in os.environ) == ("1", False)
    assert dict(os.environ) == before
