"""The keeper: one process per node that holds captures of its ranks' state in shared memory.

In: `Request` messages of workers over a Unix socket, copies from the keeper of another node.
Out: `Sealed`, `Done`, `Failed` and `Freed` events; captures hashed in memory, copied to a partner
node, written to disk, uploaded.
Start reading: `protocol.py` (every message), `service.py` (what the keeper does for each),
`link.py` (the worker's side).
"""
