"""Brings a host to its wanted state, or removes it. Every step may be interrupted: the next run continues from the state that it finds."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from headway.infra.host import (
    ABSENT,
    ENABLED,
    FOLDER,
    MANIFEST,
    OTHER,
    OWN_FOLDER,
    UNIT_FOLDER,
    HostManifest,
    HostState,
    HostView,
    changes,
    check_ours,
    folders_of,
    intent,
    manifest_text,
    read_manifest,
    settled,
)
from headway.infra.reach import SshError
from headway.infra.ssh import Ssh, temporary_name

START_S = 120.0

_LOOK = f"""
while IFS= read -r path; do
  if [ -L "$path" ]; then echo {OTHER!r}
  elif [ -f "$path" ]; then echo "$(stat -c '%04a %u:%g' -- "$path") $(sha256sum <"$path" | cut -c 1-64)"
  elif [ -d "$path" ]; then echo {FOLDER!r}
  elif [ -e "$path" ]; then echo {OTHER!r}
  else echo {ABSENT!r}; fi
done
"""

# /run/systemd/system exists only where systemd runs (sd_booted(3)); enabling works on files and does not require a
# running systemd.
_LOOK_AT_UNITS = """
if [ -d /run/systemd/system ]; then echo live; else echo offline; fi
while IFS= read -r unit; do
  word=$(systemctl is-enabled -- "$unit" 2>/dev/null) || :
  if [ -d /run/systemd/system ] && systemctl --quiet is-failed -- "$unit"; then word=failed; fi
  echo "${word:-absent}"
done
"""

_MAKE_FOLDERS = 'umask 022; while IFS= read -r folder; do mkdir -p -- "$folder" || exit; done'
_REMOVE_EMPTY_FOLDERS = 'while IFS= read -r folder; do rmdir -- "$folder" 2>/dev/null || :; done'

# In one command: a reader that finds no manifest ignores the folder.
_FORGET = 'rm -f -- "$1" "$2" && { rmdir -- "$3" 2>/dev/null || :; }'


def look(ssh: Ssh, paths: Iterable[str], units: Iterable[str]) -> HostView:
    """Return the state of the paths and units, and of everything in the host's manifest. Raises SshError."""
    manifest = _manifest(ssh)
    known = {*paths, *(() if manifest is None else (*manifest.files, *manifest.folders))}
    named = sorted({*units, *(() if manifest is None else manifest.units)})
    asked = sorted(known)
    found = ssh.run(["sh", "-c", _LOOK, "look"], stdin=_lines(asked)).splitlines()
    first, *words = ssh.run(["sh", "-c", _LOOK_AT_UNITS, "look at units"], stdin=_lines(named)).splitlines()
    return HostView(
        paths=dict(zip(asked, found, strict=True)),
        units=dict(zip(named, words, strict=True)),
        manifest=manifest,
        live=first == "live",
    )


def look_for(ssh: Ssh, wanted: HostState) -> HostView:
    """Return the present state of everything that the host is to hold. Raises SshError."""
    return look(ssh, [*wanted.files, *folders_of(wanted)], wanted.units)


def converge(ssh: Ssh, wanted: HostState) -> HostView:
    """Change what differs and return the host's new state. Raises SshError, and ForeignError before the first change."""
    view = look_for(ssh, wanted)
    check_ours(wanted, view)
    differing = changes(wanted, view)
    if not differing:
        return view
    begun = intent(wanted, view)
    _make_folders(ssh, [OWN_FOLDER])
    ssh.put(MANIFEST, manifest_text(begun), 0o644)
    _make_folders(ssh, [folder for folder in folders_of(wanted) if view.paths[folder] == ABSENT])
    for path, file in wanted.files.items():
        if view.paths[path] != file.print:
            ssh.put(path, file.text, file.mode)
    _drop(ssh, begun, view, kept=wanted)
    _start(ssh, wanted, begun, view)
    after = settled(wanted, begun)
    _remove_empty(ssh, [folder for folder in begun.folders if folder not in after.folders])
    ssh.put(MANIFEST, manifest_text(after), 0o644)
    return look_for(ssh, wanted)


def clear(ssh: Ssh, cluster: str) -> list[str]:
    """Remove everything in the host's manifest, and the manifest; return the files. Another cluster's host stays
    unchanged.

    Raises SshError.
    """
    view = look(ssh, [], [])
    manifest = view.manifest
    if manifest is None or manifest.cluster != cluster:
        return []
    _drop(ssh, manifest, view)
    _remove_empty(ssh, [folder for folder in manifest.folders if folder != OWN_FOLDER])
    ssh.run(["sh", "-c", _FORGET, "forget", MANIFEST, str(temporary_name(MANIFEST)), OWN_FOLDER])
    return sorted(manifest.files)


def _drop(ssh: Ssh, manifest: HostManifest, view: HostView, kept: HostState | None = None) -> None:
    """Stop and remove what the manifest has beyond `kept`."""
    units = [unit for unit in manifest.units if kept is None or unit not in kept.units]
    files = [path for path in manifest.files if kept is None or path not in kept.files]
    if doomed := [unit for unit in units if view.units.get(unit, "absent") not in {"absent", "not-found"}]:
        ssh.run(["systemctl", "disable", *(("--now",) if view.live else ()), "--", *doomed], timeout_s=START_S)
    ssh.remove([path for path in files if view.paths.get(path) != FOLDER])
    if view.live and kept is None and _units_among(files):
        ssh.run(["systemctl", "daemon-reload"])


def _start(ssh: Ssh, wanted: HostState, begun: HostManifest, view: HostView) -> None:
    """Enable the units, and where systemd runs apply those that changed.

    By a reload if the unit supports it: a restart would also restart the units that require it, such as slurmd.
    """
    if view.live:
        ssh.run(["systemctl", "daemon-reload"])
    # An enabled unit may have a new [Install] section.
    if units := [unit for unit in wanted.units if view.units.get(unit) not in ENABLED or unit in begun.restart]:
        ssh.run(["systemctl", "enable", "--", *units])
    if view.live:
        for unit in begun.restart:
            if unit in wanted.units:
                ssh.run(["systemctl", "reload-or-restart", "--", unit], timeout_s=START_S)


def _manifest(ssh: Ssh) -> HostManifest | None:
    text = ssh.read(MANIFEST)
    if text is None:
        return None
    try:
        return read_manifest(text)
    except ValueError as error:
        raise SshError(f"{ssh.reach}: {MANIFEST} cannot be used: {error}") from error


def _make_folders(ssh: Ssh, folders: list[str]) -> None:
    if folders:
        ssh.run(["sh", "-c", _MAKE_FOLDERS, "make folders"], stdin=_lines(folders))


def _remove_empty(ssh: Ssh, folders: list[str]) -> None:
    """Remove empty folders, the inner ones first; one that another program also uses stays."""
    if folders:
        ssh.run(["sh", "-c", _REMOVE_EMPTY_FOLDERS, "remove folders"], stdin=_lines(sorted(folders, reverse=True)))


def _units_among(paths: Iterable[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(UNIT_FOLDER) for path in paths)


def _lines(words: Iterable[str]) -> bytes:
    return "".join(f"{word}\n" for word in words).encode()
