"""Provides a user of a Slurm cluster: a folder with a job, and `headway` with Slurm's clients on its PATH, whose calls are recorded."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.runs import Run, only_run

from .cluster import SlurmCluster
from .machine import leashed

STORY = Path(__file__).parents[3] / "examples/two-node-slurm"
CLIENTS = ("sbatch", "squeue", "scontrol", "scancel", "sacct")
PYTHON = str(Path(sys.executable).parent)

# A job gets the PATH of its submission, on nodes that already see the programs of their own Slurm.
CLIENT = """#!/bin/sh
echo "{name} $*" >>{log}
PATH={path} exec {view} {program} "$@"
"""


@dataclass(frozen=True)
class User:
    """`folder` holds job.yaml and cluster.yaml, and `runs` the runs."""

    slurm: SlurmCluster
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def log(self) -> Path:
        return self.folder / "clients.log"

    @property
    def programs(self) -> Path:
        return self.folder / "programs"

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.programs}:{PYTHON}:{os.environ['PATH']}"
        return {**self.slurm.env, "PATH": path, "HEADWAY_CLUSTER": "cluster.yaml", **self.variables}

    def headway(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `headway WORDS` in the folder, which must exit with `code`."""
        done = subprocess.run(
            leashed([sys.executable, "-m", "headway.cli.main", *words]),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, f"headway {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def calls(self, *names: str) -> list[str]:
        """The calls of Slurm's clients so far, with these names or all."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if not names or line.split()[0] in names]

    def jobs_of(self, run: str) -> list[str]:
        """The numbers of all jobs that the run has ever had; the fixture's controller forgets none."""
        return self.slurm.run("squeue", "--noheader", "--states=all", f"--name={run}", "--format=%A").stdout.split()

    def run(self) -> Run:
        return only_run(self.runs)


def user(slurm: SlurmCluster, folder: Path, options: str = "", **variables: str) -> User:
    """A user of the cluster with the example's job; `options` are further ones of the cluster's scheduler, as YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "programs").mkdir()
    found = User(slurm, folder, variables)
    shutil.copy(STORY / "job.yaml", folder / "job.yaml")
    text = (STORY / "cpu-cluster.yaml").read_text()
    assert text.count("    partition: main\n") == 1
    (folder / "cluster.yaml").write_text(text.replace("    partition: main\n", f"    partition: main\n{options}"))
    # The job names another cluster too.
    shutil.copy(STORY / "gpu-cluster.yaml", folder)
    for name in CLIENTS:
        program = slurm.programs.clients / name
        view = " ".join(map(_quoted, slurm.programs.view))
        path = f"{PYTHON}:{slurm.env['PATH']}"
        client = found.programs / name
        client.write_text(CLIENT.format(name=name, log=found.log, path=path, view=view, program=program))
        client.chmod(0o755)
    return found


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
