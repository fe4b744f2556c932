"""Opens a cluster's scheduler and runs (`Site`), here or over SSH, as its document describes."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headway.infra.reach import Reach, SshError
from headway.infra.submit.runs import Runs, RunsHere, RunsThere
from headway.infra.submit.scheduler import Scheduler
from headway.infra.submit.shell import CommandError, CommandShell, Here, There
from headway.infra.submit.slurm import Slurm
from headway.infra.submit.submission import Desk
from headway.jobspec.resolve.placement import runs_of_user
from headway.templates.schedulers.slurm.options import Login, SlurmOptions

SUBMITTING = ("slurm",)


class SiteError(Exception):
    """The cluster cannot be reached, or headway cannot submit to its scheduler; the message gives the reason."""


@dataclass(frozen=True)
class Site:
    """A cluster's runs, and its scheduler where there is one; `enter` returns a shell for another folder of submission."""

    runs: Runs
    shell: CommandShell
    scheduler: Scheduler | None
    enter: Callable[[str], CommandShell]

    def desk(self, tell: Callable[[str], None], folder: str | None = None) -> Desk:
        """Return where submissions are made, from `folder` if it is not the usual one. Raises SiteError without a scheduler."""
        if self.scheduler is None:
            raise SiteError("this cluster has no scheduler: `headway run JOB --resume RUN` continues a run of this machine")
        shell = self.shell if folder is None or folder == self.shell.folder else self.enter(folder)
        return Desk(Slurm(shell), shell, self.runs, tell)


@contextmanager
def opened(scheduler: str, options: object, runs: str, document: Path) -> Iterator[Site]:
    """Open the site of a cluster with this scheduler and its options; `runs` is its folder of runs, `document` the cluster's file.

    Raises SiteError.
    """
    if not isinstance(options, SlurmOptions):
        with _here(runs, scheduler in SUBMITTING) as site:
            yield site
    elif options.login is None:
        with _here(runs, is_slurm=True) as site:
            yield site
    else:
        with _there(options.login, runs, document) as site:
            yield site


@contextmanager
def opened_here(runs: Path) -> Iterator[Site]:
    """Open a folder of runs of this machine, with Slurm if its commands are here and configured."""
    with _here(str(runs), is_slurm=_is_configured()) as site:
        yield site


def _is_configured() -> bool:
    # A client without a configuration fails even here; no request is made.
    return shutil.which("squeue") is not None and Here(str(Path.cwd())).run(["squeue", "--version"]).code == 0


@contextmanager
def _here(runs: str, is_slurm: bool) -> Iterator[Site]:
    shell = Here(str(Path.cwd()))
    folder = os.environ.get("HEADWAY_RUNS") or runs_of_user(runs, shell.user)
    yield Site(RunsHere(Path(shell.folder, folder)), shell, Slurm(shell) if is_slurm else None, Here)


@contextmanager
def _there(login: Login, runs: str, document: Path) -> Iterator[Site]:
    if importlib.util.find_spec("paramiko") is None:
        raise SiteError("SSH needs paramiko; install headway with its extra `infra`")
    from headway.infra.ssh import as_ssh_would, connect  # noqa: PLC0415 (an extra)

    identity, known_hosts = (_absolute(document.parent, path) for path in (login.identity, login.known_hosts))
    named = Reach(login.host, login.host, login.port, login.user, identity, known_hosts, as_ssh=True)
    try:
        ssh = connect(as_ssh_would(login.host, named, login.jump))
    except SshError as error:
        raise SiteError(str(error)) from error
    with ssh:
        try:
            shell = There(ssh, login.folder, login.setup)
            path = str(PurePosixPath(shell.folder, runs_of_user(runs, shell.user)))
            yield Site(RunsThere(ssh, path, _cache()), shell, Slurm(shell), lambda folder: There(ssh, folder, login.setup))
        except CommandError as error:
            raise SiteError(str(error)) from error


def _absolute(folder: Path, path: str | None) -> str | None:
    return path if path is None or path.startswith("~") else str((folder / path).absolute())


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "headway" / "runs"
