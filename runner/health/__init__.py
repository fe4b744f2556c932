"""Detection of hangs, stragglers and broken devices; no I/O and no clock.

In: heartbeats and probes of all ranks, flight recorder dumps, the driver's Xid reports.
Out: `Findings`: ranks to probe, a `Hang` with its culprits, stragglers.
Start reading: `watch.py`, `culprits.py`.
"""
