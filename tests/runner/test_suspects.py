"""Tests repeat offenders: hosts that keep failing across runs, by a cluster's record of strikes."""

import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headway.runner.contract import CauseKind
from headway.runner.coordinator.causes import Cause
from headway.runner.coordinator.strikes import strike
from headway.runner.suspects import STRIKES, WINDOW_S, Strike, file_of, lemons, record

NOW = 2_000_000_000.0
LOST = Strike(NOW - 60.0, "r-1", "n1", "node lost", "node lost", 1.0)
HUNG = Strike(NOW - 60.0, "r-1", "n1", "hang", "hang: compute", 1.0)


def remembered(tmp_path: Path, *strikes: Strike) -> dict[str, float]:
    path = file_of(tmp_path, "a3")
    for each in strikes:
        record(path, each)
    return lemons(path, NOW)


def in_run(each: Strike, number: int, host: str | None = None) -> Strike:
    return replace(each, run=f"r-{number}", wall=each.wall - number, host=host or each.host)


def test_three_strikes_within_two_weeks_make_a_suspect_across_runs(tmp_path: Path) -> None:
    assert file_of(tmp_path, "a3") == tmp_path / "suspects" / "a3.jsonl"
    assert remembered(tmp_path, in_run(LOST, 1), in_run(HUNG, 2)) == {}
    assert remembered(tmp_path, in_run(LOST, 3), in_run(LOST, 4, "n2")) == {"n1": STRIKES}


def test_strikes_older_than_two_weeks_are_ignored(tmp_path: Path) -> None:
    old = [replace(in_run(LOST, number), wall=NOW - WINDOW_S - number) for number in (1, 2, 3)]
    assert remembered(tmp_path, *old, LOST, replace(LOST, wall=NOW - 5)) == {}


def test_one_failure_that_repeats_in_a_run_counts_once(tmp_path: Path) -> None:
    assert remembered(tmp_path, *[replace(HUNG, wall=NOW - second) for second in range(9)]) == {}
    assert remembered(tmp_path, *[in_run(HUNG, number) for number in (2, 3)]) == {"n1": 3.0}


def test_a_failure_that_moves_with_the_job_is_not_the_hosts(tmp_path: Path) -> None:
    """The same failure on another host of the same run, on whichever host the job's slots were."""
    everywhere = [in_run(HUNG, number, host) for number in (1, 2, 3, 4) for host in ("n1", "n2")]
    assert remembered(tmp_path, *everywhere) == {}


def test_a_dead_device_counts_against_its_host_despite_others_elsewhere(tmp_path: Path) -> None:
    dead = replace(HUNG, kind="hardware", fingerprint="hardware: Xid 79")
    others = [in_run(dead, number, "n2") for number in (1, 2)]
    assert remembered(tmp_path, *[in_run(dead, number) for number in (1, 2, 3)], *others) == {"n1": 3.0}


def test_a_node_lost_repeatedly_in_one_run_is_a_suspect(tmp_path: Path) -> None:
    flapping = [replace(LOST, wall=NOW - second) for second in (10, 20, 30)]
    assert remembered(tmp_path, *flapping, replace(LOST, host="n2")) == {"n1": 3.0}


def test_only_failures_that_hardware_may_cause_count() -> None:
    weights = {}
    for kind in CauseKind:
        found = strike(Cause(kind, f"{kind}: x", "x", 0, 0, "n1", 5), "r-1", NOW)
        weights[kind] = found.weight if found else 0.0
    counted = {kind: weight for kind, weight in weights.items() if weight}
    assert counted == {
        CauseKind.NODE_LOST: 1.0,
        CauseKind.HARDWARE: 1.0,
        CauseKind.CORRUPTION: 1.0,
        CauseKind.HANG: 1.0,
        CauseKind.CRASH: 0.5,
    }
    nobody = Cause(CauseKind.HANG, "hang: collective", "x", None, None, None, 5)
    killed = Cause(CauseKind.CRASH, "crash: killed by SIGKILL", "x", 0, 0, "n1", 5, outside=True)
    here = Cause(CauseKind.NODE_LOST, "node lost", "x", 0, 0, "127.0.0.1", 5, outside=True)
    assert [strike(cause, "r-1", NOW) for cause in (nobody, killed, here)] == [None, None, None]
    lost = strike(replace(here, host="n1"), "r-1", NOW)
    assert lost is not None
    assert lost.weight == 1.0


def test_concurrent_writers_of_several_jobs_lose_no_line(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a3")

    def write(job: int) -> None:
        for number in range(50):
            record(path, in_run(LOST, 100 * job + number))

    jobs = [threading.Thread(target=write, args=(job,)) for job in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["run"] for line in lines}) == len(lines) == 200


def test_runs_that_start_a_list_concurrently_share_one_file(tmp_path: Path) -> None:
    start = threading.Barrier(4)

    def write(run: int) -> None:
        for number in range(20):
            start.wait()
            record(file_of(tmp_path, f"a{number}"), in_run(LOST, run))

    runs = [threading.Thread(target=write, args=(run,)) for run in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert {path.name for path in (tmp_path / "suspects").iterdir()} == {f"a{number}.jsonl" for number in range(20)}


def test_a_line_of_another_version_and_a_partial_line_are_skipped(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a3")
    for number in range(3):
        record(path, in_run(LOST, number))
    with path.open("a") as file:
        file.write('{"wall": 1, "verdict": "new"}\n{"wall": 20')
    assert lemons(path, NOW) == {"n1": 3.0}
    assert lemons(tmp_path / "not-there.jsonl", NOW) == {}


def test_transient_faults_of_several_hosts_in_one_run_all_count(tmp_path: Path) -> None:
    wrong = Cause(CauseKind.CORRUPTION, str(CauseKind.CORRUPTION), "x", 0, 0, "bad", 5, outside=True)
    for run in range(3):
        for host in ("bad", f"other-{run}"):
            against = strike(replace(wrong, host=host), f"r-{run}", NOW)
            assert against is not None
            record(tmp_path / "s.jsonl", against)
    assert lemons(tmp_path / "s.jsonl", NOW) == {"bad": 3.0}


def test_users_of_one_folder_share_strikes_but_no_file_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = tmp_path / "team"
    above.mkdir()
    above.chmod(0o2777)
    monkeypatch.setenv("HEADWAY_SUSPECTS", str(above / "suspects"))
    path = file_of(tmp_path / "of-alice" / "runs", "a3")
    assert path == file_of(tmp_path / "of-bob" / "runs", "a3") == above / "suspects" / "a3.jsonl"
    for run in ("one", "two"):
        record(path, Strike(NOW, run, "n7", "node lost", "node lost", 1.0))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o2777
    # The file belongs to another user, which a test as root cannot try: it simulates the kernel's error.
    access = os.access
    monkeypatch.setattr(os, "access", lambda file, mode: Path(file) != path and access(file, mode))
    for run in ("three", "four"):
        record(path, Strike(NOW, run, "n7", "node lost", "node lost", 1.0))
    assert [len(file.read_text().splitlines()) for file in sorted(path.parent.iterdir())] == [2, 2]
    assert lemons(path, NOW) == {"n7": 4.0}
    assert lemons(file_of(tmp_path, "a"), NOW) == {}
