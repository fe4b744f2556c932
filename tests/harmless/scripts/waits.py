"""Long-lived things at the end of a script: timers, executors, event loops, sockets, locks, all of which Python ends in its order."""

import asyncio
import atexit
import logging
import logging.handlers
import queue
import socketserver
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

order: list[str] = []


class Closed:
    def close(self) -> None:
        print("finalized", flush=True)


logs = queue.Queue()  # type: ignore[var-annotated]
listener = logging.handlers.QueueListener(logs, logging.StreamHandler(sys.stdout))
listener.start()
logging.getLogger().addHandler(logging.handlers.QueueHandler(logs))
logging.warning("by a queue")
atexit.register(listener.stop)
kept = Closed()
weakref.finalize(kept, print, "weakly finalized", flush=True)
server = socketserver.TCPServer(("localhost", 0), socketserver.BaseRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
threading.Timer(0.3, print, ("a timer",), {"flush": True}).start()
executor = ThreadPoolExecutor(1)
executor.submit(lambda: (__import__("time").sleep(0.5), print("an executor", flush=True)))
memory = logging.handlers.MemoryHandler(1000, target=logging.FileHandler("buffered.log"))
buffered = logging.getLogger("buffered")
buffered.propagate = False
buffered.addHandler(memory)
buffered.warning("kept until logging is shut down")
loop = asyncio.new_event_loop()
loop.run_until_complete(asyncio.sleep(0))
local = threading.local()
local.kept = kept
atexit.register(print, "first registered, last called", flush=True)
threading._register_atexit(print, "before threads are joined", flush=True)  # type: ignore[attr-defined]
print("the last line", flush=True)
