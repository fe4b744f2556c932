"""Provides an image with a Python and a torch but without headway, hosts without any Python, and programs that start the one on the others.

`srun` and `enroot` here replace pyxis and enroot, which need a plugin of each Slurm and squashfs: the same options start the command
in the image's own root, with the mounts that they name, and nothing else of the node's file system. An image is a folder.
"""

import re
import shutil
import stat
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .cluster import SlurmCluster

# A node's programs: a shell, Slurm, and the commands of a small Debian, but no Python.
COMMANDS = (
    *("cat", "chmod", "cp", "curl", "cut", "date", "dirname", "env", "find", "flock", "grep", "head", "hostname", "ln", "ls"),
    *(
        "mkdir",
        "mv",
        "paste",
        "rm",
        "rmdir",
        "sed",
        "sh",
        "sleep",
        "sort",
        "stat",
        "tail",
        "tar",
        "touch",
        "tr",
        "true",
        "uniq",
        "wc",
        "xargs",
    ),
)
SLURM = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
# Headway's own dependencies that images do not have.
ABSENT = ("headway", "msgspec", "xxhash")

SRUN = """\
#!/bin/sh
image= mounts= workdir= variables= options=
while :; do
  case $1 in
    --container-image=*) image=${1#*=} ;;
    --container-mounts=*) mounts=${1#*=} ;;
    --container-workdir=*) workdir=${1#*=} ;;
    --container-env=*) variables=${1#*=} ;;
    --no-container-mount-home) ;;
    --*) options="$options $1" ;;
    *) break ;;
  esac
  shift
done
if [ -n "$image" ]; then exec REAL/srun $options TOOLS/container "$image" "$mounts" "$workdir" "$@"; fi
exec REAL/srun $options "$@"
"""
# The root is a tmpfs, which the mount namespace of the command takes with it.
CONTAINER = """\
#!/bin/bash
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
if [ "${INSIDE:-}" != 1 ]; then INSIDE=1 exec unshare --mount "$0" "$@"; fi
image=$(cat "$1") mounts=$2 workdir=$3
shift 3
root=TOOLS/root
mount -t tmpfs tmpfs "$root"
mkdir -m 1777 "$root/tmp"
mkdir -p "$root/root"
for each in /bin /sbin /lib /lib64; do if [ -L "$each" ]; then cp -a "$each" "$root$each"; fi; done
for each in /usr /etc PYTHON SITE; do
  mkdir -p "$root$each"
  mount --bind "$each" "$root$each"
done
# As enroot does.
mount --bind /etc/hosts "$root/etc/hosts"
for each in /proc /sys /dev; do
  mkdir -p "$root$each"
  mount --rbind "$each" "$root$each"
done
mkdir -p "$root/opt/venv"
mount --bind "$image" "$root/opt/venv"
IFS=,
for each in $mounts; do
  IFS=: read -r from to flags <<<"$each:"
  mkdir -p "$root$to"
  mount --bind "$from" "$root$to"
  if [ "${flags%:}" = ro ]; then mount -o remount,bind,ro "$root$to"; fi
done
unset IFS
exec chroot "$root" /usr/bin/env --chdir="$workdir" PATH=/opt/venv/bin:/usr/bin:/bin "$@"
"""
# `enroot import --output FILE docker://...`: the file has the image's folder.
ENROOT = """\
#!/bin/sh
echo "$SLURMD_NODENAME $*" >>TOOLS/imports
echo TOOLS/image >"$3"
"""


def make_tools(folder: Path, real: Path) -> Path:
    """Make the folder that is the PATH of a job on nodes without Python; `real` has Slurm's clients."""
    tools = folder / "tools"
    (tools / "root").mkdir(parents=True)
    for name in COMMANDS:
        if found := shutil.which(name, path="/usr/bin:/bin"):
            (tools / name).symlink_to(found)
    for name in SLURM:
        (tools / name).symlink_to(real / name)
    python = Path(sys.executable).resolve().parents[1]
    site = Path(sysconfig.get_paths()["purelib"])
    places = {"REAL": real, "TOOLS": tools, "PYTHON": python, "SITE": site}
    for name, text in {"srun": SRUN, "container": CONTAINER, "enroot": ENROOT}.items():
        (tools / name).write_text(re.sub("|".join(places), lambda found: str(places[found[0]]), text))
        (tools / name).chmod(0o755)
    make_venv(tools / "image")
    return tools


def make_venv(image: Path) -> None:
    """Make a virtual environment with the tests' packages except headway's: their folder is visible, but on no path."""
    python, site = Path(sys.executable).resolve().parents[1], Path(sysconfig.get_paths()["purelib"])
    packages = image / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    for each in site.iterdir():
        if each.suffix != ".pth" and not each.name.startswith(ABSENT):
            (packages / each.name).symlink_to(each)
    (image / "bin").mkdir()
    # A copy, since `without_pythons` hides the other.
    shutil.copy2(Path(sys.executable).resolve(), image / "bin/python3")
    (image / "pyvenv.cfg").write_text(f"home = {python}/bin\n")


@contextmanager
def without_pythons(slurm: SlurmCluster) -> Iterator[None]:
    """No Python of the nodes starts."""
    base = Path(sys.executable).resolve()
    found = {
        path.resolve() for folder in ("/usr/bin", "/usr/local/bin") for path in Path(folder).glob("python3*") if path.exists()
    }
    pythons = sorted(path for path in {*found, base} if path.stat().st_mode & stat.S_IXUSR)
    try:
        for node in slurm.shape.node_names:
            for path in pythons:
                slurm.nsenter(node, ["mount", "--bind", "/bin/false", str(path)])
        yield
    finally:
        for node in slurm.shape.node_names:
            for path in pythons:
                slurm.nsenter(node, ["umount", str(path)], check=False)
