"""The processes of one node: supervisor, agent, warm standbys, host of the rendezvous store.

In: run.json, and the coordinator's messages (`assign`, `start`, `save`, `survey`, `probe`, `stop`).
Out: workers with torchrun's environment variables, and messages to the coordinator (`join`, `beat`,
`exited`, `evidence`, `committed`).
Start reading: `supervisor.py` (starts, reaps and ends processes; its parts work on a `place.py`), `main.py` (the agent; its
parts work on an `agent_state.py`), `protocol.py` (the messages between the two), `launch.py` (command and environment of one rank).
"""
