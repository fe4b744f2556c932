"""The fields of the documents, as Pydantic models with their types and bounds.

In: the data of a YAML document. Out: a frozen `Cluster`, `TrainingJob` or `Inventory`.
The docstring below each field is its text in docs/spec.md, in the JSON Schema and in hints.
Start reading: `job.py`, `cluster.py`.
"""
