"""Brings Linux switches that run FRR to their rendered configuration over SSH, one after the other, with an undo that fires by itself.

In: rendered `frr.conf` files, a cluster's plan, and the jobs that run. Out: switches that run them, or what they ran before.
Start reading: `protection.py` (which switch when, and which not), `switch.py` (one switch), `on_switch.sh` (the part that runs there).
"""
