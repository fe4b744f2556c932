"""Checks an frr.conf with FRR itself, without a daemon."""

import subprocess
import tempfile
from pathlib import Path

from .programs import installed_programs


def refused_lines(text: str) -> list[str]:
    """The messages of `vtysh -C` about the text, a line for each unknown command; empty if it accepts the text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frr.conf"
        path.write_text(text)
        command = [str(installed_programs()["vtysh"]), "--dryrun", "--inputfile", str(path)]
        checked = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    said = (checked.stdout + checked.stderr).splitlines()
    if checked.returncode != 0 and not said:
        return [f"vtysh ended with {checked.returncode}"]
    return said
