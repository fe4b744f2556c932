"""Finds the folder that holds the runs of `headway torchrun`, and the folders in which a run's name is looked up.

A script's folders belong to the script: headway puts no file there unless HEADWAY_RUNS names such a folder.
"""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

# Where `headway run` puts the runs of a job that names no other folder.
BESIDE = Path("runs")


def runs_folder(environment: Mapping[str, str]) -> tuple[Path, str | None]:
    """The folder for new runs, and what there is to say of it: $HEADWAY_RUNS, else one in the user's state folder, which is made.

    Where that cannot be written it is one in the temporary directory, which only the user can read. Raises OSError where that
    cannot be had either.
    """
    if named := environment.get("HEADWAY_RUNS"):
        return Path(named), None
    folder = _in_state(environment)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        writable = False
    else:
        writable = os.access(folder, os.W_OK | os.X_OK)
    if writable:
        return folder, None
    temporary = _in_temporary()
    temporary.parent.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(temporary.parent):
        raise PermissionError(
            f"`{folder}` cannot be written, and `{temporary.parent}` is not this user's alone; set HEADWAY_RUNS"
        )
    temporary.mkdir(exist_ok=True)
    return temporary, f"`{folder}` cannot be written, so the run lies in `{temporary}`; set HEADWAY_RUNS to keep it elsewhere"


def searched(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders in which a run's name is looked for, the first one first; nothing is made."""
    if named := environment.get("HEADWAY_RUNS"):
        return (Path(named),)
    temporary = _in_temporary()
    more = (temporary,) if _is_private(temporary.parent) else ()
    return (BESIDE, _in_state(environment), *more)


def _in_state(environment: Mapping[str, str]) -> Path:
    state = environment.get("XDG_STATE_HOME", "")
    # The XDG specification: a relative path there counts for nothing.
    base = Path(state) if Path(state).is_absolute() else Path(environment.get("HOME") or "~").expanduser() / ".local" / "state"
    return base / "headway" / "runs"


def _in_temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"headway-{os.getuid()}" / "runs"


def _is_private(folder: Path) -> bool:
    """Return whether only this user can enter the folder: any user can make one of that name in a temporary directory."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
