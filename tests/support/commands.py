"""Starts `headway WORDS` as a process that is forked from one in which torch and the command are imported.

The launcher of `headway torchrun` imports torch for torchrun's parser, which costs more than most runs that tests start. Only these
imports differ from those of a new process: arguments, environment, folder, streams and signals are its own, and everything that the
command starts is started as always. tests/harmless, tests/faults/test_nodes.py and a test with a terminal start it as users do.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import NoReturn, Self

from headway.cli.main import main
from headway.cli.verbs import torchrun
from headway.runner.torchrun.__main__ import main as launch
from tests.support.worlds import server

_STREAMS = ("stdout", "stderr")


class Command:
    """A command that runs, with what `subprocess.Popen` has of it. `with` ends it and removes its output."""

    def __init__(self, words: Sequence[str | Path], environment: Mapping[str, str], folder: Path | None = None) -> None:
        """Start it in `folder`, by default the working folder."""
        self._words = [str(word) for word in words]
        self._output = Path(tempfile.mkdtemp(prefix="headway-command-"))
        for name in _STREAMS:
            (self._output / name).touch()
        given = (self._words, dict(environment), folder or Path.cwd(), self._output)
        self._process = server().Process(target=_be_command, args=given, daemon=True)
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """End it if it runs, and remove its output."""
        self.kill()
        self._process.join()
        shutil.rmtree(self._output)

    @property
    def returncode(self) -> int | None:
        """Its exit code, the negative number of the signal that ended it, or None."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired(self._words, timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end of the command, and return its stdout and stderr. Raises subprocess.TimeoutExpired."""
        self.wait(timeout)
        out, err = ((self._output / name).read_text() for name in _STREAMS)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            assert self._process.pid is not None
            os.kill(self._process.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _be_command(words: list[str], environment: dict[str, str], folder: Path, output: Path) -> NoReturn:
    """Runs in the forked process."""
    out, err = (os.open(output / name, os.O_WRONLY | os.O_APPEND) for name in _STREAMS)
    for standard, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    _set_environment(environment)
    os.chdir(folder)
    sys.argv = ["headway", *words]
    vars(torchrun)["subprocess"] = SimpleNamespace(Popen=_Launcher)
    sys.exit(main(words))


class _Launcher:
    """The launcher of `headway torchrun` as a fork of this process, with what the verb uses of `subprocess.Popen`."""

    def __init__(
        self, command: Sequence[str], *, env: dict[str, str], pass_fds: Sequence[int], preexec_fn: Callable[[], None]
    ) -> None:
        self._code: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            # python -P -m headway.runner.torchrun WORDS
            _be_launcher(command[3:], env, pass_fds, preexec_fn)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self) -> int:
        while self._code is None:
            try:
                _, status = os.waitpid(self._pid, 0)
            except ChildProcessError:
                # The handler of a signal has polled meanwhile, and knows the code.
                continue
            self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def send_signal(self, number: int) -> None:
        os.kill(self._pid, number)


def _be_launcher(
    argv: Sequence[str], environment: dict[str, str], pass_fds: Sequence[int], preexec: Callable[[], None]
) -> NoReturn:
    code = 1
    try:
        preexec()
        for entry in list(Path("/proc/self/fd").iterdir()):
            if (descriptor := int(entry.name)) > 2 and descriptor not in pass_fds:
                # That of the listing is closed already.
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        _set_environment(environment)
        sys.argv = list(argv)
        launch()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
