"""The coordinator: one process per attempt that decides for all nodes.

In: messages of agents, read as events (`reading.py`, `events.py`).
Out: actions (`events.py`): orders to agents, claims on the chain, journal lines, the verdict.
Start reading: `events.py`, `state.py` (what it knows), `machine.py` (events in, actions out: no I/O, no
clock), which calls `joins.py`, `progress.py`, `evidence.py`, `generations.py`, `losses.py`, `failures.py`
and `ending.py`; `causes.py` and `policy.py` (what a failure is and what follows); `main.py` (the process
around them). Each of these modules imports only later ones of joins | progress | evidence, preemption,
losses, failures, fitness, generations, ending, state.
"""
