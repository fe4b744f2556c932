"""Search for the fastest layouts of a model on a number of GPUs.

In: a `Request` (`request.py`): model, GPUs, and the degrees that the caller has fixed.
Out: a `SearchResult` with scored layouts and the reasons why others were rejected.
Start reading: `request.py`, `search.py`, `layouts.py`.
"""
