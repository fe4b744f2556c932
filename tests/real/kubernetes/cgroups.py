"""Provides control groups that are removed when their creator ends, also by SIGKILL."""

import subprocess
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")

# waits for the end of its input, which the kernel closes with its creator; a group is removed only after its processes, hence the loop
SWEEP = """
read -r
for _ in {1..400}; do
    find "$@" -depth -type d -exec rmdir {} + 2>/dev/null
    [[ -n $(ls -d "$@" 2>/dev/null) ]] || exit 0
    sleep 0.05
done
exit 1
"""


class Cgroups:
    """The group `/NAME` in every hierarchy of this machine, either many (version 1) or one (version 2)."""

    def __init__(self, name: str) -> None:
        self.folders = [hierarchy / name for hierarchy in _hierarchies()]
        self._sweeper = subprocess.Popen(
            ["bash", "-c", SWEEP, "sweep", *map(str, self.folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for folder in self.folders:
            folder.mkdir(exist_ok=True)

    def clear(self) -> None:
        """Remove all groups below, as a reboot does; their processes have ended. Raises OSError if one has not."""
        below = [path for folder in self.folders for path in folder.rglob("*") if path.is_dir()]
        for path in sorted(below, reverse=True):
            path.rmdir()

    def remove(self) -> None:
        """Return when the groups and all below them are gone; raises OSError if they cannot be removed."""
        if self._sweeper.stdin is not None:
            self._sweeper.stdin.close()
        if self._sweeper.wait(timeout=60) != 0:
            left = [str(folder) for folder in self.folders if folder.exists()]
            raise OSError(f"control groups {', '.join(left)} could not be removed; processes are still in them")


def groups_named(beginning: str) -> list[Path]:
    """The groups directly below the root of a hierarchy whose names begin with `prefix`."""
    return [path for hierarchy in _hierarchies() for path in hierarchy.iterdir() if path.name.startswith(beginning)]


def _hierarchies() -> list[Path]:
    if (ROOT / "cgroup.procs").exists():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink())
