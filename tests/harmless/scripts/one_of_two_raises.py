"""One rank raises while the other sleeps: the traceback, what atexit prints and files hold, and that the other one is ended."""

import atexit
import os
import time

os.environ["SET"] = "1"
rank = os.environ["RANK"]
kept = open(f"kept-{rank}.txt", "w")
kept.write("written before the end\n")
atexit.register(lambda: print("atexit of rank", rank, flush=True))
atexit.register(lambda: kept.write("written at the end\n"))
print("rank", rank, "has begun", flush=True)
open(f"begun-{rank}", "w").close()
if rank == "0":
    time.sleep(600)
while not os.path.exists("begun-0"):
    time.sleep(0.02)
raise ValueError("a value\nwith two lines")
