"""The changes to a host follow from its desired state and the state found there; these tests need no host."""

import pytest
from msgspec.structs import replace

from headway.infra.host import (
    ABSENT,
    FOLDER,
    MANIFEST,
    OTHER,
    FileChange,
    ForeignFileError,
    HostFile,
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
from headway.infra.reach import Reach

SCRIPT, UNIT_FILE, UNIT = "/usr/local/sbin/qos", "/etc/systemd/system/qos.service", "qos.service"
WANTED = HostState(
    "lab",
    Reach("n1", "10.0.0.1"),
    {
        SCRIPT: HostFile("#!/bin/sh\n", 0o755),
        UNIT_FILE: HostFile(f"[Service]\nExecStart={SCRIPT}\n[Install]\nWantedBy=multi-user.target\n", 0o644),
    },
    (UNIT,),
)
HELD = {path: file.sha256 for path, file in WANTED.files.items()}


def view(**found: str) -> HostView:
    """Return the host in its desired state, except for `script`, `unit_file`, `unit`."""
    paths = dict.fromkeys(folders_of(WANTED), FOLDER)
    paths |= {path: file.print for path, file in WANTED.files.items()}
    paths |= {path: found[name] for name, path in (("script", SCRIPT), ("unit_file", UNIT_FILE)) if name in found}
    return HostView(paths, {UNIT: found.get("unit", "enabled")}, HostManifest("lab", HELD, units=(UNIT,)), live=True)


def printed(text: str, mode: int = 0o755) -> str:
    return HostFile(text, mode).print


def test_host_in_its_desired_state_needs_no_changes() -> None:
    assert changes(WANTED, view()) == []


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (ABSENT, "missing"),
        (OTHER, "changed"),
        (FOLDER, "changed"),
        (printed("#!/bin/sh\nexit 1\n"), "changed"),
        (printed("#!/bin/sh\n", 0o644), "mode"),
        (printed("#!/bin/sh\n").replace("0:0", "0:1000"), "mode"),
    ],
)
def test_only_the_differing_path_is_reported(found: str, what: str) -> None:
    assert changes(WANTED, view(script=found)) == [FileChange(SCRIPT, what)]


@pytest.mark.parametrize(("word", "what"), [("disabled", "not enabled"), ("absent", "not enabled"), ("failed", "failed")])
def test_unit_that_is_not_running_is_reported(word: str, what: str) -> None:
    assert changes(WANTED, view(unit=word)) == [FileChange(UNIT, what)]


def test_obsolete_file_is_extra_until_it_is_removed() -> None:
    old = "/etc/headway/old"
    manifest = HostManifest("lab", {**HELD, old: "0" * 64}, units=(UNIT,))
    there = replace(view(), manifest=manifest, paths={**view().paths, old: printed("old\n")})
    assert changes(WANTED, there) == [FileChange(old, "extra")]
    gone = replace(there, paths={**there.paths, old: ABSENT})
    assert changes(WANTED, gone) == [FileChange(MANIFEST, "unfinished")]


@pytest.mark.parametrize(
    "manifest", [None, HostManifest("lab", HELD, units=(UNIT,), finished=False), HostManifest("lab", {SCRIPT: HELD[SCRIPT]})]
)
def test_host_with_correct_files_is_unfinished_without_a_final_manifest(manifest: HostManifest | None) -> None:
    assert changes(WANTED, replace(view(), manifest=manifest)) == [FileChange(MANIFEST, "unfinished")]


@pytest.mark.parametrize("found", [OTHER, FOLDER, printed("somebody else's\n")])
def test_foreign_file_is_rejected_with_its_path(found: str) -> None:
    with pytest.raises(ForeignFileError, match=f"n1 .*{SCRIPT} is already there and not headway's"):
        check_ours(WANTED, replace(view(script=found), manifest=None))


def test_folder_at_the_path_of_a_managed_file_is_rejected() -> None:
    with pytest.raises(ForeignFileError, match=SCRIPT):
        check_ours(WANTED, view(script=FOLDER))


@pytest.mark.parametrize("found", [ABSENT, printed("#!/bin/sh\n"), printed("#!/bin/sh\n", 0o600)])
def test_absent_or_identical_file_can_be_adopted(found: str) -> None:
    check_ours(WANTED, replace(view(script=found), manifest=None))


def test_edited_managed_file_is_accepted() -> None:
    check_ours(WANTED, view(script=printed("edited by hand\n")))


def test_host_of_another_cluster_is_rejected() -> None:
    with pytest.raises(ForeignFileError, match="belongs to the cluster `other`"):
        check_ours(WANTED, replace(view(), manifest=HostManifest("other", {})))


def test_intent_lists_old_and_new_files_and_only_missing_folders() -> None:
    old = replace(view(), manifest=HostManifest("lab", {"/etc/old": "0" * 64}, folders=("/etc/made",), units=("old.service",)))
    begun = intent(WANTED, replace(old, paths={**old.paths, SCRIPT: ABSENT, "/usr/local/sbin": ABSENT}))
    assert begun.files == {"/etc/old": "0" * 64, **HELD}
    assert begun.folders == ("/etc/headway", "/etc/made", "/usr/local/sbin")
    assert begun.units == ("old.service", UNIT)
    assert not begun.finished
    assert settled(WANTED, begun) == HostManifest("lab", HELD, folders=("/etc/headway", "/usr/local/sbin"), units=(UNIT,))


@pytest.mark.parametrize(
    ("found", "restart"),
    [
        (view(), ()),
        (view(script=ABSENT), (UNIT,)),
        (view(unit_file=printed("other\n", 0o644)), (UNIT,)),
        (view(unit="failed"), (UNIT,)),
        (view(unit="disabled"), ()),
        (replace(view(), manifest=HostManifest("lab", HELD, restart=(UNIT,), finished=False)), (UNIT,)),
    ],
)
def test_unit_is_restarted_if_a_file_changed_it_failed_or_a_restart_is_due(found: HostView, restart: tuple[str, ...]) -> None:
    assert intent(WANTED, found).restart == restart


def test_manifest_round_trips_through_its_text() -> None:
    manifest = HostManifest("lab", HELD, ("/etc/headway",), (UNIT,), (UNIT,), finished=False)
    assert read_manifest(manifest_text(manifest)) == manifest


@pytest.mark.parametrize("text", ["", "[]", "{}", '"text"', '{"schema": "headway.managed/9"}', '{"schema": "headway.managed/1"}'])
def test_invalid_manifest_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"manifest|schema|Expecting"):
        read_manifest(text)
