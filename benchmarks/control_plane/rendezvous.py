"""Runs torchrun's rendezvous (c10d over TCPStore) as the peer: agents in one process join it, its store is in another.

Prints a JSON line: how long the agents took until each had its rank, or what one of them raised that gave up. Then they keep their
rendezvous alive, until stdin ends.
"""

import json
import os
import sys
import threading
import time
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

_STACK_BYTES = 1 << 20


def serve() -> None:
    """The store, as torchrun keeps it on the node of `--rdzv-endpoint`, until stdin ends."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    sys.stdin.read()


def join(port: int, agents: int, patience_s: float) -> None:
    ranks: list[int] = []
    handlers: list[DynamicRendezvousHandler] = []
    errors: list[BaseException] = []

    def agent() -> None:
        try:
            store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=patience_s))
            backend = C10dRendezvousBackend(store, "fleet")
            patience = RendezvousTimeout(join=timedelta(seconds=patience_s))
            handler = DynamicRendezvousHandler.from_backend("fleet", store, backend, agents, agents, timeout=patience)
            ranks.append(handler.next_rendezvous().rank)
            # A handler without reference keeps nothing alive.
            handlers.append(handler)
        except Exception as error:
            errors.append(error)

    threading.stack_size(_STACK_BYTES)
    threads = [threading.Thread(target=agent, daemon=True) for _ in range(agents)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - began
    complete = sorted(ranks) == list(range(agents))
    print(json.dumps({"took_s": took_s, "complete": complete, "error": repr(errors[0]) if errors else ""}), flush=True)
    sys.stdin.read()
    # The handlers' own threads continue otherwise.
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        join(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
