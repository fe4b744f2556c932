"""Provides a control group of version 2 that is removed when its creator ends, also by SIGKILL."""

import subprocess

from tests.real.kubernetes.cgroups import SWEEP

from .programs import unified_hierarchy

REMOVE_S = 60.0


class Group:
    """The group `name`, for hosts with systemd: it requires version 2, in whose hierarchy each host creates its own groups."""

    def __init__(self, name: str) -> None:
        hierarchy = unified_hierarchy()
        if hierarchy is None:
            raise FileNotFoundError("no control groups of version 2 are mounted; systemd wants them")
        self.path = hierarchy / name
        self._sweeper = subprocess.Popen(
            ["bash", "-c", SWEEP, "sweep", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.path.mkdir()

    def remove(self) -> None:
        """Return when the group and all below it have been removed; raises OSError if processes are still in them."""
        if self._sweeper.stdin is not None:
            self._sweeper.stdin.close()
        if self._sweeper.wait(timeout=REMOVE_S) != 0:
            raise OSError(f"control group `{self.path}` could not be removed; processes are still in it")
