"""Where a run's time goes.

In: journal, metrics and heartbeats of a generation. Out: seconds per bucket, one line per
generation in ledger.jsonl, and the closing line of a scheduled attempt.
Start reading: `ledger.py`, `closing.py`; `tracking.py` names the run for experiment trackers.
"""
