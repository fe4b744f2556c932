"""The builtin trainer: a Llama-family decoder under every axis of the layout, one process per rank.

In: run.json and the base that the generation starts from.
Out: metrics.jsonl, saves through the checkpoint engine, heartbeats.
Start reading: `model.py`, `parallel.py` (how it is split over ranks), `main.py`, `gradients.py` (one
step, with the checks against silent corruption), `state.py` (what is saved); then `pipeline.py`,
`ring_attention.py`, `loss.py`.
"""
