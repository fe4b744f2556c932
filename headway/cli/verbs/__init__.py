"""The verbs of the command `headway`, one module each, called as the verb.

In: the parsed command line. Out: an exit code (docs/records.md).
To add a verb, add a module with `configure(parser)` and `run(args) -> int`, and a row in
`headway/cli/main.py`. The output of a verb is in `headway/cli/views/`.
Start reading: `check.py`, then `plan.py`.
"""
