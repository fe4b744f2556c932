"""Manages a cluster's hosts as a Pulumi stack through its Automation API: preview, up, down."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from msgspec import Struct, field
from pulumi import automation as auto
from pulumi.automation.events import EngineEvent, StepEventMetadata

from headway.infra.host import FileChange, HostState
from headway.infra.program import program
from headway.infra.providers.onprem.provider import REACHES, differences, files_on, put_by, reaches_text
from headway.infra.reach import Reach

PROJECT = "headway"
TYPE = "pulumi-python:dynamic/headway:Host"
ENGINE = "https://www.pulumi.com/docs/iac/download-install/"

_PASSPHRASES = {"PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"}
_CHANGES = ("create", "update", "delete")
# The line of a traceback with headway's own exception; the text after it is for people.
_OUR_ERROR = re.compile(r"^headway\.[\w.]+Error: (.*)", re.MULTILINE | re.DOTALL)
_COLOUR = re.compile(r"<\{%.*?%\}>")

Progress = Callable[[str, str], None]


class StackError(Exception):
    """The engine failed; the message has the reason."""


class NoEngineError(StackError):
    """The engine is not on this machine."""


class HostChange(Struct, frozen=True):
    """The change of a host, made or previewed (`create`, `update`, `delete`), and the changes on it. `host` is its name
    for people."""

    host: str
    op: str
    changes: tuple[FileChange, ...]


class StackOutcome(Struct):
    """Changes and errors, by the place of the host, in order of arrival."""

    changes: dict[str, HostChange] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


class ClusterStack:
    """The stack of a cluster. Its state is in $PULUMI_BACKEND_URL, else in `.headway/pulumi` below `folder`, that of
    its file.

    `others` has the keys for hosts that are no longer the cluster's; hosts `without` stay unchanged.
    """

    def __init__(
        self, cluster: str, folder: Path, hosts: Sequence[HostState], others: Reach, without: Collection[str] = ()
    ) -> None:
        engine = shutil.which("pulumi")
        if engine is None:
            raise NoEngineError(f"Pulumi's engine, the program `pulumi`, is not on PATH; see {ENGINE} for how to install it")
        self.cluster = cluster
        work = _work_folder(folder)
        self._environment = _environment(work)
        self._here = {state.reach.place for state in hosts}
        self._excluded = [self._urn(state.reach.place) for state in hosts if state.name in without]
        # A file of this run alone: a parallel run, such as a preview, may be of a changed document.
        self._reaches = NamedTemporaryFile("w", dir=work, prefix="reaches-", suffix=".json")  # noqa: SIM115 (it goes with the stack)
        self._reaches.write(reaches_text([state.reach for state in hosts], others))
        self._reaches.flush()
        options = auto.LocalWorkspaceOptions(
            work_dir=str(work),
            env_vars={**self._environment, REACHES: self._reaches.name},
            project_settings=auto.ProjectSettings(name=PROJECT, runtime="python", main=str(work)),
        )
        with self._explained(_Watch(None, self._here)):
            self._stack = auto.create_or_select_stack(cluster, project_name=PROJECT, program=program(hosts), opts=options)

    def preview(self, progress: Progress | None = None, forgotten: Collection[str] = ()) -> StackOutcome:
        """Return what `up` would do after forgetting the hosts `forgotten`. Every other one is looked at, none is changed."""
        watch = _Watch(progress, self._here)
        excluded = [*self._excluded, *(resource["urn"] for resource in self._called(forgotten))]
        with self._explained(watch):
            self._stack.preview(refresh=True, exclude=excluded or None, on_event=watch)
        return watch.outcome

    def up(self, progress: Progress | None = None) -> StackOutcome:
        """Look at every host and converge it."""
        watch = _Watch(progress, self._here)
        with self._explained(watch):
            self._stack.up(refresh=True, exclude=self._excluded or None, continue_on_error=True, on_event=watch)
        return watch.outcome

    def down(self, progress: Progress | None = None) -> StackOutcome:
        """Remove headway's files from every host, and forget the stack when nothing is left."""
        watch = _Watch(progress, self._here)
        with self._explained(watch):
            self._stack.destroy(continue_on_error=True, on_event=watch)
        if not watch.outcome.failures:
            self._stack.workspace.remove_stack(self.cluster)
        return watch.outcome

    def hosts(self) -> dict[str, str]:
        """Return the state's hosts: place -> name of the node that it was."""
        found = {_host(resource["urn"]): _node(resource) for resource in self._resources()}
        return {place: name for place, name in found.items() if place is not None}

    def forget(self, hosts: Collection[str]) -> None:
        """Remove hosts that are gone for good from the state, by place or name, without touching them."""
        if not hosts:
            return
        state = self._stack.export_stack()
        gone = {resource["urn"] for resource in self._called(hosts)}
        kept = [resource for resource in self._resources() if resource["urn"] not in gone]
        with self._explained(_Watch(None, self._here)):
            self._stack.import_stack(auto.Deployment(state.version, {**(state.deployment or {}), "resources": kept}))

    def _called(self, hosts: Collection[str]) -> list[dict[str, Any]]:
        """Return the resources of hosts, by place or name. Of two with one name it is the one that is no longer of the
        cluster."""
        found = []
        for host in hosts:
            named = [each for each in self._resources() if host in {_host(each["urn"]), _node(each)} and _host(each["urn"])]
            gone = [each for each in named if _host(each["urn"]) not in self._here]
            found += gone or named
        return found

    def _urn(self, place: str) -> str:
        return f"urn:pulumi:{self.cluster}::{PROJECT}::{TYPE}::{place}"

    def _resources(self) -> list[dict[str, Any]]:
        return list((self._stack.export_stack().deployment or {}).get("resources") or [])

    @contextmanager
    def _explained(self, watch: "_Watch") -> Iterator[None]:
        """Turn the engine's failures into a StackError, except those of hosts, which belong to the outcome."""
        try:
            yield
        except auto.ConcurrentUpdateError as error:
            raise StackError(f"{_lock(str(error))}. {self._how_to_cancel()}") from error
        except auto.CommandError as error:
            if not watch.outcome.failures:
                raise StackError(_last_words(watch.complaints, str(error))) from error

    def _how_to_cancel(self) -> str:
        backend = shlex.quote(self._environment["PULUMI_BACKEND_URL"])
        command = f"PULUMI_BACKEND_URL={backend} pulumi cancel --yes --stack organization/{PROJECT}/{self.cluster}"
        return f"If no other `headway` is working on it, one was killed meanwhile: remove its lock with `{command}` and run this again"


class _Watch:
    """Collects the engine's events of the hosts; `here` are the places of the document's hosts."""

    def __init__(self, progress: Progress | None, here: Collection[str]) -> None:
        self.outcome = StackOutcome()
        self.complaints: list[str] = []
        self._progress, self._here = progress, here

    def __call__(self, event: EngineEvent) -> None:
        if event.resource_pre_event is not None:
            self._take(event.resource_pre_event.metadata)
        if event.res_outputs_event is not None:
            self._report(event.res_outputs_event.metadata)
        if event.diagnostic_event is not None and event.diagnostic_event.severity == "error":
            host = _host(event.diagnostic_event.urn or "")
            text = _COLOUR.sub("", event.diagnostic_event.message).strip()
            if host is None:
                self.complaints.append(text)
            else:
                self.outcome.changes.pop(host, None)
                self.outcome.failures[host] = _for_people(text)

    def _take(self, step: StepEventMetadata) -> None:
        host = _host(step.urn)
        if host is not None and step.op in _CHANGES:
            self.outcome.changes[host] = HostChange(self._name(host, step), str(step.op.value), _changes(step))

    def _report(self, step: StepEventMetadata) -> None:
        host = _host(step.urn)
        if host is not None and self._progress is not None:
            self._progress(self._name(host, step), str(step.op.value))

    def _name(self, place: str, step: StepEventMetadata) -> str:
        """Return the node's name; for a machine that has left, whose name another one may have now, its place too."""
        name = str(((step.new.inputs if step.new else None) or (step.old.outputs if step.old else None) or {}).get("name", place))
        return name if place in self._here else f"{name} ({place})"


def _changes(step: StepEventMetadata) -> tuple[FileChange, ...]:
    olds = (step.old.outputs if step.old else None) or {}
    news = (step.new.inputs if step.new else None) or {}
    match step.op.value:
        case "create":
            return tuple(put_by(news))
        case "delete":
            return tuple(files_on(olds))
    return tuple(differences(olds, news))


def _host(urn: str) -> str | None:
    """Return the host of a resource."""
    kind, name = urn.rsplit("::", 2)[-2:] if urn.count("::") >= 3 else ("", "")
    return name if kind == TYPE else None


def _node(resource: Mapping[str, Any]) -> str:
    """Return the node's name of a host at the last look."""
    return str((resource.get("outputs") or {}).get("name", ""))


def _for_people(text: str) -> str:
    found = _OUR_ERROR.findall(text)
    return found[-1].strip().splitlines()[0] if found else text


def _lock(text: str) -> str:
    found = re.search(r"the stack is currently locked by.*?(?=\n\s*\n|\Z)", text, re.DOTALL)
    return " ".join(found[0].split()).rstrip(".") if found else "another update of this cluster is in progress"


def _last_words(complaints: list[str], text: str) -> str:
    errors = [line.strip() for line in text.splitlines() if line.strip().startswith("error:")]
    words = [each.removeprefix("error:").strip() for each in (*complaints, *errors)]
    return "the engine exited with: " + ("; ".join(dict.fromkeys(words)) or text)


def _work_folder(folder: Path) -> Path:
    """Return `.headway/pulumi`, for this user only; git ignores it."""
    own = folder.absolute() / ".headway"
    work = own / "pulumi"
    try:
        work.mkdir(parents=True, exist_ok=True)
        own.chmod(0o700)
        (own / ".gitignore").write_text("*\n")
    except OSError as error:
        raise StackError(f"the state cannot be written to {work}: {error.strerror}") from error
    return work


def _environment(work: Path) -> Mapping[str, str]:
    """Return the engine's environment. Nothing in the state is secret, so there is no passphrase."""
    passphrase = {} if _PASSPHRASES & os.environ.keys() else {"PULUMI_CONFIG_PASSPHRASE": ""}
    return {
        **passphrase,
        "PULUMI_BACKEND_URL": os.environ.get("PULUMI_BACKEND_URL") or f"file://{work}",
        "PULUMI_PYTHON_CMD": sys.executable,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # Older plugins start the `python3` of PATH; it must be the one with headway.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
