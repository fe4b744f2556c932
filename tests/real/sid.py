"""Builds a tree of Debian sid with the newest programs that the tests run: Slurm, munge, Apptainer, containerd, runc and dependencies.

`sid_tree()` builds it once per machine (a minute, 530 MB), in a cache folder; it is unchanged until the folder is removed.
It is read-only: mount an overlay over it, or bind its folders elsewhere.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from tests.real.slurm.machine import UNSHARE, leashed
from tests.real.slurm.programs import SEARCH_PATH

PACKAGES = (
    "apptainer",
    "ca-certificates",
    "containerd",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "mount",
    "munge",
    "procps",
    "runc",
    "slurm-wlm",
)
MIRROR_S = 20.0
LOG_TAIL_LINES = 20


class TreeError(Exception):
    """debootstrap failed; the message ends with its output."""


def sid_tree() -> Path:
    """The tree's root. Raises TreeError if debootstrap fails, LookupError without a mirror; call `obstacle()` before.

    If two sessions request it at once, one builds it, and the other waits.
    """
    tree = _cached()
    with tree.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            _make(tree, lock.fileno())
    return tree


def obstacle() -> str | None:
    """Why there is no tree here, with a remedy; None if it can be built."""
    if not _cached().exists():
        if shutil.which("debootstrap", path=SEARCH_PATH) is None:
            return "`debootstrap` not found; run `apt-get install debootstrap`"
        try:
            _mirror()
        except LookupError as error:
            return str(error)
    return None if os.geteuid() == 0 else "debootstrap and overlays want root; run the tests as root"


def _cached() -> Path:
    """The path of the tree, in a folder of this user into which no other user can put a tree."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "/var/tmp") / f"headway-tests-{os.geteuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        raise PermissionError(f"`{folder}` belongs to another user; remove it")
    return folder / f"sid-{hashlib.sha256(' '.join(PACKAGES).encode()).hexdigest()[:12]}"


def _make(tree: Path, lock: int) -> None:
    unfinished = tree.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = ["debootstrap", "--variant=minbase", "--force-check-gpg", f"--include={','.join(PACKAGES)}"]
    # its mounts and processes are in namespaces that end with this one's; all of them hold the lock until they have ended
    done = subprocess.run(
        leashed([*UNSHARE, *command, "sid", str(unfinished), _mirror()]),
        check=False,
        env=os.environ | {"PATH": SEARCH_PATH},
        pass_fds=[lock],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        said = "\n".join(done.stdout.splitlines()[-LOG_TAIL_LINES:])
        raise TreeError(f"debootstrap of sid ended with {done.returncode}:\n{said}")
    for package in (unfinished / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()
    unfinished.rename(tree)


def _mirror() -> str:
    """The first of apt's sources that has sid; raises LookupError naming those that do not."""
    if shutil.which("apt-get") is None:
        raise LookupError("`apt-get` not found, so no mirror of Debian is known; run the tests on Debian")
    # without release info: also what `apt-get update` has not fetched yet
    listing = ["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)", "Created-By: Packages"]
    sources = list(dict.fromkeys(subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()))
    for source in sources:
        if _has_sid(source):
            return source
    raise LookupError(f"none of apt's sources has sid: {', '.join(sources) or 'there are none'}; add a mirror of Debian")


def _has_sid(source: str) -> bool:
    try:
        with urllib.request.urlopen(f"{source.rstrip('/')}/dists/sid/InRelease", timeout=MIRROR_S):
            return True
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
