"""The part that runs inside the job: one supervisor per node and the processes that it starts.

In: `attempts/<k>/run.json` of a run directory (`contract.RunConfig`, `contract.RunDirectory`).
Out: the training itself, its checkpoints, the records of docs/records.md, an exit code
(`contract.Exit`).
Other packages import `contract` and nothing else from here, and this package imports none of them;
headway/checkpoint.py re-exports the checkpoint library.
Start reading: `contract/`, `__main__.py`, `agent/supervisor.py`; docs/architecture.md has the
processes and how they talk.
"""
