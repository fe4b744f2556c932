"""The language: Cluster, TrainingJob and Inventory documents in YAML.

In: YAML files. Out: problems with file, line and column, or finished plans (`plan.py`).
The package only reads: documents, the tables of `catalog/`, and a model's config.json.
Start reading: `load.py`, `parse.py`, `spec/job.py`, then `check/`, `resolve/` and `plan.py`.
"""
