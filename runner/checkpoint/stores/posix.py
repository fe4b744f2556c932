"""Implements the store in a directory: a name is taken by link(), with which only one writer succeeds, over NFS too."""

from pathlib import Path

from headway.runner.posix import TEMPORARY, create_exclusive


class PosixStore:
    """Names are files of an existing directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __str__(self) -> str:
        return str(self._directory)

    def create(self, name: str, data: bytes) -> bool:
        return create_exclusive(self._directory / name, data)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return [path.name for path in self._directory.iterdir() if not path.name.startswith(TEMPORARY)]
