"""Implements `headway checkpoint`: list, verify, compare, export, import, rebuild a lost chain.

In: a run directory, or checkpoints in another format.
Out: one JSON object per line on stdout (`say.py`), files of an export, a new run.
Start reading: `reading.py` (verbs that need no torch), `transfers.py` (the others), `inspect.py`.
"""
