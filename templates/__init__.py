"""Plans in, files out; pure. One folder per kind, one literal table per family.

In: a `JobPlan` or `ClusterPlan` and the options of a kind.
Out: `Files`, a mapping of paths to text; each `read.py` goes the other way, from the text of a file
to the settings that it makes.
Start reading: `kind.py` (what a kind exports), `schedulers/slurm/` (an example), `job.py` and
`cluster.py` (the whole tree).
"""
