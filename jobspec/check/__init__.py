"""Rules over several fields, over a job and its cluster, and over plans.

In: parsed documents or plans. Out: an iterator of `Problem`, empty where all is well.
Each rule runs only when the sections that it reads are valid.
Start reading: `job.py` (one document) and `placement.py` (a job against its cluster);
headway/compile/ calls them.
"""
