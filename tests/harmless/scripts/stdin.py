"""Reads what is piped into it: by lines, by input, and the rest."""

import os
import sys

print("first", repr(sys.stdin.readline()), os.isatty(0))
print("second", repr(input("prompt: ")))
print("rest", repr(sys.stdin.read()), flush=True)
