"""Processes that a script leaves behind at its end go on: in its group, in a session of their own, as daemons."""

import os
import subprocess
import sys
import time

for kind, new in (("plain", False), ("own-session", True)):
    subprocess.Popen(["sh", "-c", f"sleep 2; echo uploaded > {kind}"], start_new_session=new)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(2)
        with open("daemon", "w") as file:
            file.write("uploaded\n")
    os._exit(0)
os.wait()
print("ends with", sys.argv[1:], flush=True)
