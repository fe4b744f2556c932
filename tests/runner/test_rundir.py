"""Tests the run directory: what an attempt finds there, and what a batch script reads back from it."""

import dataclasses
import functools
import io
import itertools
import json
import os
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headway.runner import rundir
from headway.runner.__main__ import main as runner
from headway.runner.contract import (
    ATTEMPT_TAKEN,
    Exit,
    Mesh,
    RunConfig,
    RunDirectory,
    Trainer,
    Verdict,
    from_json,
    read_verdict,
    to_json,
)
from headway.runner.posix import write_atomic
from headway.runner.rundir import (
    attempt_of,
    fruitless_before,
    open_run,
    open_submitted,
    suspects,
    write_exclude,
)
from headway.runner.suspects import Strike, file_of, record

CONFIG = RunConfig(slots=2, procs_per_slot=1, mesh=Mesh(dp_shard=2), trainer=Trainer("builtin"), spec_hash="ab", steps=10)
NAME = "two-nodes-0123abcd-1"


def verdict_of(directory: RunDirectory, *suspected: int, code: Exit = Exit.RETRY_ELSEWHERE) -> Verdict:
    return Verdict(NAME, directory.attempt, 1, code.name.lower(), "a node was lost", int(code), suspects=suspected)


def give_verdict(directory: RunDirectory, *suspected: int, code: Exit = Exit.RETRY_ELSEWHERE) -> None:
    write_atomic(directory.verdict, to_json(verdict_of(directory, *suspected, code=code)).encode())


def suspected_by(directory: RunDirectory, *suspected: int) -> list[str]:
    return suspects(directory, verdict_of(directory, *suspected))


def name_nodes(directory: RunDirectory, **hosts: str) -> None:
    for index, host in hosts.items():
        write_atomic(directory.node(int(index.removeprefix("n"))), json.dumps({"host": host}).encode())


def test_a_new_run_has_the_documented_folders(tmp_path: Path) -> None:
    directory = open_run(tmp_path / "runs", NAME, CONFIG, 0)
    assert directory.root == (tmp_path / "runs" / NAME).resolve()
    folders = ("shared/chain", "shared/checkpoints", "shared/journal", "attempts/0/nodes")
    assert all((directory.root / folder).is_dir() for folder in folders)
    files = {str(path.relative_to(directory.root)) for path in directory.root.rglob("*") if path.is_file()}
    assert files == {"handle.json", "secret", "attempts/0/run.json"}


def test_run_json_has_its_name_and_store(tmp_path: Path) -> None:
    directory = open_run(tmp_path, NAME, CONFIG, 0)
    config = from_json(RunConfig, directory.run_json.read_text())
    assert (config.run, config.store.url) == (NAME, str(directory.root / "shared"))
    assert json.loads(directory.handle.read_text())["job"] == "two-nodes"
    assert RunDirectory.of(directory.run_json, 0) == directory


def test_a_second_attempt_opens_the_same_run(tmp_path: Path) -> None:
    first = open_run(tmp_path, NAME, CONFIG, 0)
    before = {path: path.read_bytes() for path in (first.secret_file, first.handle, first.run_json)}
    (first.chain / "000000001.json").write_text("{}")
    second = open_run(tmp_path, NAME, CONFIG, 1)
    assert {path: path.read_bytes() for path in before} == before
    assert (second.root, second.chain) == (first.root, first.chain)
    assert second.run_json != first.run_json
    assert (second.chain / "000000001.json").read_text() == "{}"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_secret_is_readable_only_by_its_owner(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        directory = open_run(tmp_path, NAME, CONFIG, 0)
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.secret_file.stat().st_mode) == 0o600
    assert len(directory.secret()) == 32


def test_two_runs_have_two_secrets_that_no_other_file_contains(tmp_path: Path) -> None:
    one, two = (open_run(tmp_path, f"run-{n}", CONFIG, 0) for n in (1, 2))
    assert one.secret() != two.secret()
    others = [path for path in one.root.rglob("*") if path.is_file() and path != one.secret_file]
    assert all(one.secret().hex() not in path.read_text() for path in others)


# --- opened by every node ---------------------------------------------------------------------------------------------


def test_nodes_that_open_an_attempt_concurrently_find_the_same_one(tmp_path: Path) -> None:
    nodes = 8
    together = threading.Barrier(nodes)

    def opened(_: int) -> tuple[RunDirectory, list[bytes], int]:
        together.wait()
        directory = open_run(tmp_path / "runs", NAME, CONFIG, 0, every_node=True)
        files = [path.read_bytes() for path in (directory.secret_file, directory.handle, directory.run_json)]
        return directory, files, directory.run_json.stat().st_mtime_ns

    with ThreadPoolExecutor(nodes) as pool:
        first, *others = pool.map(opened, range(nodes))
    assert all(other == first for other in others)
    assert {path.name for path in first[0].root.iterdir()} == {"attempts", "handle.json", "secret", "shared"}
    assert [path.name for path in first[0].attempt_directory.iterdir() if path.is_file()] == ["run.json"]


def test_a_late_node_does_not_change_the_attempts_start_time(tmp_path: Path) -> None:
    first = open_run(tmp_path, NAME, CONFIG, 0, every_node=True)
    os.utime(first.run_json, ns=(1, 1))
    assert open_run(tmp_path, NAME, CONFIG, 0, every_node=True).run_json.stat().st_mtime_ns == 1


@pytest.mark.parametrize("every_node", [False, True])
def test_an_attempt_is_opened_with_one_configuration(tmp_path: Path, every_node: bool) -> None:
    directory = open_run(tmp_path, NAME, CONFIG, 0)
    before = directory.run_json.read_bytes()
    with pytest.raises(FileExistsError):
        open_run(tmp_path, NAME, dataclasses.replace(CONFIG, steps=11), 0, every_node=every_node)
    assert directory.run_json.read_bytes() == before


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_attempts_and_journals_are_listed_by_their_numbers(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert (directory.attempt_numbers(), directory.next_attempt(), directory.journal_files()) == ((), 0, {})
    for attempt in (10, 0, 2):
        directory.at(attempt).attempt_directory.mkdir(parents=True)
    (directory.attempts / "7").write_text("a file is not an attempt")
    (directory.attempts / ".tmp-3").mkdir()
    directory.journals.mkdir(parents=True)
    for name in ("000010.jsonl", "000009.jsonl", "1000000.jsonl", "9.jsonl", "notes.jsonl"):
        (directory.journals / name).touch()
    assert directory.attempt_numbers() == (0, 2, 10)
    assert directory.next_attempt() == 11
    assert list(directory.journal_files().items()) == [(number, directory.journal(number)) for number in (9, 10, 1_000_000)]


def exit_code(directory: RunDirectory, otherwise: int, capsys: pytest.CaptureFixture[str]) -> int:
    assert rundir.main(["exit-code", str(directory.run_json), "--or", str(otherwise)]) == 0
    return int(capsys.readouterr().out)


def test_the_verdict_takes_precedence_over_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = open_run(tmp_path, NAME, CONFIG, 0)
    assert exit_code(directory, 137, capsys) == 81, "no verdict and a foreign code: a node or the store was lost"
    assert exit_code(directory, 80, capsys) == 80
    give_verdict(directory, code=Exit.PREEMPTED)
    assert exit_code(directory, 137, capsys) == 82


def test_the_verdict_of_an_earlier_attempt_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    give_verdict(open_run(tmp_path, NAME, CONFIG, 0))
    assert exit_code(open_run(tmp_path, NAME, CONFIG, 1), 1, capsys) == 81


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe\x00", b'{"schema": "headway.verdict/9"}'])
def test_an_unreadable_verdict_is_none(raw: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = open_run(tmp_path, NAME, CONFIG, 0)
    directory.verdict.write_bytes(raw)
    assert read_verdict(directory) is None
    assert exit_code(directory, 81, capsys) == 81


# --- suspects ---------------------------------------------------------------------------------------------------------


def test_suspects_are_the_union_over_all_attempts(tmp_path: Path) -> None:
    attempts = [open_run(tmp_path, NAME, CONFIG, number) for number in range(4)]
    for directory, hosts in zip(attempts, (("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")), strict=True):
        name_nodes(directory, n0=hosts[0], n1=hosts[1])
    give_verdict(attempts[0], 1)
    give_verdict(attempts[2], 0, 1)  # attempt 1 ended without a verdict
    assert suspected_by(attempts[0], 1) == ["b"]
    assert suspected_by(attempts[1]) == ["b"]
    assert suspected_by(attempts[2], 0, 1) == ["b", "e", "f"]
    assert suspected_by(attempts[3], 0) == ["b", "e", "f", "g"]


def test_repeat_offenders_of_the_cluster_are_suspects_in_every_run(tmp_path: Path) -> None:
    directory = open_run(tmp_path, NAME, dataclasses.replace(CONFIG, cluster="small"), 0)
    elsewhere = open_run(tmp_path, "job-0123abcd-9", CONFIG, 0)
    for number, host in enumerate(("a", "a", "a", "b")):
        record(file_of(tmp_path, "small"), Strike(time.time(), f"run-{number}", host, "node lost", "node lost", 1.0))
    assert (suspected_by(directory), suspected_by(elsewhere)) == (["a"], [])


def test_a_suspect_whose_runner_has_not_started_has_the_schedulers_name(tmp_path: Path) -> None:
    directory = open_run(tmp_path, NAME, CONFIG, 0, hosts=["a", "b", "c"])
    name_nodes(directory, n0="a")
    assert suspected_by(directory, 2, 3) == ["c"]


def test_the_schedulers_host_names_are_stored_with_the_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_NODES", "a,b")
    monkeypatch.setattr("sys.stdin", io.StringIO(to_json(CONFIG)))
    assert rundir.main(["open", str(tmp_path), NAME, "--attempt", "0"]) == 0
    directory = RunDirectory.of(Path(capsys.readouterr().out.strip()), 0)
    assert suspected_by(directory, 1) == ["b"]


def test_a_suspect_that_never_published_its_name_is_omitted(tmp_path: Path) -> None:
    directory = open_run(tmp_path, NAME, CONFIG, 0)
    name_nodes(directory, n0="a")
    assert suspected_by(directory, 0, 1) == ["a"]


def test_hosts_excluded_by_a_verdict_are_written_for_the_batch_script(tmp_path: Path) -> None:
    directory = open_run(tmp_path, NAME, CONFIG, 0, hosts=["a", "b", "c"])
    write_exclude(directory, verdict_of(directory))
    assert not directory.exclude.exists()
    write_exclude(directory, verdict_of(directory, 2, 0))
    assert directory.exclude.read_text() == "a,c\n"


def attempts_of(runs: Path, *jobs: str) -> list[RunDirectory]:
    """Attempts on the hosts a and b, one for each job of the scheduler, whose runners have all started."""
    found = [open_run(runs, NAME, CONFIG, number, hosts=["a", "b"]) for number in range(len(jobs))]
    for directory, job in zip(found, jobs, strict=True):
        directory.job.write_text(f"{job}\n")
        name_nodes(directory, n0="a", n1="b")
    return found


def test_consecutive_attempts_without_progress_are_counted(tmp_path: Path) -> None:
    attempts = attempts_of(tmp_path, *["uid/0", "uid/1", "uid/2", "uid/3", "uid/4"])
    give_verdict(attempts[0])
    give_verdict(attempts[2], 1)
    give_verdict(attempts[3], 1)
    assert fruitless_before(attempts[4])[1] == {"b"}
    # The third has excluded b, the fourth nothing more.
    assert [fruitless_before(each)[0] for each in attempts] == [0, 1, 2, 0, 1]


def test_attempts_whose_nodes_did_not_all_start_are_not_counted(tmp_path: Path) -> None:
    attempts = attempts_of(tmp_path, "uid/0", "uid/1", "uid/2", "uid/3")
    for directory in attempts:
        directory.node(1).unlink()
        give_verdict(directory, 1)
    assert [fruitless_before(each)[0] for each in attempts] == [0, 0, 0, 0]


@pytest.mark.parametrize("why", ["excused", "another job", "another verdict", "not started", "no job"])
def test_progress_another_job_or_another_verdict_resets_the_count(why: str, tmp_path: Path) -> None:
    attempts = attempts_of(tmp_path, "7", "6" if why == "another job" else "7", "7", "7")
    if why == "excused":
        attempts[1].excused.touch()
    if why == "another verdict":
        give_verdict(attempts[1], code=Exit.PREEMPTED)
    if why == "not started":
        for node in (0, 1):
            attempts[1].node(node).unlink()
    if why == "no job":
        attempts[3].job.unlink()
    assert fruitless_before(attempts[3])[0] == {"not started": 2, "no job": 0}.get(why, 1)


# --- an attempt started by a batch script -----------------------------------------------------------------------------


def submitted(directory: RunDirectory, config: str, spec: str = "{}") -> None:
    directory.submitted_run.parent.mkdir(parents=True)
    directory.submitted_run.write_text(config)
    directory.submitted_run.with_name("spec.json").write_text(spec)


def test_every_node_opens_the_attempt_that_the_batch_script_started(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / NAME, 3)
    submitted(directory, to_json(CONFIG))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: open_submitted(directory), range(8)))
    config = from_json(RunConfig, directory.run_json.read_text())
    assert (config.run, config.store.url) == (NAME, str(directory.shared))
    assert (directory.handle.exists(), directory.spec.exists(), len(directory.secret())) == (True, True, 32)


def test_a_runner_that_cannot_read_the_submitted_file_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = RunDirectory(tmp_path / NAME, 0)
    submitted(directory, "{}")
    words = [str(directory.run_json), "--attempt", "0", "--open"]
    assert runner(words) == 2
    assert capsys.readouterr().err.startswith(f"headway.runner: {directory.run_json}: ")


# --- the command ------------------------------------------------------------------------------------------------------


def test_open_prints_the_path_of_the_attempts_run_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(to_json(CONFIG)))
    assert rundir.main(["open", str(tmp_path), NAME, "--attempt", "2"]) == 0
    printed = Path(capsys.readouterr().out.rstrip("\n"))
    assert printed == (tmp_path / NAME / "attempts" / "2" / "run.json").resolve()
    assert from_json(RunConfig, printed.read_text()).run == NAME


def test_an_attempt_already_opened_is_refused_unless_every_node_opens_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = []
    for more in ((), (), ("--every-node",)):
        monkeypatch.setattr("sys.stdin", io.StringIO(to_json(CONFIG)))
        codes.append(rundir.main(["open", str(tmp_path), NAME, "--attempt", "0", *more]))
    assert codes == [0, ATTEMPT_TAKEN, 0]
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [str(tmp_path / NAME / "attempts/0/run.json")] * 2
    assert printed.err == f"attempt 0 of run `{NAME}` has already been opened\n"


def test_open_restores_the_values_that_the_spec_file_omits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(to_json(CONFIG)))
    (tmp_path / "rest.json").write_text('{"kind": "TrainingJob", "layout": {"dp_shard": null}}')
    assert rundir.main(["open", str(tmp_path), NAME, "--attempt", "0", "--spec", str(tmp_path / "rest.json")]) == 0
    spec = json.loads((tmp_path / NAME / "attempts/0/spec.json").read_text())
    assert (spec["kind"], spec["steps"], spec["nodes"], spec["trainer"]) == ("TrainingJob", 10, 2, {"kind": "builtin"})
    assert (spec["layout"]["dp_shard"], spec["layout"]["tp"]) == (None, 1)


@pytest.mark.parametrize("argv", [[], ["close"], ["exit-code", "run.json"], ["open", "runs", "name"]])
def test_an_incomplete_command_is_a_usage_error(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        rundir.main(argv)
    assert left.value.code == 2


@pytest.mark.slow
def test_nodes_of_a_job_find_one_attempt_and_another_job_opens_the_next(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    # Nodes that look for an attempt and create one concurrently, repeatedly.
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(16) as pool:
            for turn, (number, job) in itertools.product(range(8), enumerate(("uid-a/0", "uid-a/1", "uid-b/0"))):
                directory = RunDirectory(tmp_path / f"{NAME}-{turn}")
                found = set(pool.map(functools.partial(attempt_of, directory), [job] * 16))
                assert found == {number}
    finally:
        sys.setswitchinterval(before)
    assert attempt_of(directory, "uid-a/1") == 1
    assert sorted(path.name for path in directory.attempts.iterdir()) == ["0", "1", "2"]
    assert [directory.at(number).job.read_text() for number in range(3)] == ["uid-a/0\n", "uid-a/1\n", "uid-b/0\n"]
    assert directory.attempts.stat().st_mode == directory.at(0).attempt_directory.stat().st_mode


def test_an_attempt_is_opened_by_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for job, number in (("uid-a/0", 0), ("uid-a/0", 0), ("uid-b/0", 1)):
        monkeypatch.setattr("sys.stdin", io.StringIO(to_json(CONFIG)))
        assert rundir.main(["open", str(tmp_path), NAME, "--job", job, "--every-node"]) == 0
        assert capsys.readouterr().out == f"{tmp_path / NAME}/attempts/{number}/run.json\n"
