"""The builtin trainer: a Llama-family decoder under FSDP2, one process per rank.

In: run.json and the base that the generation starts from.
Out: metrics.jsonl, saves through the checkpoint engine, heartbeats.
Start reading: `main.py`, `model.py`, `gradients.py` (one step, with the checks against silent
corruption), `state.py` (what is saved).
"""
