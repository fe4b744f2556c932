"""Objects in shared memory: what is unlinked goes, what is left for others stays, a data set staged there is read by all ranks."""

import os
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import numpy as np

import facts

rank = facts.rank()
staged = Path(f"/dev/shm/data-set-{rank}.bin")
np.arange(1000, dtype=np.int32).tofile(staged)
mapped = np.memmap(staged, np.int32, "r")
print("mapped", int(mapped.sum()), flush=True)
passing = shared_memory.SharedMemory(create=True, size=100)
passing.buf[:4] = b"1234"
again = shared_memory.SharedMemory(name=passing.name)
print("read", bytes(again.buf[:4]), flush=True)
again.close()
passing.close()
passing.unlink()
left = shared_memory.SharedMemory(name=f"left-on-purpose-{rank}", create=True, size=10)
resource_tracker.unregister(left._name, "shared_memory")  # type: ignore[attr-defined]
left.close()
forgotten = shared_memory.SharedMemory(name=f"forgotten-{rank}", create=True, size=10)
semaphores = sorted(name for name in os.listdir("/dev/shm") if name.startswith("sem."))
print("semaphores", semaphores, flush=True)
