"""Finds FRR's programs on this machine, or the reason why no fabric can be started."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

# Debian keeps FRR's daemons off every PATH
DAEMONS = Path("/usr/lib/frr")
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", str(DAEMONS)])
DEBIAN_PACKAGES = {"zebra": "frr", "bfdd": "frr", "bgpd": "frr", "vtysh": "frr", "ip": "iproute2"}


def installed_programs() -> Mapping[str, Path]:
    """Every program that a fabric needs, by its name; raises FileNotFoundError naming the missing ones."""
    found = {name: shutil.which(name, path=SEARCH_PATH) for name in DEBIAN_PACKAGES}
    paths = {name: Path(path) for name, path in found.items() if path is not None}
    absent = sorted(set(found) - set(paths))
    if absent:
        packages = " ".join(sorted({DEBIAN_PACKAGES[name] for name in absent}))
        raise FileNotFoundError(f"`{'`, `'.join(absent)}` not found; run `apt-get install {packages}`")
    return paths


def obstacle() -> str | None:
    """Why no fabric can be started here, with a remedy; None if one can."""
    try:
        installed_programs()
    except FileNotFoundError as error:
        return str(error)
    return None if os.geteuid() == 0 else "network namespaces and FRR want root; run the tests as root"
