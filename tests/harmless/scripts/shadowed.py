"""Runs where the working folder holds modules with the names of Python's own and of installed ones; none of them is on a script's path."""

import os
import sys

import json
import queue
import secrets

print(
    json.dumps({"names": sorted(os.listdir("."))}),
    queue.Queue().empty(),
    bool(secrets.token_hex(2)),
    os.getcwd() in sys.path,
    flush=True,
)
