"""Defines a Pulumi resource per host: one only, since each call to the provider takes time, whatever it changes.

The engine starts this module in a separate process. The state contains how hosts were reached last; the current way
comes in the file that $HEADWAY_REACHES names, so other keys or another address change no state.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace
from pulumi import ResourceOptions
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from headway.infra.host import FileChange, HostFile, HostManifest, HostState, HostView, changes, is_file, manifest_from
from headway.infra.providers.onprem.converge import clear, converge, look
from headway.infra.reach import Reach
from headway.infra.ssh import connect

REACHES = "HEADWAY_REACHES"

Props = Mapping[str, Any]


class HostProvider(ResourceProvider):
    """Create, update and delete converge the host; read looks at it. The object has no attributes, so the state
    contains only its name."""

    serialize_as_secret_always = False

    def create(self, props: Props) -> CreateResult:
        return CreateResult(_last_reach(props).place, _converged(props))

    def update(self, _id: str, _olds: Props, news: Props) -> UpdateResult:
        return UpdateResult(_converged(news))

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return DiffResult(changes=bool(differences(olds, news)))

    def read(self, id_: str, props: Props) -> ReadResult:
        """Return the host's state. A host without anything of headway's is gone; one that does not answer is an error."""
        last = view_of(props)
        with connect(_reach(props)) as ssh:
            view = look(ssh, last.paths, last.units)
        if view.manifest is None and not any(is_file(found) for found in view.paths.values()):
            return ReadResult("", {})
        return ReadResult(id_, {**props, "view": to_builtins(view)})

    def delete(self, _id: str, props: Props) -> None:
        with connect(_reach(props)) as ssh:
            clear(ssh, props["cluster"])


class Host(Resource, module="headway", name="Host"):
    """The wanted state of a host. Its name is its place, so that a machine stays the same resource under another node's name."""

    def __init__(self, state: HostState, options: ResourceOptions | None = None) -> None:
        super().__init__(HostProvider(), state.reach.place, props_of(state), options)


def props_of(state: HostState) -> dict[str, Any]:
    """Return the state as plain JSON data, without the paths of our keys."""
    files = {path: {"text": file.text, "mode": f"{file.mode:04o}"} for path, file in state.files.items()}
    return {"cluster": state.cluster, **_place(state.reach), "files": files, "units": list(state.units)}


def state_of(props: Props) -> HostState:
    """Return the state from `props_of`."""
    files = {path: HostFile(file["text"], int(file["mode"], 8)) for path, file in props["files"].items()}
    return HostState(props["cluster"], _last_reach(props), files, tuple(props["units"]))


def view_of(props: Props) -> HostView:
    """Return the host's state at the last look."""
    view = props["view"]
    manifest = manifest_from(view["manifest"]) if view["manifest"] else None
    return HostView(view["paths"], view["units"], manifest, view["live"])


def differences(olds: Props, news: Props) -> list[FileChange]:
    """Return what an update changes: `olds` are the outputs of the last look, `news` the inputs."""
    found = changes(state_of(news), view_of(olds))
    renamed = _last_reach(olds) != _last_reach(news)
    return [*found, FileChange(str(_last_reach(news)), "renamed")] if renamed else found


def put_by(news: Props) -> list[FileChange]:
    """Return the changes of a new host."""
    return changes(state_of(news), HostView({}, {}, HostManifest(news["cluster"], {}), live=False))


def files_on(olds: Props) -> list[FileChange]:
    """Return the files to remove from a host."""
    manifest = view_of(olds).manifest
    return [] if manifest is None else [FileChange(path, "extra") for path in sorted(manifest.files)]


def reaches_text(reaches: Sequence[Reach], others: Reach) -> str:
    """Return how the provider's process is to reach each host, and those that only the state has (by `others`, at their
    own address)."""
    return json.dumps({"hosts": {reach.place: to_builtins(reach) for reach in reaches}, "others": to_builtins(others)})


def _converged(props: Props) -> dict[str, Any]:
    state = state_of(props)
    with connect(_reach(props)) as ssh:
        view = converge(ssh, state)
    return {"cluster": state.cluster, **_place(state.reach), "view": to_builtins(view)}


def _place(reach: Reach) -> Props:
    return {"name": reach.name, "address": reach.address, "port": reach.port, "user": reach.user}


def _last_reach(props: Props) -> Reach:
    # The engine passes a number as a float.
    return Reach(props["name"], props["address"], int(props["port"]), props["user"])


def _reach(props: Props) -> Reach:
    known, last = json.loads(Path(os.environ[REACHES]).read_text()), _last_reach(props)
    now, others = known["hosts"].get(last.place), known["others"]
    return Reach(**now) if now else replace(last, identity=others["identity"], known_hosts=others["known_hosts"])
