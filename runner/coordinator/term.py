"""Decides which coordinator of an attempt is in charge: the one with the newest term, taken by exclusive creation like a claim."""

import json
import os
from dataclasses import dataclass

from headway.runner.contract import RunDirectory
from headway.runner.posix import create_exclusive, write_atomic

SCHEMA = "headway.coordinator/1"


def newest(directory: RunDirectory) -> int:
    """The newest term; 0 before the first. Raises OSError when the store cannot be used."""
    folder = directory.coordinators
    names = [path.stem for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=0)


def published(directory: RunDirectory) -> int:
    """The term of the coordinator that can be found; 0 before the first. Raises OSError when the store cannot be used."""
    try:
        return int(json.loads(directory.coordinator.read_text())["term"])
    except (FileNotFoundError, ValueError, KeyError):
        return 0


def host_of(directory: RunDirectory, number: int) -> str | None:
    """Return the name of the host that took the term; None where that cannot be read."""
    try:
        return str(json.loads(directory.term(number).read_text())["host"])
    except (OSError, ValueError, KeyError):
        return None


@dataclass(frozen=True)
class Term:
    """A coordinator's own. Methods raise OSError when the store cannot be used."""

    directory: RunDirectory
    number: int
    node: int

    @classmethod
    def take(cls, directory: RunDirectory, node: int, host: str) -> "Term":
        """Take the next term. The coordinator of the previous one sees that, and ends."""
        directory.coordinators.mkdir(parents=True, exist_ok=True)
        while True:
            number = newest(directory) + 1
            record = {"schema": SCHEMA, "term": number, "node": node, "pid": os.getpid(), "host": host}
            if create_exclusive(directory.term(number), json.dumps(record).encode() + b"\n"):
                return cls(directory, number, node)

    def is_over(self) -> bool:
        return newest(self.directory) > self.number

    def age_of_first(self) -> float:
        """Return the seconds from the attempt's first term to this one, by the store's clock."""
        files = (self.directory.term(number) for number in (self.number, 1))
        mine, first = (path.stat().st_mtime for path in files)
        return max(0.0, mine - first)

    def publish(self, host: str, port: int) -> bool:
        """Publish this coordinator's address unless there is a newer one; return whether it is published now."""
        if self.is_over():
            return False
        write_atomic(self.directory.coordinator, json.dumps(self._address(host, port)).encode() + b"\n")
        return True

    def is_published(self, host: str, port: int) -> bool:
        """Return whether the published address is this coordinator's: an earlier one may have written its own late."""
        try:
            return bool(json.loads(self.directory.coordinator.read_text()) == self._address(host, port))
        except ValueError:
            return False

    def _address(self, host: str, port: int) -> dict[str, object]:
        return {"host": host, "port": port, "term": self.number, "node": self.node}
