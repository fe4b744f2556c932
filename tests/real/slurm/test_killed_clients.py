"""Tests a client of `headway submit` that is killed at any point: repeated, it makes one job and never two."""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.runs import wait_until

from .clients import User, user
from .cluster import SlurmCluster
from .machine import leashed

pytestmark = pytest.mark.slow

# Every program that a submission starts, in the client or in the shell that acts for it.
PROGRAMS = ("cat", "chmod", "flock", "ln", "mkdir", "mktemp", "mv", "rm", "sbatch", "squeue")
# Each of them counts its calls. At call number `kill`, before or after the program has run, it kills the process that `whom` names.
COUNTING = """#!/bin/bash
printf . >>{folder}/calls
calls=$(stat --format=%s {folder}/calls)
[[ -f {folder}/kill ]] && read -r number when whom <{folder}/kill
killing() {{
  if [[ ${{number:-}} == "$calls" && $when == "$1" ]]; then
    kill -KILL "$(<{folder}/client)"
    # Both the client and the shell of a submission lead a session and a process group of their own.
    if [[ $whom == all ]]; then rm {folder}/kill; kill -KILL -- "-$(ps -o sid= -p $$ | tr -d ' ')"; fi
  fi
}}
killing before
{program} "$@"
code=$?
killing after
exit $code
"""
POINTS = 20
SEED = 20_261_125


def counting(of: User) -> Path:
    """Put counting programs at the front of the user's PATH; return the folder of their files."""
    folder = of.folder / "points"
    (folder / "programs").mkdir(parents=True)
    for name in PROGRAMS:
        own = of.programs / name
        program = own if own.exists() else Path(shutil.which(name) or "")
        path = folder / "programs" / name
        path.write_text(COUNTING.format(folder=folder, program=program))
        path.chmod(0o755)
    return folder


def submit(of: User, points: Path, kill: str | None = None) -> int:
    """Run `headway submit`, killed at this point; return its exit code."""
    (points / "calls").write_text("")
    (points / "kill").unlink(missing_ok=True)
    if kill is not None:
        (points / "kill").write_text(f"{kill}\n")
    environment = of.environment
    environment["PATH"] = f"{points / 'programs'}:{environment['PATH']}"
    command = f'echo $$ >{points}/client; exec "$0" -m headway.cli.main submit job.yaml --cluster cluster.yaml'
    done = subprocess.run(
        leashed(["sh", "-c", command, sys.executable]),
        cwd=of.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
        # The kill of a whole process group must not reach the tests.
        start_new_session=True,
    )
    (points / "printed").write_bytes(done.stdout)
    return done.returncode


def jobs_in(of: User) -> list[str]:
    """The jobs whose submissions are in the user's folder: of all runs there."""
    listed = of.slurm.run("squeue", "--noheader", "--states=all", "--format=%A %k").stdout.splitlines()
    return [line.split()[0] for line in listed if line.partition(" ")[2].startswith(str(of.runs))]


def calls(points: Path) -> int:
    return (points / "calls").stat().st_size


def killed_and_repeated(slurm: SlurmCluster, folder: Path, kill: str) -> None:
    of = user(slurm, folder)
    # Held in the queue, so that it can be counted without training.
    text = (of.folder / "cluster.yaml").read_text()
    (of.folder / "cluster.yaml").write_text(text.replace("partition: main\n", "partition: main\n    directives: [--hold]\n"))
    points = counting(of)
    assert submit(of, points, kill) == -signal.SIGKILL, (points / "printed").read_text()
    assert submit(of, points) == 0, (points / "printed").read_text()
    assert submit(of, points) == 0, (points / "printed").read_text()
    # Any surviving part of the killed client has finished its work by now.
    wait_until(lambda: not survivors(of), "the end of the killed client's shell")
    jobs = jobs_in(of)
    (run,) = (path.name for path in of.runs.iterdir())
    slurm.run("scancel", *jobs)
    assert len(jobs) == 1, (kill, jobs, sorted(str(path) for path in of.runs.rglob("outcome")))
    assert run in (points / "printed").read_text()


def survivors(of: User) -> list[int]:
    """Processes whose command line names the user's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(of.runs).encode() in words and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def points_of(slurm: SlurmCluster, folder: Path) -> int:
    """The number of programs that an undisturbed submission starts."""
    of = user(slurm, folder)
    points = counting(of)
    assert submit(of, points) == 0, (points / "printed").read_text()
    slurm.run("scancel", *jobs_in(of))
    return calls(points)


# The first call is the test; six create the submission's folder, the eighth is `started`, and the ninth submits.
@pytest.mark.parametrize("kill", ["8 before client", "9 after all"])
def test_a_client_killed_around_sbatch_submits_one_job(slurm: SlurmCluster, tmp_path: Path, kill: str) -> None:
    killed_and_repeated(slurm, tmp_path / "user", kill)


@pytest.mark.variant
@pytest.mark.parametrize("whom", ["client", "all"])
def test_a_client_killed_at_any_of_twenty_points_submits_one_job(slurm: SlurmCluster, tmp_path: Path, whom: str) -> None:
    total = points_of(slurm, tmp_path / "whole")
    every = [f"{number} {when} {whom}" for number in range(1, total + 1) for when in ("before", "after")]
    assert len(every) >= POINTS
    for index, kill in enumerate(random.Random(SEED).sample(every, POINTS)):
        killed_and_repeated(slurm, tmp_path / str(index), kill)
