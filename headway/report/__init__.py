"""Reports on a run: the summary on the terminal and one self-contained HTML page.

In: a run directory, finished or still running.
Out: a `RunSummary`, printed by `terminal.py` and written as HTML by `page.py`.
Start reading: `directory.py` and `records.py` (reading the records), `summary.py` (what they add up
to).
"""
