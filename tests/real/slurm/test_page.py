"""Tests the first section of docs/slurm.md, as a reader follows it, on a real Slurm."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.faults.runs import only_run

from .clients import user
from .cluster import SlurmCluster
from .machine import leashed

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[3] / "docs/slurm.md").read_text()
SECTION = re.compile(r"^## Ten minutes.*?\n(.*?)^## ", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(yaml|console)\n(?:# (added to )?(\S+)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_command_of_the_first_ten_minutes_works(slurm: SlurmCluster, tmp_path: Path) -> None:
    of = user(slurm, tmp_path)
    for path in tmp_path.glob("*.yaml"):
        path.unlink()
    section = SECTION.search(PAGE)
    assert section is not None
    script = ["set -eu", "unset HEADWAY_CLUSTER"]
    commands = 0
    for number, (language, added, file, body) in enumerate(BLOCK.findall(section[1])):
        if language == "yaml":
            text = tmp_path / f"{number}.txt"
            text.write_text(body)
            script.append(f"cat {text} {'>>' if added else '>'}{file}")
        else:
            lines = [line.removeprefix("$ ") for line in body.splitlines()]
            commands += len(lines)
            script += [line for each in lines for line in (f"echo '$ {each}'", each)]
    done = subprocess.run(
        leashed(["bash", "-c", "\n".join(script)]),
        cwd=tmp_path,
        env=of.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert commands >= 10
    run = only_run(tmp_path / "runs")
    assert (run.verdict(0)["verdict"], run.verdict(2)["verdict"]) == ("preempted", "completed")
    assert run.steps()[-1] == 110
    assert sorted(set(run.steps())) == list(range(1, 111))
    assert re.search(r"^first-\w+-1 +completed +\d+ +2 +110/110", done.stdout, re.MULTILINE), done.stdout
