"""The command `headway`: one module per verb, imported when the verb is used.

In: a command line and the files that it names.
Out: data on stdout, messages on stderr, an exit code.
Start reading: `main.py` (the table of verbs), then the module of a verb in `verbs/`, for example
`check.py`, and what it prints in `views/`. The modules next to `main.py` are shared by several verbs.
"""
