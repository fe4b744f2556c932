"""Becomes another program."""

import os
import sys

os.execv(sys.executable, [sys.executable, "-c", "print('another program', flush=True)"])
