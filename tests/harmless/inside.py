"""Runs as the first process of a sandbox: executes one command and records everything that remains. Standard library only.

Its argument is JSON: the folder and its path inside, the command, its timeout, and which rank is killed when. A rank is
killed when the ranks have printed `mark` lines and made `mark` files, counted together.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

POLL_S = 0.02


def living() -> dict[int, str]:
    """Every other running process of the sandbox, with its command line."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(") ")[2][0]
            words = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
        except OSError:
            continue  # it has just ended
        if state not in "ZX" and int(entry.name) != os.getpid():
            found[int(entry.name)] = words
    return found


def reap() -> None:
    """Reap zombies, as the first process of a machine does."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def marks() -> int:
    """The script's progress: printed lines and created files."""
    return Path("stdout").read_bytes().count(b"\n") + sum(len(files) for _, _, files in os.walk("work"))


def kill(rank: int) -> bool:
    """Kill the worker of that rank; False if there is none."""
    for pid in living():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in variables and _is_worker(pid):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _is_worker(pid: int) -> bool:
    """Whether its parent has no rank: a worker's own children inherit the worker's."""
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1]
    return not any(word.startswith(b"RANK=") for word in Path(f"/proc/{parent}/environ").read_bytes().split(b"\0"))


def run(task: dict[str, Any]) -> dict[str, Any]:
    """The command's exit code and the remaining files."""
    to_kill, killed = task["kill"], False
    with open("stdin", "rb") as stdin, open("stdout", "wb") as out, open("stderr", "wb") as err:
        began = time.monotonic()
        actions = [(os.POSIX_SPAWN_DUP2, file.fileno(), number) for number, file in enumerate((stdin, out, err))]
        os.chdir("work")
        # The process that started the tests may ignore some of them, as nohup does, and Python does too.
        defaults = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ}
        pid = os.posix_spawn(task["command"][0], task["command"], dict(os.environ), file_actions=actions, setsigdef=defaults)
        os.chdir("..")
    code: int | None = None
    while code is None and time.monotonic() < began + task["limit_s"]:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
        elif not ended:
            if to_kill and not killed and marks() >= to_kill["mark"]:
                killed = kill(to_kill["rank"])
            time.sleep(POLL_S)
    took_s = time.monotonic() - began
    until = time.monotonic() + (task["settle_s"] if code is not None else 0.0)
    while (left := living()) and time.monotonic() < until:
        reap()
        time.sleep(POLL_S)
    memory = sorted(path.name for path in Path("/dev/shm").iterdir())
    return {"code": code, "took_s": took_s, "left": sorted(left.values()), "memory": memory, "killed": killed, "marks": marks()}


def main() -> None:
    task = json.loads(sys.argv[1])
    # Names are resolved from files alone: there is no network, and torch would log that.
    names = Path(task["folder"], "nsswitch.conf")
    names.write_text("passwd: files\ngroup: files\nhosts: files\n")
    for line in (
        f"mount --bind {names} /etc/nsswitch.conf",
        f"mount --bind {task['folder']} {task['here']}",
        "mount -t tmpfs tmpfs /dev/shm",
        "ip link set lo up",
    ):
        subprocess.run(line.split(), check=True)
    os.chdir(task["here"])
    Path("left.json").write_text(json.dumps(run(task)))


main()
