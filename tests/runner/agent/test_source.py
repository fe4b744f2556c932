"""Tests whether a script's source shows that it may change its environment before it imports torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from headway.runner.agent import source, warm
from headway.runner.agent.source import may_set_environment

SETS = [
    "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch",
    "import os\nos.environ |= {'A': '1'}\nimport torch",
    "import os\nos.environ.update(A='1')\nimport torch",
    "import os\nos.environ.setdefault('A', '1')\nimport torch",
    "import os\nos.environ.pop('A', None)\nimport torch",
    "import os\ndel os.environ['A']\nimport torch",
    "import os\nos.putenv('A', '1')\nimport torch",
    "from os import environ as e\ne['A'] = '1'\nimport torch",
    "from os import environ\nenviron['A'] = '1'\nimport torch",
    "import os\ntune(os.environ)\nimport torch",
    "import os\nenv = os.environ\nenv['A'] = '1'\nimport torch",
    "import os\ndef main():\n    os.environ['A'] = '1'\n    import torch\nmain()",
    "from dotenv import load_dotenv\nload_dotenv()\nimport torch",
    "import beside",
    "from package.inside import x",
    "from package import inside",
    "import os\nfor name in names:\n    os.environ[name] = '1'\nimport torch",
    "x = (",
]
DOES_NOT = [
    "import torch, os\nos.environ['OMP_NUM_THREADS'] = '2'",
    "import os\nrank = os.environ['RANK']\nother = os.environ.get('X', '1')\nprint(dict(os.environ), 'X' in os.environ)\nimport torch",
    "import os\nos.environ['MASTER_ADDR'] = 'localhost'\nos.environ.setdefault('WANDB_MODE', 'offline')\nimport torch",
    "import os, subprocess\nsubprocess.run(['true'], env={**os.environ, 'A': '1'})\nimport torch",
    "import os\nfor name, value in os.environ.items(): print(name, value)",
    "import accelerate, os\nos.environ['A'] = '1'",
    "import imports_torch, os\nos.environ['A'] = '1'",
    "import json\nprint('no torch at all')",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("import os\nos.environ['A'] = '1'\n")
    (tmp_path / "imports_torch.py").write_text("from torch import nn\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/inside.py").write_text("from . import deeper\n")
    (tmp_path / "package/deeper.py").write_text("import os\nos.environ['A'] = '1'\n")
    return tmp_path


@pytest.mark.parametrize("text", SETS)
def test_code_that_may_set_a_variable_is_detected(text: str, folder: Path) -> None:
    (folder / "train.py").write_text(text)
    assert may_set_environment([str(folder / "train.py"), "--lr"])


@pytest.mark.parametrize("text", DOES_NOT)
def test_code_that_only_reads_or_runs_after_torch_keeps_the_warm_start(text: str, folder: Path) -> None:
    (folder / "train.py").write_text(text)
    assert not may_set_environment([str(folder / "train.py")])


def test_a_module_is_examined_with_its_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert may_set_environment(["-m", "package.inside"])
    assert not may_set_environment(["-m", "imports_torch"])
    (folder / "package/__init__.py").write_text("import torch\n")
    assert not may_set_environment(["-m", "package.inside"])


def test_unreadable_source_may_do_anything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert may_set_environment([str(folder / "absent.py")])
    assert may_set_environment(["-m", "no.such.module"])
    assert may_set_environment(["-m"])
    (folder / "train.py").write_text("import beside_not\n" * 50)
    monkeypatch.setattr(source, "MOST_BYTES", 100)
    assert may_set_environment([str(folder / "train.py")])


def test_first_workers_of_a_script_that_sets_variables_import_nothing(folder: Path) -> None:
    (folder / "sets.py").write_text(SETS[0])
    (folder / "does_not.py").write_text(DOES_NOT[0])
    assert [warm.first_imports([str(folder / name)]) for name in ("sets.py", "does_not.py")] == [(), warm.ALWAYS]
    assert warm.first_imports([]) == warm.ALWAYS, "the builtin trainer's"


def test_boot_imports_neither_torch_nor_numpy_before_the_script() -> None:
    program = (
        "import sys, headway.runner.boot; headway.runner.boot.prepare(); sys.exit(bool({'torch', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
