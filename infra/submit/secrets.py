"""Finds the secrets of a job where it is submitted: in the environment, or in files that only the user can read."""

import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = "HEADWAY_SECRETS"


def find_secrets(names: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that the environment does not have, from the user's files. Raises LookupError for one that neither has, or
    whose file others may read."""
    folder = Path(environment.get(FOLDER) or Path.home() / ".config/headway/secrets")
    found = {}
    for name in names:
        if name in environment:
            continue
        file = folder / name
        if not file.is_file() or stat.S_IMODE(file.stat().st_mode) & ~0o600:
            raise LookupError(f"the secret {name} is missing: set the variable {name}, or make the file {file} with mode 0600")
        found[name] = file.read_text().rstrip("\n")
    return found
