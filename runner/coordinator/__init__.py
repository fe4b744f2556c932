"""The coordinator: one process per attempt that decides for all nodes.

In: messages of agents, read as events (`reading.py`, `events.py`).
Out: actions (`events.py`): orders to agents, claims on the chain, journal lines, the verdict.
Start reading: `events.py`, `state.py` (the decisions: no I/O, no clock), `main.py` (the process
around them), `causes.py` and `policy.py` (what a failure is and what follows).
"""
