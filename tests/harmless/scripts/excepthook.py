"""A tracker learns by sys.excepthook that the script has failed, and says so when Python ends."""

import atexit
import sys

state = {"code": 0}


def hook(kind: type[BaseException], error: BaseException, trace: object) -> None:
    state["code"] = 1
    print("hook:", kind.__name__, error, flush=True)
    sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]


sys.excepthook = hook
atexit.register(lambda: print("tracker: run marked as", "FAILED" if state["code"] else "FINISHED", flush=True))
raise RuntimeError("boom")
