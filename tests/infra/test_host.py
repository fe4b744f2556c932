"""What must be done to a host follows from what it is to hold and what was found there; no host is needed for that."""

from dataclasses import replace

import pytest

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
    """The host as it is to be, but for `script`, `unit_file`, `unit`."""
    paths = dict.fromkeys(folders_of(WANTED), FOLDER)
    paths |= {path: file.print for path, file in WANTED.files.items()}
    paths |= {path: found[name] for name, path in (("script", SCRIPT), ("unit_file", UNIT_FILE)) if name in found}
    return HostView(paths, {UNIT: found.get("unit", "enabled")}, HostManifest("lab", HELD, units=(UNIT,)), live=True)


def printed(text: str, mode: int = 0o755) -> str:
    return HostFile(text, mode).print


def test_a_host_as_it_is_to_be_needs_nothing() -> None:
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
def test_only_the_path_that_differs_is_named(found: str, what: str) -> None:
    assert changes(WANTED, view(script=found)) == [FileChange(SCRIPT, what)]


@pytest.mark.parametrize(("word", "what"), [("disabled", "not enabled"), ("absent", "not enabled"), ("failed", "failed")])
def test_a_unit_that_is_not_started_is_named(word: str, what: str) -> None:
    assert changes(WANTED, view(unit=word)) == [FileChange(UNIT, what)]


def test_a_file_that_is_no_longer_wanted_is_extra_until_it_is_gone() -> None:
    old = "/etc/headway/old"
    manifest = HostManifest("lab", {**HELD, old: "0" * 64}, units=(UNIT,))
    there = replace(view(), manifest=manifest, paths={**view().paths, old: printed("old\n")})
    assert changes(WANTED, there) == [FileChange(old, "extra")]
    gone = replace(there, paths={**there.paths, old: ABSENT})
    assert changes(WANTED, gone) == [FileChange(MANIFEST, "unfinished")]


@pytest.mark.parametrize(
    "manifest", [None, HostManifest("lab", HELD, units=(UNIT,), finished=False), HostManifest("lab", {SCRIPT: HELD[SCRIPT]})]
)
def test_right_files_under_an_unfinished_or_a_lost_manifest_are_not_done(manifest: HostManifest | None) -> None:
    assert changes(WANTED, replace(view(), manifest=manifest)) == [FileChange(MANIFEST, "unfinished")]


@pytest.mark.parametrize("found", [OTHER, FOLDER, printed("somebody else's\n")])
def test_what_is_not_ours_is_refused_by_its_path(found: str) -> None:
    with pytest.raises(ForeignFileError, match=f"n1 .*{SCRIPT} is already there and not headway's"):
        check_ours(WANTED, replace(view(script=found), manifest=None))


def test_a_folder_in_the_place_of_our_file_is_refused_too() -> None:
    with pytest.raises(ForeignFileError, match=SCRIPT):
        check_ours(WANTED, view(script=FOLDER))


@pytest.mark.parametrize("found", [ABSENT, printed("#!/bin/sh\n"), printed("#!/bin/sh\n", 0o600)])
def test_nothing_or_the_very_content_may_be_taken_over(found: str) -> None:
    check_ours(WANTED, replace(view(script=found), manifest=None))


def test_our_file_may_have_been_edited() -> None:
    check_ours(WANTED, view(script=printed("edited by hand\n")))


def test_a_host_of_another_cluster_is_refused() -> None:
    with pytest.raises(ForeignFileError, match="belongs to the cluster `other`"):
        check_ours(WANTED, replace(view(), manifest=HostManifest("other", {})))


def test_the_intent_names_old_and_new_files_and_only_the_folders_that_are_not_there() -> None:
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
def test_a_unit_is_restarted_for_its_own_file_one_that_it_names_and_what_an_earlier_run_left(
    found: HostView, restart: tuple[str, ...]
) -> None:
    assert intent(WANTED, found).restart == restart


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = HostManifest("lab", HELD, ("/etc/headway",), (UNIT,), (UNIT,), finished=False)
    assert read_manifest(manifest_text(manifest)) == manifest


@pytest.mark.parametrize("text", ["", "[]", "{}", '"text"', '{"schema": "headway.managed/9"}', '{"schema": "headway.managed/1"}'])
def test_what_is_no_manifest_of_ours_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"manifest|schema|Expecting"):
        read_manifest(text)
