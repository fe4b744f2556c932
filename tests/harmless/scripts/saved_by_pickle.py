"""A script without torch: NumPy's arrays and pickles, by renaming."""

import os
import pickle
import time
from pathlib import Path

state = {"step": 0, "sum": 0}
if Path("state.pickle").exists():
    state = pickle.loads(Path("state.pickle").read_bytes())
print("begins at", state["step"], flush=True)
while state["step"] < 40:
    state = {"step": state["step"] + 1, "sum": state["sum"] * 3 % 1009 + state["step"]}
    Path("state.tmp").write_bytes(pickle.dumps(state))
    os.replace("state.tmp", "state.pickle")
    print("step", state["step"], flush=True)
    time.sleep(0.02)
Path("result.txt").write_text(str(state))
