"""Runs scripts that lie beside this one in this process: what each of them finds, for one start of the launchers."""

import os
import runpy
import sys
from pathlib import Path

import facts

for name in sys.argv[1:]:
    runpy.run_path(str(Path(__file__).with_name(name)), run_name="__main__")
    written = f"facts-{facts.rank()}.json"
    if os.path.exists(written):
        os.rename(written, f"{name}-{facts.rank()}.json")
