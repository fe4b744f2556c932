"""What the children of a script get: variables, descriptors, group, signals, output."""

import json
import os
import subprocess
import sys

import facts

SEEN = (
    f"BESIDE = {facts.BESIDE}"
    """
# Without the working folder.
import sys
del sys.path[0]
import json, os, signal
print(json.dumps({
    "variables": sorted(name for name in os.environ if not name.startswith((*BESIDE, "_"))),
    "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
    "signals": [s.name for s in signal.Signals if signal.getsignal(s) not in (signal.SIG_DFL,)],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "group": os.getpgid(0) == os.getpid(),
}), flush=True)
"""
)
for close in (True, False):
    found = json.loads(
        subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, check=True, close_fds=close).stdout
    )
    print(close, json.dumps(found, indent=1), flush=True)
os.system("echo by a shell; echo to stderr >&2")
print(subprocess.run("cat", input="through cat", shell=True, capture_output=True, text=True, check=True).stdout, flush=True)
subprocess.run([sys.executable, "-c", "import sys; print('a child of Python', sys.stdin.read(), flush=True)"], check=True)
if os.fork() == 0:
    print("a forked child", flush=True)
    os._exit(0)
print("waited", os.WEXITSTATUS(os.wait()[1]), flush=True)
