"""Provides Apptainer from the tree of Debian sid on a cluster's nodes, and an image with a Python and a torch but without headway."""

import re
import sys
import sysconfig
from pathlib import Path

from tests.real.sid import sid_tree
from tests.support import LIGHT

from .cluster import SlurmCluster
from .images import make_venv

# Its files outside of /usr: its settings, and the directory of its sessions. /etc/hosts is a mount of each node. It starts without root's
# privileges, some of which a sandbox may not have.
APPTAINER = """\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin APPTAINER_NO_PRIVS=1
exec unshare --mount sh -ec '
  mount -t tmpfs tmpfs /var/lib
  mkdir -p /var/lib/apptainer/mnt/session
  cp /etc/hosts /var/lib/hosts
  mount -t overlay -o ro,lowerdir=/etc:TREE/etc overlay /etc
  mount --bind /var/lib/hosts /etc/hosts
  # Else it takes its place for /lib, by its path in the overlay of /usr.
  for each in /usr/lib/*/apptainer; do mount --bind "$each" "$each"; done
  echo "$@" >>TOOLS/calls
  exec /usr/bin/apptainer "$@"' sh "$@"
"""
FOLDERS = ("dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "var/tmp")
VARIABLES = "export PATH=/opt/venv/bin:/usr/bin:/bin OF_IMAGE=image OF_BOTH=image A_SECRET=image\n"


def make_apptainer(tools: Path) -> Path:
    """Make the command in the folder, which also gets a list of its calls."""
    program = tools / "apptainer"
    program.write_text(re.sub("TREE|TOOLS", lambda found: str({"TREE": sid_tree(), "TOOLS": tools}[found[0]]), APPTAINER))
    program.chmod(0o755)
    return program


def make_image(apptainer: Path, slurm: SlurmCluster, folder: Path) -> Path:
    """Make a `.sif` file; `PLACES` are the outside paths that the test's Python and torch need."""
    root = folder / "root"
    for each in FOLDERS:
        (root / each).mkdir(parents=True)
    for each in ("bin", "sbin", "lib", "lib64"):
        (root / each).symlink_to(f"usr/{each}")
    make_venv(root / "opt/venv")
    (root / ".singularity.d/env").mkdir(parents=True)
    (root / ".singularity.d/env/90-environment.sh").write_text(VARIABLES)
    image = folder / "train.sif"
    slurm.run(str(apptainer), "build", str(image), str(root))
    return image


PLACES = ("/usr", str(Path(sys.executable).resolve().parents[1]), sysconfig.get_paths()["purelib"], LIGHT)
