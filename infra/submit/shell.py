"""Runs commands where a scheduler's commands are: on this machine, or on a cluster's login node over SSH."""

import getpass
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from headway.infra.reach import SshError

COMMAND_S = 60.0


class CommandResult(Struct, frozen=True):
    """A command that has ended: its exit code and what it printed."""

    code: int
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """Return the last line that it printed, for a message."""
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return lines[-1] if lines else f"exit code {self.code}"


class CommandError(Exception):
    """A command could not be run, or its answer cannot be used; the message is one line for people."""


class CommandShell(Protocol):
    """A machine that runs commands, and the folder in which they run."""

    @property
    def folder(self) -> str:
        """The absolute path of the folder from which jobs are submitted."""
        ...

    @property
    def user(self) -> str: ...

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = COMMAND_S, detached: bool = False) -> CommandResult:
        """Run the command to its end. Raises CommandError if there is no such command, or no answer.

        A `detached` one runs to its end also if this process is killed.
        """
        ...

    def shown(self, argv: Sequence[str]) -> str:
        """Return the command as a person would type it."""
        ...


class Here:
    """This machine; commands run in `folder` with this process's environment and `environment` on top."""

    def __init__(self, folder: str, environment: Mapping[str, str] | None = None) -> None:
        self.folder = os.path.realpath(folder)
        self._environment = {**os.environ, **(environment or {})}

    @property
    def user(self) -> str:
        return getpass.getuser()

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = COMMAND_S, detached: bool = False) -> CommandResult:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.folder,
                env=self._environment,
                start_new_session=detached,
            )
        except OSError as error:
            raise CommandError(f"`{argv[0]}` cannot be run on this machine: {error.strerror}") from error
        try:
            output, errors = process.communicate(stdin, timeout_s)
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"no answer within {timeout_s:g} s to `{shlex.join(argv)[:60]}`") from error
        finally:
            if process.returncode is None and not detached:
                process.kill()
                process.wait()
        return CommandResult(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))

    def shown(self, argv: Sequence[str]) -> str:
        return shlex.join(argv)


class There:
    """A login node over SSH. `setup` are lines of sh that run before each command, for example to load a module."""

    def __init__(self, ssh: "Connection", folder: str | None, setup: Sequence[str] = ()) -> None:
        self._ssh, self._setup, self._user = ssh, tuple(setup), ""
        self.folder = ""
        # The folder may be relative to the home, and the user's name is that of the login node.
        done = self.run(["sh", "-c", 'cd -- "${1:-.}" && pwd -P && id -un', "sh", folder or ""])
        if done.code:
            raise CommandError(f"{ssh}: the folder `{folder}`, from which jobs are submitted: {done.reason}")
        self.folder, self._user = done.output.splitlines()[-2:]

    @property
    def user(self) -> str:
        return self._user

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = COMMAND_S, detached: bool = False) -> CommandResult:
        # sshd does not end a command without a terminal when its connection is lost.
        entering = [f"cd -- {shlex.quote(self.folder)}"] if self.folder else []
        # `exec` would not find functions that the set-up defines.
        script = "\n".join([*entering, *self._setup, shlex.join(argv)])
        try:
            code, output, errors = self._ssh.execute(shlex.join(["sh", "-c", script]), stdin, timeout_s)
        except SshError as error:
            raise CommandError(str(error)) from error
        if code == 127:
            raise CommandError(
                f"{self._ssh}: there is no command `{argv[0]}`: add what finds it to `login.setup` ({errors.strip()})"
            )
        return CommandResult(code, output, errors)

    def shown(self, argv: Sequence[str]) -> str:
        return f"ssh {self._ssh.destination} {shlex.quote(f'cd {shlex.quote(self.folder)} && {shlex.join(argv)}')}"


class Connection(Protocol):
    """The part of `infra/ssh.py` (`Ssh`) that is needed here."""

    @property
    def destination(self) -> str: ...

    def execute(self, command: str, stdin: bytes, timeout_s: float) -> tuple[int, str, str]: ...
