"""A cluster's cables as lists and graphs, and what devices report of them.

In: a cluster's plan; the output of `lldpcli show neighbors -f json` and `ibnetdiscover`. Out: text, and the cables that differ.
Start reading: `render.py`, `read.py`, `compare.py`.
"""
