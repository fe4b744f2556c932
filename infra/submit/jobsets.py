"""Submits runs to Kubernetes: a JobSet with the name of its run, and a ConfigMap of the same name that keeps its last submission.

The API server creates a name once and deletes an object by its uid, so a run never has two JobSets (DECISIONS.md, "On Kubernetes the API
server decides").
"""

import contextlib
import getpass
import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from msgspec import Struct

from headway.infra.submit.api_server import ApiRefusalError, ApiServer, ListedRow, Object
from headway.infra.submit.runs import RunsHere
from headway.infra.submit.scheduler import (
    Action,
    JobRefusedError,
    JobRequest,
    JobState,
    LastSubmission,
    NotDoneError,
    ScheduledJob,
    Submitted,
    TakenError,
)
from headway.infra.submit.shell import CommandError
from headway.infra.submit.submission import SETTLE_S, request_text
from headway.runner.contract import Exit, RunDirectory, SubmissionOutcome, parse_outcome, read_verdict

_JOBSET = "jobset.x-k8s.io/v1alpha2"
_MANAGED = "app.kubernetes.io/managed-by=headway"
_NAME_LABEL = "app.kubernetes.io/name"
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# Labels and annotations of a submission's objects.
RUN = "headway/run"
_NUMBER = "headway/submission"
_REQUEST = "headway/request"
_OUTCOME = "headway/outcome"
_ENDED = "headway/ended"
_USER = "headway/user"
_POD = re.compile(r"(?P<jobset>.+)-node-0-(?P<index>\d+)-[a-z0-9]{5}")
# kubectl's words for pods that have started.
_FAILED = ("Error", "OOMKilled")
_STARTED = ("Running", "Completed", "Terminating", *_FAILED)
_LOOK_EVERY_S = 0.5
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 15.0
_LISTED_FOR_S = 10.0
# Reasons that need a request each.
_MOST_REASONS = 20
_RECORDS = ("handle.json", "ledger.jsonl", "metrics.jsonl", "attempts", "shared", "secret", "report.html", "profiles")


class _Record(Struct, frozen=True):
    """The last submission of a run, as its ConfigMap has it."""

    run: str
    version: str
    number: int
    request: str
    outcome: SubmissionOutcome | None
    ended: str
    submitted_at: float


class JobSets:
    """The JobSets of headway in a namespace, as the verbs list them. A run's job has the JobSet's uid as its number."""

    kind = "kubernetes"

    def __init__(self, server: ApiServer, runs: str) -> None:
        self.server, self._runs = server, runs
        # By the uid, for JobSets that have failed.
        self._reasons: dict[str, str] = {}
        self.cancelled: Mapping[str, ScheduledJob] = {}
        """Jobs whose JobSet `headway cancel` has deleted, by their numbers; the runs' ConfigMaps have them."""

    def jobs(self, names: Collection[str] = (), numbers: Collection[str] = ()) -> list[ScheduledJob]:
        found = {job.number: job for job in self.listed(names)}
        gone = [job for job in self.cancelled.values() if job.number not in found and (not names or job.name in names)]
        return [job for job in (*found.values(), *gone) if not numbers or job.number in numbers]

    def listed(self, names: Collection[str] = ()) -> list[ScheduledJob]:
        """Return the jobs of the JobSets that exist: all, or those of these names."""
        query = {"labelSelector": f"{RUN}={next(iter(names))}" if self._is_one_run(names) else _MANAGED}
        rows = self.server.rows(self.server.group(_JOBSET, "jobsets"), query, with_metadata=True)
        pods = self._pods({_JOBSET_LABEL: next(iter(names))} if self._is_one_run(names) else {})
        found = [self._job(row.metadata, row.columns, pods.get(row.metadata["name"], {})) for row in rows]
        chosen = [job for job in found if not names or job.name in names]
        reasons = 0
        for at, job in enumerate(chosen):
            if job.state is JobState.PENDING or job.word == "FAILED":
                reasons += job.number not in self._reasons
                if reasons <= _MOST_REASONS:
                    chosen[at] = self._explained(job, pods.get(jobset_name(job), {}))
        return chosen

    def ended(self, number: str) -> ScheduledJob | None:
        """None: a JobSet that was deleted is in no list, and the run's records have its verdict."""
        return None

    @staticmethod
    def _is_one_run(names: Collection[str]) -> bool:
        # One that `headway submit` has named; a JobSet that was applied by hand has no such label.
        return len(names) == 1 and next(iter(names)).rpartition("-")[2].isdecimal()

    def _pods(self, labels: Mapping[str, str]) -> dict[str, dict[int, Mapping[str, str]]]:
        """Return the columns of pods, by JobSet and index; of two of an index the one that runs."""
        selector = ",".join([_MANAGED, *(f"{key}={value}" for key, value in labels.items())])
        found: dict[str, dict[int, Mapping[str, str]]] = {}
        for row in self.server.rows(self.server.core("pods"), {"labelSelector": selector}, with_metadata=False):
            if match := _POD.fullmatch(row.columns["name"]):
                of = found.setdefault(match["jobset"], {})
                if of.get(int(match["index"]), {}).get("status") != "Running":
                    of[int(match["index"])] = row.columns
        return found

    def _job(self, metadata: Object, columns: Mapping[str, str], pods: Mapping[int, Mapping[str, str]]) -> ScheduledJob:
        labels, uid = metadata.get("labels", {}), metadata["uid"]
        # A JobSet that was applied by hand is a run of its own.
        run = labels.get(RUN) or f"{metadata['name']}-{uid.replace('-', '')}"
        place = str(PurePosixPath(self._runs, run, "submissions", labels.get(_NUMBER, "0")))
        nodes = ",".join(pods[index]["node"] for index in sorted(pods) if pods[index].get("node") not in (None, "", "<none>"))
        state, word, reason = _state(metadata, columns, pods)
        user = metadata.get("annotations", {}).get(_USER, "")
        return ScheduledJob(uid, run, user, state, word, reason, nodes, place)

    def _explained(self, job: ScheduledJob, pods: Mapping[int, Mapping[str, str]]) -> ScheduledJob:
        """Return the job with the reason that the API server has for its state."""
        if job.word == "FAILED" and job.number not in self._reasons:
            self._reasons[job.number] = self._failed_by(job, pods)
        why = self._reasons.get(job.number, "") if job.word == "FAILED" else self._waits_for(job, pods)
        return ScheduledJob(job.number, job.name, job.user, job.state, job.word, why or job.reason, job.nodes, job.place)

    def _failed_by(self, job: ScheduledJob, pods: Mapping[int, Mapping[str, str]]) -> str:
        """Return how a pod has ended, and what it printed last; without one what JobSet has recorded."""
        for index, pod in sorted(pods.items()):
            if pod["status"] in _FAILED:
                status = (self.server.get(self.server.core("pods", pod["name"])) or {}).get("status", {})
                for container in status.get("containerStatuses", []):
                    if ended := container["state"].get("terminated"):
                        printed = ended.get("message", "").strip().splitlines()
                        last = f": {printed[-1]}" if printed else ""
                        return f"pod {index} ended with exit code {ended['exitCode']}{last}"
        found = self.server.get(self.server.group(_JOBSET, "jobsets", jobset_name(job))) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((str(each["message"]) for each in conditions if each["type"] == "Failed"), "")

    def _waits_for(self, job: ScheduledJob, pods: Mapping[int, Mapping[str, str]]) -> str:
        waiting = {index: pod for index, pod in pods.items() if pod["status"] not in _STARTED}
        if pods and not waiting:
            return ""
        if not pods:
            # The Job's events say why it makes no pods, for example Pod Security or a quota.
            selector = f"involvedObject.kind=Job,involvedObject.name={jobset_name(job)}-node-0,reason=FailedCreate"
            events = self.server.rows(self.server.core("events"), {"fieldSelector": selector}, with_metadata=False)
            return events[-1].columns.get("message", "") if events else ""
        index, pod = min(waiting.items())
        status = (self.server.get(self.server.core("pods", pod["name"])) or {}).get("status", {})
        messages = [each.get("message", "") for each in status.get("conditions", []) if each.get("reason") == "Unschedulable"]
        messages += [
            f"{each['state']['waiting'].get('reason', '')}: {each['state']['waiting'].get('message', '')}".strip(": ")
            for each in status.get("containerStatuses", [])
            if each["state"].get("waiting")
        ]
        counted = f"{len(waiting)} of {len(pods)} pods wait" if len(pods) > 1 else "the pod waits"
        return f"{counted}, pod {index}: {messages[0] if messages else pod['status']}"


def jobset_name(job: ScheduledJob) -> str:
    """Return the name of a job's JobSet: its run's, or for one that was applied by hand its run's without the uid."""
    return job.name.removesuffix(f"-{job.number.replace('-', '')}")


def _state(metadata: Object, columns: Mapping[str, str], pods: Mapping[int, Mapping[str, str]]) -> tuple[JobState, str, str]:
    if metadata.get("deletionTimestamp"):
        return JobState.ENDING, "DELETING", "its pods save and end"
    if terminal := columns.get("terminalstate"):
        return JobState.ENDED, terminal.upper(), ""
    if columns.get("suspended", "").lower() == "true":
        if queue := metadata.get("labels", {}).get(_QUEUE_LABEL):
            return JobState.PENDING, "SUSPENDED", f"Kueue has not admitted it from the queue `{queue}`"
        return JobState.HELD, "SUSPENDED", ""
    if pods and all(pod["status"] in _STARTED for pod in pods.values()):
        return JobState.RUNNING, "RUNNING", ""
    return JobState.PENDING, "PENDING", "" if pods else "it has no pods yet"


class RunsOfJobSets:
    """The runs of a namespace: those that its ConfigMaps and JobSets name, and those whose directory this machine sees at `path`.

    `cache` is a folder of this machine, where a run's submission and links to its records are put together.
    """

    def __init__(
        self, server: ApiServer, jobsets: JobSets, path: str, cache: Path, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.path, self._server, self._jobsets, self._now = path, server, jobsets, now
        place = hashlib.sha256(f"{server.address} {server.namespace} {path}".encode()).hexdigest()[:16]
        self._cache = cache / place
        self._here = RunsHere(Path(path)) if Path(path).is_dir() else None
        self._known: dict[str, _Record] = {}
        self._by_hand: tuple[str, ...] = ()
        self._listed_at: float | None = None

    @property
    def has_records(self) -> bool:
        return self._here is not None

    def names(self) -> list[str]:
        found = {name: record.submitted_at for name, record in self._listed().items()}
        if self._here is not None:
            found |= {name: (Path(self.path) / name).stat().st_mtime for name in self._here.names()}
        newest = sorted(found, key=lambda name: (found[name], name), reverse=True)
        return [*newest, *(name for name in self._by_hand if name not in found)]

    def fetch(self, name: str, whole: bool = False) -> RunDirectory:
        record = self._listed().get(name)
        if record is None:
            return RunDirectory((self._cache if self._here is None else Path(self.path)) / name)
        directory = RunDirectory(self._cache / name)
        place = directory.submissions / str(record.number)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in directory.submission_numbers():
            if number != record.number:
                for file in (directory.submissions / str(number)).glob("*"):
                    file.unlink(missing_ok=True)
                (directory.submissions / str(number)).rmdir()
        directory.request(record.number).write_text(record.request)
        if record.outcome is not None:
            directory.outcome(record.number).write_text(str(record.outcome))
        else:
            directory.outcome(record.number).unlink(missing_ok=True)
        for record_name in _RECORDS if self._here is not None else ():
            with contextlib.suppress(FileExistsError):
                (directory.root / record_name).symlink_to(Path(self.path) / name / record_name)
        return directory

    def read(self, path: str, start: int, length: int = -1) -> tuple[bytes, int]:
        return (b"", 0) if self._here is None else self._here.read(path, start, length)

    def files(self, path: str) -> list[str]:
        found = [] if self._here is None else self._here.files(path)
        is_known = path in self._listed() or path in self._by_hand
        return sorted({*found, *(["submissions"] if is_known else [])})

    def record(self, run: str) -> _Record | None:
        """Return the run's last submission as its ConfigMap has it now; None without one."""
        self._listed_at = None
        return self._listed().get(run)

    def _listed(self) -> Mapping[str, _Record]:
        if self._listed_at is None or self._now() - self._listed_at > _LISTED_FOR_S:
            # The label exists only on what `headway submit` has made.
            found = [_record(each) for each in self._server.metadata(self._server.core("configmaps"), RUN)]
            self._known = {each.run: each for each in found if each is not None}
            self._by_hand = tuple(job.name for job in self._jobsets.listed() if job.name not in self._known)
            ended = (each for each in self._known.values() if each.ended and each.outcome is not None and each.outcome.job)
            self._jobsets.cancelled = {job.number: job for job in map(self._cancelled, ended)}
            self._listed_at = self._now()
        return self._known

    def _cancelled(self, record: _Record) -> ScheduledJob:
        number = record.outcome.job if record.outcome is not None and record.outcome.job else ""
        place = str(PurePosixPath(self.path, record.run, "submissions", str(record.number)))
        return ScheduledJob(number, record.run, "", JobState.ENDED, record.ended.upper(), place=place)


def _record(metadata: Object) -> _Record | None:
    notes, run = metadata.get("annotations", {}), metadata.get("labels", {}).get(RUN, "")
    try:
        request = json.loads(notes[_REQUEST])
        number, at = int(notes[_NUMBER]), float(request["submitted_at"])
        outcome = parse_outcome(f"{notes[_OUTCOME]}\n", run) if _OUTCOME in notes else None
    except (KeyError, TypeError, ValueError):
        return None
    return _Record(run, metadata["resourceVersion"], number, notes[_REQUEST], outcome, notes.get(_ENDED, ""), at)


class JobSetDesk(Struct, frozen=True):
    """Where runs of Kubernetes are submitted, cancelled and resumed; the methods are those of `Submissions` (scheduler.py)."""

    server: ApiServer
    jobsets: JobSets
    runs: RunsOfJobSets
    tell: Callable[[str], None]
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def test(self, request: JobRequest) -> str:
        """Have the API server check the JobSet, and the Job and a pod that its controllers would make of it, without keeping them."""
        jobset = self._manifest(request)
        job = jobset["spec"]["replicatedJobs"][0]
        name = f"{request.run}-{job['name']}-0"
        template = job["template"]["spec"]["template"]
        tried = (
            (self.server.group(_JOBSET, "jobsets"), jobset),
            (self.server.group("batch/v1", "jobs"), {"metadata": {"name": name}, **job["template"]}),
            (self.server.core("pods"), {"metadata": {"name": f"{name}-0-test"}, "spec": template["spec"]}),
        )
        untested = []
        for path, body in tried:
            try:
                self.server.create(path, body, dry_run=True)
            except ApiRefusalError as error:
                kind = path.rpartition("/")[2]
                if error.reason == "AlreadyExists":
                    continue
                if error.status == 403 and f'cannot create resource "{kind}"' in str(error) and kind != "jobsets":
                    # Users may create JobSets and nothing else; then the controllers find out.
                    untested.append(kind)
                    continue
                raise JobRefusedError(str(error)) from error
        pods = job["template"]["spec"]["parallelism"]
        omitted = f"; you may not create {' and '.join(untested)}, so these were not tested" if untested else ""
        counted = "1 pod" if pods == 1 else f"{pods} pods"
        return f"{self.server.address} accepts the job: {counted} in the namespace `{self.server.namespace}`{omitted}"

    def live_job(self, run: str) -> ScheduledJob | None:
        """Return the job that has the run; None if there is none. Settles an interrupted submission first. Raises CommandError."""
        record = self.runs.record(run)
        job = self._job(run)
        if record is not None and record.outcome is None:
            self._settle(record, job)
        return job if job is not None and job.is_live else None

    def job_to_come(self, run: str) -> ScheduledJob | None:
        """Return the run's live job; waits for the end of one that is ending. Raises CommandError."""
        job = self.live_job(run)
        if job is None or job.state is not JobState.ENDING:
            return job
        self.tell(f"waiting for the pods of run `{run}`, which save and end")
        self.wait_for_end(job)
        return self.live_job(run)

    def wait_for_end(self, job: ScheduledJob) -> None:
        """Return when the job has ended and its pods are gone. Raises CommandError."""
        wait_s = _FIRST_WAIT_S
        while any(each.number == job.number and each.is_live for each in self.jobsets.jobs(names=[job.name])):
            self.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def request(self, run: str, number: int, script: str) -> JobRequest:
        """Return the request of a run's submission; the script is the rendered manifest."""
        return JobRequest(run, number, str(PurePosixPath(self.runs.path, run, "submissions", str(number))), script, {})

    def command(self, request: JobRequest) -> str:
        """Return the command of kubectl that creates what `submit` creates."""
        return self.server.kubectl("create", "-f", "-", f" # the manifest, as JobSet {request.run}")

    def submit(self, request: JobRequest, described: Mapping[str, str]) -> Submitted:
        """Create the run's JobSet, in the place of one that has ended. Raises TakenError, JobRefusedError, CommandError."""
        record = self.runs.record(request.run)
        if record is not None and record.number >= request.number:
            raise TakenError(f"submission {request.number} of run `{request.run}` was made by another client")
        self._keep(request, record, described)
        self._remove_ended(request.run)
        try:
            made = self.server.create(self.server.group(_JOBSET, "jobsets"), self._manifest(request))
        except ApiRefusalError as error:
            if error.reason == "AlreadyExists":
                raise TakenError(f"run `{request.run}` was given a job by another client") from error
            self._note(request.run, _OUTCOME, str(SubmissionOutcome("refused", " ".join(str(error).split()))).strip())
            raise JobRefusedError(str(error)) from error
        except CommandError as error:
            self.tell(f"{error}; waiting up to {SETTLE_S:g} s for the JobSet to appear")
            made = {"metadata": {"uid": self._appeared(request).number}}
        uid = made["metadata"]["uid"]
        self._note(request.run, _OUTCOME, str(SubmissionOutcome("job", uid)).strip())
        return Submitted(request.run, uid, request.number, is_new=True)

    def cancel(self, job: ScheduledJob) -> Action:
        name = jobset_name(job)

        def run() -> None:
            try:
                self.server.delete(self.server.group(_JOBSET, "jobsets", name), job.number)
            except ApiRefusalError as error:
                if error.status != 404:
                    raise NotDoneError(f"JobSet `{name}` is not deleted: {error}") from error
            if self.runs.record(job.name) is not None:
                self._note(job.name, _ENDED, "cancelled")

        return Action(self.server.kubectl("delete", "jobset", name, "--cascade=foreground"), run)

    def release(self, job: ScheduledJob) -> Action:
        name = jobset_name(job)

        def run() -> None:
            try:
                self.server.patch(self.server.group(_JOBSET, "jobsets", name), {"spec": {"suspend": False}})
            except ApiRefusalError as error:
                raise NotDoneError(f"JobSet `{name}` is still suspended: {error}") from error

        shown = self.server.kubectl("patch", "jobset", name, "--type=merge", "-p", """'{"spec": {"suspend": false}}'""")
        return Action(shown, run)

    def last_submission(self, run: str) -> LastSubmission | None:
        found = self.server.get(self.server.core("configmaps", run))
        record = None if found is None or RUN not in found["metadata"].get("labels", {}) else _record(found["metadata"])
        if found is None or record is None:
            return None
        return LastSubmission(record.number, found["data"]["job.yaml"], json.loads(record.request))

    def has_begun(self, run: str) -> bool:
        """Return whether an attempt of the run has begun; without its records, whether its last submission had a job."""
        directory, record = self.runs.fetch(run), self.runs.record(run)
        if self.runs.has_records or record is None:
            return bool(directory.attempt_numbers())
        return record.outcome is not None and record.outcome.job is not None

    def has_completed(self, run: str) -> bool:
        directory = self.runs.fetch(run)
        verdict = read_verdict(directory.at(max(directory.attempt_numbers(), default=0)))
        if verdict is not None:
            return verdict.exit_code == Exit.COMPLETED
        job = self._job(run)
        return job is not None and job.word == "COMPLETED"

    def pods_to_read(self, run: str, rank: int) -> tuple[list[ListedRow], ListedRow | None]:
        """Return kubectl's columns of the run's pods that have failed, and of the pod that has the rank where no spare has taken its place;
        None without one. Raises CommandError."""
        job = self._job(run)
        name = run if job is None else jobset_name(job)
        found = self.server.get(self.server.group(_JOBSET, "jobsets", name))
        if found is None:
            return [], None
        template = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        config = json.loads(template["metadata"]["annotations"]["headway/run.json"])
        index = str(rank // config["procs_per_slot"])
        pods = self.server.rows(self.server.core("pods"), {"labelSelector": f"{_JOBSET_LABEL}={name}"}, with_metadata=False)
        matched = [(match["index"], pod) for pod in pods if (match := _POD.fullmatch(pod.columns["name"]))]
        failed = [pod for _, pod in matched if pod.columns["status"] in _FAILED]
        return failed, next((pod for at, pod in matched if at == index), None)

    def log(self, pod: ListedRow, lines: int, follow: bool = False) -> Iterator[bytes]:
        """Yield the last lines that the pod's runner has printed, and with `follow` what is added until the pod ends. Raises
        ApiRefusalError for a pod that has not started, CommandError."""
        wanted = [("container", "runner"), ("tailLines", str(lines)), *([("follow", "true")] if follow else [])]
        return self.server.text(self.server.core("pods", pod.columns["name"], "log"), wanted)

    def _job(self, run: str) -> ScheduledJob | None:
        return next(iter(self.jobsets.listed([run])), None)

    def _settle(self, record: _Record, job: ScheduledJob | None) -> None:
        """Note the outcome of a submission whose client has ended before it did."""
        is_its = job is not None and PurePosixPath(job.place).name == str(record.number)
        outcome = SubmissionOutcome("job", job.number) if job is not None and is_its else None
        outcome = outcome or SubmissionOutcome("void", "the client ended before it created the JobSet")
        self._note(record.run, _OUTCOME, str(outcome).strip(), record.version)

    def _keep(self, request: JobRequest, record: _Record | None, described: Mapping[str, str]) -> None:
        kept = request_text(request, getpass.getuser(), str(Path.cwd()), self.command(request), described)
        notes = {_NUMBER: str(request.number), _REQUEST: kept}
        labels = {**dict([_MANAGED.split("=")]), RUN: request.run}
        metadata: Object = {"name": request.run, "labels": labels, "annotations": notes}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"job.yaml": request.script}}
        try:
            if record is None:
                self.server.create(self.server.core("configmaps"), body)
            else:
                metadata["resourceVersion"] = record.version
                self.server.replace(self.server.core("configmaps", request.run), body)
        except ApiRefusalError as error:
            if error.status == 409:
                raise TakenError(f"submission {request.number} of run `{request.run}` was made by another client") from error
            raise JobRefusedError(str(error)) from error

    def _note(self, run: str, key: str, value: str, version: str | None = None) -> None:
        """Set an annotation of the run's ConfigMap; with a version only if it has not been changed since."""
        metadata: Object = {"annotations": {key: value}, **({} if version is None else {"resourceVersion": version})}
        try:
            self.server.patch(self.server.core("configmaps", run), {"metadata": metadata})
        except ApiRefusalError as error:
            if error.status not in (404, 409):
                raise
        self.runs.record(run)

    def _remove_ended(self, run: str) -> None:
        """Delete the JobSet of the run that has ended, whose name the next one needs. Raises TakenError if it has not ended."""
        job = self._job(run)
        if job is not None and job.is_live and job.state is not JobState.ENDING:
            raise TakenError(f"run `{run}` was given a job by another client")
        if job is not None:
            with contextlib.suppress(ApiRefusalError):
                self.server.delete(self.server.group(_JOBSET, "jobsets", run), job.number)
        while self._job(run) is not None:
            self.sleep(_LOOK_EVERY_S)

    def _appeared(self, request: JobRequest) -> ScheduledJob:
        since = self.now()
        while True:
            with contextlib.suppress(CommandError):
                job = self._job(request.run)
                if job is not None and job.place == request.place:
                    return job
            if self.now() - since >= SETTLE_S:
                raise CommandError(
                    f"{self.server.address} has not answered whether it has JobSet `{request.run}`; run the command again"
                )
            self.sleep(_LOOK_EVERY_S)

    def _manifest(self, request: JobRequest) -> Object:
        """Return the rendered manifest under the run's name."""
        found: Object = yaml.safe_load(request.script)
        name = found["metadata"]["name"]
        metadata = found["metadata"]
        metadata["name"] = request.run
        metadata["labels"] |= {RUN: request.run, _NUMBER: str(request.number)}
        metadata["annotations"] = {**metadata.get("annotations", {}), _USER: getpass.getuser()}
        found["spec"]["network"]["subdomain"] = request.run
        template = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        template["metadata"]["labels"][RUN] = request.run
        for term in template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]:
            matched = term["labelSelector"].get("matchLabels", {})
            if matched.get(_JOBSET_LABEL) == name:
                matched[_JOBSET_LABEL] = request.run
        runner: Any = next(each for each in template["spec"]["containers"] if each["name"] == "runner")
        runner["env"].insert(0, {"name": "HEADWAY_RUN", "value": request.run})
        return found
