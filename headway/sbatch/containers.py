"""Turns the options of containers (pyxis, Apptainer, enroot) into an image, mounts and variables of a job."""

import re
from typing import Any

from msgspec import Struct, field

from headway.jobspec.check.job import HOW_TO_PIN, is_image_file, not_pinned
from headway.sbatch.expand import HERE
from headway.sbatch.launch import Launch
from headway.sbatch.notes import NoteKind, Notes
from headway.sbatch.options import Option
from headway.sbatch.text import Text, text

_MOUNTS = ("container-mounts", "bind", "mount", "B")
_ENVIRONMENT = ("env", "e")
_WORKDIRS = ("container-workdir", "pwd", "cwd")
_APPTAINER = "apptainer"
# Without them Apptainer mounts the user's home.
_WITHOUT_HOME = ("no-home", "contain", "containall", "compat", "home")
_NO_HOME = "the container has a home of the run in place of the user's: add what the training reads in yours to `mounts`"
_INHERITED = (
    "a job's container gets the variables of the submission and has the devices and the /tmp of the node; a line `unset NAME` in `setup` "
    "removes a variable"
)
# Options of `apptainer exec` that a job does not have.
_UNREAD = {
    "env-file": "variables of a job are in `environment`",
    "home": _NO_HOME,
    "app": "an app of the image: write its command",
    "net": "the ranks need the network of the node",
    "network": "the ranks need the network of the node",
}
_SETTINGS = re.compile(r"(?:APPTAINER|SINGULARITY)_(\w+)")
_BINDS = ("BIND", "BINDPATH")
_REPLACED = {
    "no-container-mount-home": "headway mounts no home",
    "nv": "headway shows the GPUs to the container",
    "rocm": "headway shows the GPUs to the container",
    "nvccli": "headway shows the GPUs to the container",
    "container-name": "`image_cache` of the cluster keeps an image on each node",
    "no-home": "headway mounts no home",
    "no-eval": "headway hands variables over unchanged",
    "disable-cache": "`image_cache` of the cluster keeps an image on each node",
    "rw": "headway's containers can be written to",
    "container-writable": "headway's containers can be written to",
    "container-image": "",
    "e": "the container gets the variables of the job",
}
_SCHEMES = ("docker://", "oras://", "library://", "shub://")


class Container(Struct):
    """A job's container. `targets` are places in it where the script has the folder of the submission."""

    runtime: str = ""
    image: str | None = None
    mounts: list[dict[str, Any]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """The line of each mount."""
    environment: dict[str, Text] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    unpinned: str | None = None
    further: list[str] = field(default_factory=list)
    """Options of `apptainer exec` that a job may have."""


def container_of(launch: Launch, extra: dict[str, Option], notes: Notes) -> Container:
    """Read the container of a command; `extra` are options of pyxis that the script gives to sbatch."""
    found = Container(launch.container)
    options = [*extra.values(), *(launch.container_options.options if launch.container_options else ())]
    image = launch.image
    if image is None and "container-image" in extra:
        found.runtime, image = "pyxis", extra["container-image"].value
    if not found.runtime:
        of_srun = () if launch.srun is None else launch.srun.options
        for option in [*extra.values(), *(each for each in of_srun if each.name.startswith(("container", "no-container")))]:
            notes.add(NoteKind.UNREAD, option.line, option.written, "an option for a container, and no image")
        return found
    of_sbatch = extra.get("container-image")
    _read_image(found, image, launch.line if launch.image is not None or of_sbatch is None else of_sbatch.line, notes)
    # Mounts first: the working directory may be one.
    for option in sorted(options, key=lambda each: each.name not in _MOUNTS):
        _read_option(found, option, option.line or launch.line, notes)
    if found.runtime == _APPTAINER and not {option.name for option in options} & set(_WITHOUT_HOME):
        notes.add(NoteKind.CHECK, launch.line, f"{_APPTAINER} exec", _NO_HOME)
    if found.image is None and found.mounts:
        for mount, line in zip(found.mounts, found.lines, strict=True):
            notes.add(
                NoteKind.UNREAD, line, f"{mount['source']}:{mount.get('target', mount['source'])}", "a mount, without the image"
            )
        found.mounts = []
    return found


def take_settings(found: Container, exports: dict[str, tuple[Text, int]], notes: Notes) -> None:
    """Take Apptainer's own variables from those of the script: mounts, and settings that a job does not have."""
    for name in [name for name in exports if found.runtime == _APPTAINER and _SETTINGS.fullmatch(name)]:
        value, line = exports.pop(name)
        if _SETTINGS.fullmatch(name)[1] in _BINDS and found.image is not None:  # type: ignore[index]
            for mount in value.split(","):
                _read_mount(found, mount, line, notes)
        else:
            why = "a setting of Apptainer: export it in `scheduler.options.setup` of the cluster, if it is to stay"
            notes.add(NoteKind.UNREAD, line, f"export {name}={value.shown}", why)


def folders_of(launch: Launch) -> dict[str, str]:
    """Return the places in a command's container where it has the folder of the submission."""
    found = Container()
    options = launch.container_options.options if launch.container_options else ()
    for option in options:
        if option.name in _MOUNTS:
            for mount in option.value.split(","):
                _read_mount(found, mount, 0, Notes())
    return found.targets


def _read_image(found: Container, image: Text | None, line: int, notes: Notes) -> None:
    if image is None:
        notes.add(NoteKind.UNREAD, line, "", "a container without an image")
        return
    name: str | None = image.literal
    if name is None and all(reference.name in HERE for reference in image.references):
        name = re.sub(r"^\./", "", image.known or "")
        name = name if "/" in name or is_image_file(name) else f"./{name}"
    if name is None:
        missing = ", ".join(f"`--set {reference.name}=VALUE`" for reference in image.references if reference.name)
        notes.add(
            NoteKind.UNREAD,
            line,
            image.shown,
            f"the image has a variable that the script does not set: {missing or 'set `code.image`'}",
        )
        return
    is_in_registry = name.startswith(_SCHEMES)
    for scheme in _SCHEMES:
        name = name.removeprefix(scheme)
    if found.runtime == _APPTAINER and not is_in_registry and not is_image_file(name):
        # A folder with a root file system.
        name = f"./{name}"
    if not re.fullmatch(r"[A-Za-z0-9./_][-A-Za-z0-9._/:@#+]*", name):
        notes.add(NoteKind.UNREAD, line, image.shown, "not a name of an image; set `code.image`")
    elif why := not_pinned(name):
        found.unpinned = name
        notes.add(NoteKind.UNREAD, line, image.shown, f"{why}; {HOW_TO_PIN}")
    else:
        found.image = name


def _read_option(found: Container, option: Option, line: int, notes: Notes) -> None:
    if option.name in _MOUNTS:
        is_bind = option.name != "mount" or found.runtime != _APPTAINER
        for mount in option.value.split(",") if is_bind else [_as_bind(option.value)]:
            _read_mount(found, mount, line, notes)
    elif option.name in _ENVIRONMENT and option.value.parts:
        for each in option.value.split(","):
            name, value = each.partition("=")
            if value is not None:
                found.environment[name.shown] = value
    elif option.name in _WORKDIRS:
        known = option.value.known
        if known in (".", *found.targets):
            notes.add(NoteKind.REPLACED, line, option.written, "ranks start in the folder of the submission, which is mounted")
        else:
            why = "ranks start in the folder of the submission, which is mounted at its own path"
            notes.add(NoteKind.CHECK, line, option.written, why)
    elif option.name in _REPLACED:
        if _REPLACED[option.name]:
            notes.add(NoteKind.REPLACED, line, option.written, _REPLACED[option.name])
    elif found.runtime == _APPTAINER:
        _read_further(found, option, line, notes)
    elif found.runtime != "pyxis" or "container" in option.name:
        notes.add(NoteKind.UNREAD, line, option.written, f"an option of {found.runtime} that a job does not have")


def _read_further(found: Container, option: Option, line: int, notes: Notes) -> None:
    """Read an option of Apptainer that has no field, which a job may pass on."""
    known = option.value.known
    if option.name in ("cleanenv", "contain", "containall", "compat"):
        notes.add(NoteKind.CHECK, line, option.written, _INHERITED)
    elif option.name in _UNREAD or known is None or len(option.name) == 1:
        notes.add(
            NoteKind.UNREAD, line, option.written, _UNREAD.get(option.name, "an option of Apptainer that a job does not have")
        )
    else:
        found.further.append(f"--{option.name}={known}" if known else f"--{option.name}")


def _as_bind(mount: Text) -> Text:
    """Return a value of `--mount`, `type=bind,source=A,destination=B,ro`, as one of `--bind`, `A:B:ro`."""
    source, target, mode = Text(), Text(), ""
    for part in mount.split(","):
        name, value = part.partition("=")
        if name.shown in ("source", "src") and value is not None:
            source = value
        elif name.shown in ("destination", "dst", "target") and value is not None:
            target = value
        elif name.shown == "ro":
            mode = ":ro"
    return text(*source.parts, ":", *(target or source).parts, mode)


def _read_mount(found: Container, mount: Text, line: int, notes: Notes) -> None:
    source, *more = mount.split(":")
    target = more[0] if more else source
    mode = more[1].shown if len(more) > 1 else ""
    if not source.parts:
        return
    if source.known == "." and all(reference.name in HERE for reference in source.references):
        if target.literal is not None and target.literal.startswith("/"):
            found.targets[target.literal.rstrip("/")] = "."
        why = "the folder of the submission is mounted at its own path, where ranks start"
        notes.add(NoteKind.REPLACED, line, mount.shown, why)
        return
    place, aim = source.literal, target.literal
    if place is None or aim is None or not place.startswith("/") or not aim.startswith("/"):
        missing = [
            f"`--set {each.name}=VALUE`"
            for each in (*source.references, *target.references)
            if each.name and each.name not in HERE
        ]
        why = f"a mount has an absolute path{': ' if missing else ''}{', '.join(dict.fromkeys(missing))}"
        notes.add(NoteKind.UNREAD, line, mount.shown, why)
        return
    if mode.replace("rw", "") not in ("", "ro"):
        notes.add(NoteKind.UNREAD, line, mount.shown, f"`{mode}` of a mount is not read: it is mounted writable")
    read_only = "ro" in mode.split("+")
    found.lines.append(line)
    found.mounts.append(
        {"source": place, **({} if aim == place else {"target": aim}), **({} if read_only else {"read_only": False})}
    )
