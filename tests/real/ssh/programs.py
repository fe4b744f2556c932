"""Finds sshd and systemd on this machine, or the reason why no host can be started."""

import os
import shutil
from pathlib import Path

SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
SYSTEMD = Path("/usr/lib/systemd/systemd")
DEBIAN_PACKAGES = {"sshd": "openssh-server", "ssh-keygen": "openssh-client", "systemctl": "systemd", "sudo": "sudo"}


def obstacle() -> str | None:
    """Why no host can be started here, with a remedy; None if one can."""
    absent = [name for name in DEBIAN_PACKAGES if shutil.which(name, path=SEARCH_PATH) is None]
    if absent:
        packages = " ".join(sorted({DEBIAN_PACKAGES[name] for name in absent}))
        return f"`{'`, `'.join(absent)}` not found; run `apt-get install {packages}`"
    if os.geteuid() != 0:
        return "namespaces and sshd want root; run the tests as root"
    if unified_hierarchy() is None:
        return "systemd wants control groups of version 2, and none are mounted"
    return None


def program(name: str) -> str:
    """Its path; raises FileNotFoundError, which `obstacle` foresees."""
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        raise FileNotFoundError(f"`{name}` not found; run `apt-get install {DEBIAN_PACKAGES[name]}`")
    return found


def unified_hierarchy() -> Path | None:
    """Where the control groups of version 2 are mounted."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
