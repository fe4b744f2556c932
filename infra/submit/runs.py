"""Reads the runs of a cluster: in a folder of this machine, or on a login node, whose records are copied here over SFTP."""

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from headway.infra.reach import SshError
from headway.infra.submit.shell import CommandError
from headway.runner.contract import RunDirectory

if TYPE_CHECKING:
    import paramiko

    from headway.infra.ssh import Ssh

# A list of runs needs no more of a run's steps than this.
TAIL_BYTES = 64 * 1024
_OF_RUN = ("handle.json", "ledger.jsonl", "metrics.jsonl")
_OF_ATTEMPT = ("run.json", "spec.json", "verdict.json", "hosts", "job")
_OF_SUBMISSION = ("job.sbatch", "request.json", "outcome")


class Runs(Protocol):
    """The folder of a cluster's runs."""

    @property
    def path(self) -> str:
        """The folder where the jobs see it."""
        ...

    def names(self) -> list[str]:
        """Return the names of folders that may be runs, the newest first. Raises CommandError."""
        ...

    def fetch(self, name: str, whole: bool = False) -> RunDirectory:
        """Return the run's records as they are now; without `whole`, its steps may be missing except the newest. Raises CommandError."""
        ...

    def read(self, path: str, start: int, length: int = -1) -> tuple[bytes, int]:
        """Return bytes of a file below the folder, and its size; (b"", 0) without a file. Raises CommandError."""
        ...

    def files(self, path: str) -> list[str]:
        """Return the names in a folder below the folder, in order; none if it does not exist."""
        ...


class RunsHere:
    """A folder that this machine sees."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> str:
        return str(self._path)

    def names(self) -> list[str]:
        found = [path for path in self._path.glob("*") if _is_run(path)]
        return [path.name for path in sorted(found, key=lambda path: (path.stat().st_mtime, path.name), reverse=True)]

    def fetch(self, name: str, whole: bool = False) -> RunDirectory:
        return RunDirectory(self._path / name)

    def read(self, path: str, start: int, length: int = -1) -> tuple[bytes, int]:
        try:
            with (self._path / path).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(_start(start, size))
                return file.read(length), size
        except FileNotFoundError:
            return b"", 0
        except OSError as error:
            raise CommandError(f"`{self._path / path}` cannot be read: {error.strerror}") from error

    def files(self, path: str) -> list[str]:
        return sorted(each.name for each in (self._path / path).glob("*"))


def _is_run(path: Path) -> bool:
    directory = RunDirectory(path)
    # A batch script has attempts before its runner writes the handle.
    return directory.handle.is_file() or directory.submissions.is_dir() or bool(directory.attempt_numbers())


def _start(start: int, size: int) -> int:
    """A negative start counts from the end."""
    return max(0, size + start) if start < 0 else start


class RunsThere:
    """A folder on a login node; `cache` is a folder of this machine for copies of its records."""

    def __init__(self, ssh: "Ssh", path: str, cache: Path) -> None:
        self.path, self._ssh = path, ssh
        place = hashlib.sha256(f"{ssh.destination}:{path}".encode()).hexdigest()[:16]
        self._cache = cache / place
        self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Attempts of which nothing changes any more.
        self._settled: set[str] = set()

    def names(self) -> list[str]:
        # A look into each of many folders would take seconds.
        folders = {
            name: status for name, status in self._listed("").items() if stat.S_ISDIR(status.st_mode or 0) and name[0] != "."
        }
        return sorted(folders, key=lambda name: (folders[name].st_mtime or 0, name), reverse=True)

    def fetch(self, name: str, whole: bool = False) -> RunDirectory:
        here = RunDirectory(self._cache / name)
        for file, status in self._listed(name).items():
            if file in _OF_RUN:
                tail = None if whole or file != here.metrics.name else TAIL_BYTES
                self._copy(f"{name}/{file}", status, tail)
        for folder, wanted in (("attempts", _OF_ATTEMPT), ("submissions", _OF_SUBMISSION)):
            for number in self._listed(f"{name}/{folder}"):
                place = f"{name}/{folder}/{number}"
                if not number.isdecimal() or place in self._settled:
                    continue
                found = self._listed(place)
                for file in sorted(found.keys() & set(wanted)):
                    self._copy(f"{place}/{file}", found[file])
                (self._cache / place).mkdir(parents=True, exist_ok=True)
                if {"verdict.json", "outcome"} & found.keys():
                    self._settled.add(place)
        for file, status in self._listed(f"{name}/shared/journal").items():
            self._copy(f"{name}/shared/journal/{file}", status)
        return here

    def read(self, path: str, start: int, length: int = -1) -> tuple[bytes, int]:
        try:
            with self._sftp.open(self._there(path), "rb") as file:
                size = file.stat().st_size or 0
                at = _start(start, size)
                file.seek(at)
                wanted = max(0, size - at) if length < 0 else min(length, max(0, size - at))
                file.prefetch(at + wanted)
                return file.read(wanted), size
        except FileNotFoundError:
            return b"", 0
        except (OSError, EOFError) as error:
            raise CommandError(f"{self._ssh}: `{self._there(path)}` cannot be read: {error}") from error

    def files(self, path: str) -> list[str]:
        return sorted(self._listed(path))

    @property
    def _sftp(self) -> "paramiko.SFTPClient":
        try:
            return self._ssh.sftp()
        except SshError as error:
            raise CommandError(str(error)) from error

    def _there(self, path: str) -> str:
        return str(PurePosixPath(self.path, path))

    def _listed(self, path: str) -> Mapping[str, "paramiko.SFTPAttributes"]:
        try:
            listed = self._sftp.listdir_attr(self._there(path))
            # A name becomes a path of this machine.
            return {each.filename: each for each in listed if "/" not in each.filename and each.filename not in {"", ".", ".."}}
        except FileNotFoundError:
            return {}
        except (OSError, EOFError) as error:
            raise CommandError(f"{self._ssh}: `{self._there(path)}` cannot be read: {error}") from error

    def _copy(self, path: str, status: "paramiko.SFTPAttributes", tail: int | None = None) -> None:
        """Copy what the file has gained; all of it if it was replaced, and only its last `tail` bytes of a large one."""
        here, size = self._cache / path, status.st_size or 0
        known = here.stat() if here.exists() else None
        if known is not None and known.st_size == size and int(known.st_mtime) == status.st_mtime:
            return
        whole = tail is None and known is not None and _has_hole(here)
        start = known.st_size if known is not None and not whole and known.st_size <= size and path.endswith(".jsonl") else 0
        if tail is not None and size - start > tail:
            start = size - tail
        content, _ = self.read(path, start, size - start)
        here.parent.mkdir(parents=True, exist_ok=True)
        with here.open("r+b" if start and here.exists() else "wb") as file:
            file.seek(start)
            file.write(content)
        os.utime(here, (status.st_mtime or 0, status.st_mtime or 0))


def _has_hole(path: Path) -> bool:
    """Return whether a copy is missing its beginning."""
    with path.open("rb") as file:
        return file.read(1) == b"\0"
