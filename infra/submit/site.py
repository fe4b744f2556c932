"""Opens a cluster's scheduler and runs (`Site`), here or over SSH, as its document describes."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from msgspec import Struct

from headway.infra.reach import Reach, SshError, from_folder
from headway.infra.submit.api_server import ApiServer, NoApiServerError
from headway.infra.submit.jobsets import JobSetDesk, JobSets, RunsOfJobSets
from headway.infra.submit.runs import Runs, RunsHere, RunsThere
from headway.infra.submit.scheduler import Queue, Submissions
from headway.infra.submit.shell import CommandError, CommandShell, Here, There
from headway.infra.submit.slurm import Slurm
from headway.infra.submit.submission import Desk
from headway.jobspec.resolve.placement import runs_of_user
from headway.templates.schedulers.kubernetes.options import KubernetesOptions
from headway.templates.schedulers.slurm.options import Login, SlurmOptions

# The schedulers to which headway submits, and the rendered file of each that it submits.
SUBMITTING = {"slurm": "job.sbatch", "kubernetes": "job.yaml"}


class SiteError(Exception):
    """The cluster cannot be reached, or headway cannot submit to its scheduler; the message gives the reason."""


class Site(Struct, frozen=True):
    """A cluster's runs, and its scheduler where there is one.

    `submissions` opens the place where jobs are submitted, with a function that reports what is waited for, from a folder or the usual one;
    None without a scheduler. `shell` has the scheduler's commands, if it has any. `pods` have logs, where there are pods.
    """

    runs: Runs
    scheduler: Queue | None
    submissions: Callable[[Callable[[str], None], str | None], Submissions] | None
    shell: CommandShell | None = None
    pods: JobSetDesk | None = None

    @property
    def has_records(self) -> bool:
        """Return whether this machine sees the records of the runs."""
        return not isinstance(self.runs, RunsOfJobSets) or self.runs.has_records

    @property
    def commands(self) -> CommandShell:
        """Return the shell. Raises SiteError without one."""
        if self.shell is None:
            raise SiteError("this cluster's scheduler has no commands")
        return self.shell

    def desk(self, tell: Callable[[str], None], folder: str | None = None) -> Submissions:
        """Return where submissions are made, from `folder` if it is not the usual one. Raises SiteError without a scheduler."""
        if self.submissions is None:
            raise SiteError("this cluster has no scheduler: `headway run JOB --resume RUN` continues a run of this machine")
        return self.submissions(tell, folder)


@contextmanager
def opened(scheduler: str, options: object, runs: str, document: Path) -> Iterator[Site]:
    """Open the site of a cluster with this scheduler and its options; `runs` is its folder of runs, `document` the cluster's file.

    Raises SiteError.
    """
    if isinstance(options, KubernetesOptions):
        yield _in_pods(options, runs)
    elif not isinstance(options, SlurmOptions):
        with _here(runs, scheduler == "slurm") as site:
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
    found = RunsHere(Path(shell.folder, folder))
    yield Site(found, Slurm(shell), _desks(shell, found, Here), shell) if is_slurm else Site(found, None, None)


def _desks(
    shell: CommandShell, runs: Runs, enter: Callable[[str], CommandShell]
) -> Callable[[Callable[[str], None], str | None], Submissions]:
    """Return what opens a desk; `enter` returns a shell for another folder of submission."""

    def desk(tell: Callable[[str], None], folder: str | None) -> Desk:
        chosen = shell if folder is None or folder == shell.folder else enter(folder)
        return Desk(Slurm(chosen), chosen, runs, tell)

    return desk


def _in_pods(options: KubernetesOptions, runs: str) -> Site:
    try:
        server = ApiServer(options.context, options.namespace)
    except NoApiServerError as error:
        raise SiteError(str(error)) from error
    path = os.environ.get("HEADWAY_RUNS") or runs
    jobsets = JobSets(server, path)
    found = RunsOfJobSets(server, jobsets, path, _cache())

    def desk(tell: Callable[[str], None], folder: str | None = None) -> JobSetDesk:
        return JobSetDesk(server, jobsets, found, tell)

    return Site(found, jobsets, desk, pods=desk(lambda text: None))


@contextmanager
def _there(login: Login, runs: str, document: Path) -> Iterator[Site]:
    if importlib.util.find_spec("paramiko") is None:
        raise SiteError("SSH needs paramiko; install headway with its extra `infra`")
    from headway.infra.ssh import as_ssh_would, connect  # noqa: PLC0415 (an extra)

    identity, known_hosts = (from_folder(document.parent, path) for path in (login.identity, login.known_hosts))
    named = Reach(login.host, login.host, login.port, login.user, identity, known_hosts, as_ssh=True)
    try:
        ssh = connect(as_ssh_would(login.host, named, login.jump))
    except SshError as error:
        raise SiteError(str(error)) from error
    with ssh:
        try:
            shell = There(ssh, login.folder, login.setup)
            path = str(PurePosixPath(shell.folder, runs_of_user(runs, shell.user)))
            runs_there = RunsThere(ssh, path, _cache())
            desks = _desks(shell, runs_there, lambda folder: There(ssh, folder, login.setup))
            yield Site(runs_there, Slurm(shell), desks, shell)
        except CommandError as error:
            raise SiteError(str(error)) from error


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "headway" / "runs"
