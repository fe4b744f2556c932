"""The processes of one node: supervisor, agent, warm standbys, host of the rendezvous store.

In: run.json, and the coordinator's messages (`assign`, `start`, `save`, `survey`, `probe`, `stop`).
Out: workers with torchrun's environment variables, and messages to the coordinator (`join`, `beat`,
`exited`, `evidence`, `committed`).
Start reading: `supervisor.py` (starts, reaps and ends processes), `main.py` (the agent), `launch.py`
(command and environment of one rank).
"""
