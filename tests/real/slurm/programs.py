"""Finds a Slurm's programs on this machine, or the reason why they cannot be used."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

# Debian keeps daemons in /usr/sbin, which is not on an ordinary user's PATH
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
DEBIAN_PACKAGES = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm", "munged": "munge"}


@dataclass(frozen=True)
class SlurmPrograms:
    """The daemons of one Slurm and the folder of its clients; another version is another record.

    `view`: the prefix of each process's command line, if that prepares the file system in which the paths are found.
    """

    slurmctld: Path
    slurmd: Path
    munged: Path
    clients: Path
    view: tuple[str, ...] = ()
    cgroup_conf: str = ""


def installed_programs() -> SlurmPrograms:
    """Debian's own Slurm; raises FileNotFoundError naming the missing programs."""
    found = {name: shutil.which(name, path=SEARCH_PATH) for name in DEBIAN_PACKAGES}
    paths = {name: Path(path) for name, path in found.items() if path is not None}
    absent = sorted(set(found) - set(paths))
    if absent:
        packages = " ".join(sorted({DEBIAN_PACKAGES[name] for name in absent}))
        raise FileNotFoundError(f"`{'`, `'.join(absent)}` not found; run `apt-get install {packages}`")
    return SlurmPrograms(paths["slurmctld"], paths["slurmd"], paths["munged"], paths["sbatch"].parent)


def obstacle() -> str | None:
    """Why no cluster can be started here, with a remedy; None if one can."""
    try:
        installed_programs()
    except FileNotFoundError as error:
        return str(error)
    return None if os.geteuid() == 0 else "namespaces and slurmd want root; run the tests as root"
