"""Starts a planned job as processes of this machine, one supervisor per slot and spare, and signals its workers on request."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from msgspec import Struct

from headway.infra.submit.libraries import lacking_to_run
from headway.infra.submit.parent import ending_with_parent
from headway.infra.submit.resuming import differs, next_number
from headway.infra.submit.secrets import find_secrets
from headway.jobspec.json_text import json_text
from headway.jobspec.plan import JobPlan, to_json
from headway.runner.contract import ATTEMPT_TAKEN, HeartbeatPage, RunDirectory, read_verdict, settled

LOOPBACK = "127.0.0.1"


class LocalError(Exception):
    """This machine cannot run the job; the message has the reason."""


class Kill(Struct, frozen=True):
    """Sends SIGKILL to the worker of `rank` once its heartbeat shows `step` completed steps."""

    rank: int
    step: int


class LocalRun(Struct):
    """A run on this machine: the directory of its attempt, and one supervisor process per slot and spare."""

    directory: RunDirectory
    supervisors: list[subprocess.Popen[bytes]]
    procs_per_slot: int

    @property
    def alive(self) -> bool:
        return any(supervisor.poll() is None for supervisor in self.supervisors)

    def exit_code(self) -> int:
        """Return the verdict's exit code, or without a verdict the supervisors' codes; all must have ended."""
        codes = [supervisor.wait() for supervisor in self.supervisors]
        verdict = read_verdict(self.directory)
        return max(map(settled, codes)) if verdict is None else verdict.exit_code

    def end(self) -> None:
        """End every slot at once; its processes end with its supervisor."""
        for supervisor in self.supervisors:
            supervisor.kill()

    def interrupt(self) -> None:
        """Ask every slot to save and stop."""
        for supervisor in self.supervisors:
            if supervisor.poll() is None:
                supervisor.send_signal(signal.SIGTERM)

    def kill(self, fault: Kill) -> bool:
        """Inject `fault` if its step has come. Returns True when it is done."""
        slot, local_rank = divmod(fault.rank, self.procs_per_slot)
        words = self._heartbeat(slot, local_rank)
        if words is None or words["step"] < fault.step or not words["pid"]:
            return False
        try:
            os.kill(words["pid"], signal.SIGKILL)
        except ProcessLookupError:
            # Another cause ended it; its successor will reach the step.
            return False
        return True

    def _heartbeat(self, slot: int, local_rank: int) -> dict[str, int] | None:
        """Return the rank's line of its node's page; None before the supervisor has published it or after it has gone."""
        try:
            page = Path(json.loads(self.directory.node(slot).read_text())["heartbeat"]).read_bytes()
        except OSError:
            return None
        return HeartbeatPage(memoryview(page)).read(local_rank)


def start(plan: JobPlan, runs: Path, resume: str | None = None) -> LocalRun:
    """Create the run's directory, or resume `resume`, and start every slot and spare here. Raises LocalError."""
    _check_machine(plan)
    try:
        secrets = find_secrets(plan.secrets, os.environ)
    except LookupError as error:
        raise LocalError(str(error)) from None
    stem = f"{plan.run_stem}-"
    name = _resumed(runs, plan, resume) if resume else f"{stem}{next_number(stem, [path.name for path in runs.glob(f'{stem}*')])}"
    attempt = RunDirectory(runs / name).next_attempt()
    # Another process took it at the same moment.
    while (run_json := _open(plan, runs, name, attempt)) is None:
        if resume:
            raise LocalError(f"run `{name}` has just been resumed by another process")
        name = f"{stem}{next_number(stem, [path.name for path in runs.glob(f'{stem}*')])}"
    hosts = ",".join([LOOPBACK] * plan.nodes)
    environment = {**os.environ, **secrets, **{variable.name: variable.value for variable in plan.env}, "HEADWAY_NODES": hosts}
    prepare = [] if plan.preparation is None else ["sh", "-c", plan.preparation, "sh"]
    command = [*prepare, sys.executable, "-m", "headway.runner", str(run_json), "--attempt", str(attempt), "--node"]
    # In separate sessions: an interrupt at the terminal comes to this process, which asks them to save and stop. No
    # thread runs yet.
    own = {"env": environment, "start_new_session": True, "preexec_fn": ending_with_parent()}
    supervisors = [subprocess.Popen([*command, str(node)], **own) for node in range(plan.nodes)]  # type: ignore[call-overload]
    return LocalRun(RunDirectory.of(run_json, attempt), supervisors, plan.procs_per_slot)


def _check_machine(plan: JobPlan) -> None:
    if plan.backend == "nccl":
        there, needed = len(list(Path("/dev").glob("nvidia[0-9]*"))), plan.nodes * plan.gpus_per_slot
        if there < needed:
            raise LocalError(f"`{plan.name}` on `{plan.cluster}` needs {needed} GPUs, but this machine has {there}")
    if lacking := lacking_to_run():
        raise LocalError(lacking)
    script, *_ = plan.run.trainer.options.get("argv", ["-m"])
    # A command is looked for on PATH, which the set-up may change.
    is_script = plan.run.trainer.options.get("python") is not False and script != "-m"
    if is_script and not Path(script).is_file():
        raise LocalError(f"there is no file `{script}` in `{Path.cwd()}`, where the job is submitted from")


def _resumed(runs: Path, plan: JobPlan, run: str) -> str:
    """Return the name of the run to resume, which may be given as its path. Raises LocalError if the job is no longer
    the run's."""
    name = Path(run).name
    directory = RunDirectory(runs / name)
    if not directory.handle.is_file():
        raise LocalError(f"there is no run `{name}` below `{runs}`")
    if why := differs(directory, plan):
        raise LocalError(why)
    return name


def _open(plan: JobPlan, runs: Path, name: str, attempt: int) -> Path | None:
    """Return the attempt's run.json; None when the attempt belongs to another process."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as spec:
        spec.write(json_text(plan.kept_spec))
        spec.flush()
        command = [sys.executable, "-m", "headway.runner.rundir", "open", str(runs), name, "--attempt", str(attempt)]
        command += ["--spec", spec.name]
        done = subprocess.run(command, input=to_json(plan.run), capture_output=True, text=True, check=False)
    if done.returncode == ATTEMPT_TAKEN:
        return None
    if done.returncode:
        raise LocalError(f"`{runs / name}` cannot be created: {done.stderr.strip().splitlines()[-1]}")
    return Path(done.stdout.strip())
