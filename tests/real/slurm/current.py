"""Provides the Slurm of Debian sid, on a machine where another one or none is installed."""

import os
from pathlib import Path

from tests.real import sid
from tests.real.sid import sid_tree

from . import programs
from .programs import SlurmPrograms, installed_programs

# `HEADWAY_SLURM=current pytest tests/real/slurm` runs all tests of this folder under the Slurm of sid, not only those of both.
CHOICE = "HEADWAY_SLURM"

# The tree's programs and libraries hide the machine's of the same names; programs that only the machine has, such as its Python, run on
# the tree's newer C library. Plugins do not mix: a Slurm tries to load all that are in its folder.
LAID_OVER = """
set -e
for folder in usr etc/alternatives; do
  mount -t overlay -o "ro,lowerdir=$0/$folder:/$folder" overlay "/$folder"
done
for plugins in "$0"/usr/lib/*/slurm-wlm; do
  mount -o bind,ro "$plugins" "${plugins#"$0"}"
done
exec "$@"
"""


def current_programs() -> SlurmPrograms:
    """Each of its processes, and no other, sees the tree laid over this machine's /usr. Raises the errors of `sid_tree`."""
    daemons = Path("/usr/sbin")
    return SlurmPrograms(
        slurmctld=daemons / "slurmctld",
        slurmd=daemons / "slurmd",
        munged=daemons / "munged",
        clients=Path("/usr/bin"),
        view=("unshare", "--mount", "bash", "-c", LAID_OVER, str(sid_tree())),
        # slurmd exits at its start if no cgroup file system is mounted, unless this is set; 22.05 does not have the setting
        cgroup_conf="CgroupPlugin=disabled\n",
    )


def chosen_programs() -> SlurmPrograms:
    """The Slurm of a cluster that names none: the installed one, unless the environment chooses."""
    return current_programs() if _is_current() else installed_programs()


def obstacle() -> str | None:
    """Why no cluster of the chosen Slurm can be started here, with a remedy; None if one can."""
    return sid.obstacle() if _is_current() else programs.obstacle()


def _is_current() -> bool:
    return os.environ.get(CHOICE) == "current"
