"""The command `headway`: one module per verb, imported when the verb is used.

In: a command line and the files that it names.
Out: data on stdout, messages on stderr, an exit code.
Start reading: `main.py` (the table of verbs), `documents.py` (files to checked documents and plans,
shared by all verbs that take documents), then the module of a verb, for example `check.py`.
"""
