"""FRR's own opinion of an frr.conf, without a daemon."""

import subprocess
import tempfile
from pathlib import Path

from .programs import installed_programs


def refused_lines(text: str) -> list[str]:
    """What `vtysh -C` says about the text, a line for each command that it does not know; nothing when it accepts it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frr.conf"
        path.write_text(text)
        command = [str(installed_programs()["vtysh"]), "--dryrun", "--inputfile", str(path)]
        checked = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    said = (checked.stdout + checked.stderr).splitlines()
    if checked.returncode != 0 and not said:
        return [f"vtysh ended with {checked.returncode}"]
    return said
