"""Readers for switches whose files headway does not write: Cumulus Linux (NVUE) and Arista EOS.

In: the text of a running configuration. Out: a `Reading` (templates/reading.py), as the readers of templates/switches give it.
Start reading: `eos.py`, `nvue.py`.
"""
