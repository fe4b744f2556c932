"""Tests reading torch's flight recorder of real gloo ranks from outside, and which dumps are not read."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.runner.agent import flight
from headway.runner.agent.flight import Recorder, answers, read
from headway.runner.contract import RunDirectory
from headway.runner.health.collectives import Collective, at_odds, missing

S = 1_000_000_000
# Two ranks share one import of torch; the second rank does not enter the third collective.
JOB = """
import os, sys, time
import torch, torch.distributed as dist
from headway.runner.boot.flight import answer_requests
rank = int(os.fork() == 0)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
answer_requests(rank)
for _ in range(2):
    dist.all_reduce(torch.ones(4))
dist.all_gather([torch.ones(2, 3)] * 2, torch.ones(2, 3), async_op=False) if rank == 0 else print("there", flush=True)
time.sleep(600)
"""


def recorder(tmp_path: Path, **environment: str) -> Recorder:
    directory = RunDirectory(tmp_path / "run", 0)
    directory.evidence.mkdir(parents=True, exist_ok=True)
    return Recorder(directory, environment)


def dumped(asked: dict[int, tuple[Path, int]], enough: int) -> dict[int, tuple[Collective, ...]]:
    until = time.monotonic() + 60
    while len(found := answers(asked)) < enough:
        assert time.monotonic() < until, "not within 60 s"
        time.sleep(0.01)
    return found


@pytest.mark.slow
def test_real_ranks_dump_their_collectives_and_the_missing_rank_follows(tmp_path: Path) -> None:
    asks = recorder(tmp_path)
    environment = {**os.environ, **asks.variables(3)}
    argv = [sys.executable, "-c", JOB, str(tmp_path / "store")]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "there\n"
            found: dict[int, tuple[Collective, ...]] = {}
            while not (found and found[0][0].number == 3 and found[1][0].done):  # rank 0 may not have reached it yet
                found = dumped(asks.ask(3, [0, 1]), 2)
        finally:
            os.killpg(job.pid, 9)
    assert [(each.number, each.what, each.done) for each in found[0]] == [(3, "all_gather(Float[2, 3])", False)]
    assert [(each.number, each.what, each.done) for each in found[1]] == [(2, "all_reduce(Float[4])", True)]
    absent = missing(found)
    assert absent is not None
    assert absent.ranks == (1,)
    assert (tmp_path / "run/attempts/0/evidence/flight-3-0").is_file()


def test_dump_names_differ_by_generation_and_user_settings_are_kept(tmp_path: Path) -> None:
    evidence = tmp_path / "run/attempts/0/evidence"
    ours = recorder(tmp_path).variables(2)
    assert ours == {
        "TORCH_FR_DUMP_TEMP_FILE": f"{evidence}/flight-2-",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/run/attempts/0/pipes/rank-",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    theirs = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/scratch/trace", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    given = recorder(tmp_path, **theirs).variables(2)
    assert given["TORCH_FR_DUMP_TEMP_FILE"] == "/scratch/trace", "torch would take the newer name first"
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in given


def test_torch_is_not_configured_for_a_pipe_if_none_can_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "mkfifo", refuse)
    asks = recorder(tmp_path)
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in asks.variables(1)
    assert asks.ask(1, [0]) == {}


def test_ranks_without_a_read_pipe_are_not_asked(tmp_path: Path) -> None:
    asks = recorder(tmp_path)
    os.mkfifo(tmp_path / "run/attempts/0/pipes/rank-1.pipe")
    assert asks.ask(1, [0, 1]) == {}


def test_no_pipe_remains_in_the_runs_directory_at_the_end(tmp_path: Path) -> None:
    asks, pipes = recorder(tmp_path), tmp_path / "run/attempts/0/pipes"
    for rank in (0, 1, 2):
        os.mkfifo(pipes / f"rank-{rank}.pipe")
    asks.close([0, 1])
    assert [path.name for path in pipes.iterdir()] == ["rank-2.pipe"], "another node's"
    recorder(tmp_path).close([2])
    assert not pipes.exists()


def test_a_rank_is_asked_at_the_second_probe_and_then_ever_less_often(tmp_path: Path) -> None:
    asks = recorder(tmp_path)
    looks = [1, 2, 3, 8, 9, 14, 20, 21, 40, 41, 80, 89, 92]  # seconds after the last heartbeat
    assert [at_s for at_s in looks if asks.to_ask({0: 100 * S}, (100 + at_s) * S)] == [2, 8, 14, 20, 40, 80, 92]
    assert not asks.to_ask({0: 200 * S}, 201 * S), "it has moved since"
    assert asks.to_ask({0: 200 * S, 1: 5 * S}, 202 * S) == {0}


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("/tmp/headway-was-here",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Harmful()),
        pickle.dumps({"entries": [Harmful()]}),
        b"",
        b"torn",
        pickle.dumps({"entries": [{}]}),
        pickle.dumps([]),
    ],
    ids=["a call", "a nested call", "empty", "torn", "another format", "not a dump"],
)
def test_data_that_is_not_a_dump_is_neither_loaded_nor_executed(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(data)
    assert read(tmp_path / "dump") is None
    assert not Path("/tmp/headway-was-here").exists()


def test_an_oversized_dump_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dump").write_bytes(pickle.dumps({"entries": []}))
    assert read(tmp_path / "dump") == ()
    monkeypatch.setattr(flight, "DUMP_BYTES", 4)
    assert read(tmp_path / "dump") is None


def test_nccls_state_decides_completion_and_a_timeout_is_not_completed() -> None:
    def entry(number: int, state: str, *, retired: bool, p2p: bool = False) -> dict[str, object]:
        facts = {
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "is_p2p": p2p,
            "state": state,
            "retired": retired,
        }
        return {**facts, "profiling_name": "nccl:all_reduce", "input_dtypes": ["BFloat16"], "input_sizes": [[8, 2]]}

    (timed_out,) = flight.newest({"entries": [entry(4, "completed", retired=True), entry(5, "started", retired=True)]})
    assert (timed_out.number, timed_out.what, timed_out.done) == (5, "all_reduce(BFloat16[8, 2])", False)
    assert (timed_out.waits, timed_out.on_device) == (5, True)
    (after_a_send,) = flight.newest(
        {"entries": [entry(4, "completed", retired=True), entry(4, "started", retired=False, p2p=True)]}
    )
    assert after_a_send.done


def gloo(number: int, operation: str, sizes: list[list[int]], *, done: bool) -> dict[str, object]:
    facts = {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "is_p2p": False,
        "state": "scheduled",
        "retired": done,
    }
    return {**facts, "profiling_name": f"gloo:{operation}", "input_dtypes": ["Float"] * len(sizes), "input_sizes": sizes}


def test_a_rank_waits_in_the_first_collective_after_the_last_completed() -> None:
    once = [gloo(1, "barrier", [], done=True), gloo(2, "all_reduce", [[4]], done=False), gloo(3, "all_reduce", [[4]], done=True)]
    pending = [gloo(4, "all_reduce", [[8, 2], [3]], done=False), gloo(5, "broadcast", [[7]], done=False)]
    (waiting,) = flight.newest({"entries": [*once, *pending]})
    assert (waiting.number, waiting.what, waiting.done) == (5, "broadcast(Float[7])", False)
    assert waiting.waits == 4
    assert [(each.number, each.name) for each in waiting.recent][-2:] == [(4, "all_reduce of 19 elements"), (5, "broadcast")]
    (done,) = flight.newest({"entries": once})
    assert done.waits == 0


@pytest.mark.parametrize(("one", "other"), [("send", "recv"), ("coalesced", "all_reduce")])
def test_operations_that_may_differ_by_rank_are_not_a_mismatch(one: str, other: str) -> None:
    first, second = (flight.newest({"entries": [gloo(1, name, [[4]], done=False)]}) for name in (one, other))
    assert at_odds({0: first, 1: second}) is None


@pytest.mark.parametrize(("one", "other"), [("_all_gather_base", "all_gather"), ("_broadcast_oop", "broadcast")])
def test_two_names_of_one_operation_match(one: str, other: str) -> None:
    first, second = (flight.newest({"entries": [gloo(1, name, [[4]], done=False)]}) for name in (one, other))
    assert at_odds({0: first, 1: second}) is None


def test_a_recreated_group_is_judged_by_its_new_entries_only() -> None:
    old = [{**gloo(number, "broadcast", [[4]], done=True), "pg_id": 0} for number in (1, 2)]
    (found,) = flight.newest({"entries": [*old, {**gloo(1, "barrier", [], done=False), "pg_id": 1}]})
    assert (found.number, [each.name for each in found.recent]) == (1, ["barrier"])
    assert flight.newest({"entries": old})[0].number == 2


def test_an_operation_after_an_unrecorded_one_is_not_judged() -> None:
    """An operation in a captured CUDA graph is counted without an entry."""
    (found,) = flight.newest({"entries": [gloo(1, "barrier", [], done=True), gloo(3, "broadcast", [[4]], done=False)]})
    assert found.waits == 3
    assert [each.number for each in found.recent] == [1]


def test_a_dump_from_a_world_with_other_ranks_is_ignored(tmp_path: Path) -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps({"entries": [gloo(1, "barrier", [], done=False)], "pg_config": config}))
    assert read(path, 1)
    assert read(path, 2) is None


def test_groups_with_the_same_name_but_different_ranks_are_distinct() -> None:
    config = [{"0": {"name": "0", "desc": "default_pg", "ranks": ranks}} for ranks in ("[0, 1]", "[2, 3]")]
    entries = [[gloo(1, name, [[4]], done=False)] for name in ("broadcast", "all_reduce")]
    (one,), (other,) = (flight.newest({"entries": each, "pg_config": known}) for each, known in zip(entries, config, strict=True))
    assert (one.group, other.group) == ("0@0", "0@2")
    assert at_odds({0: [one], 2: [other]}) is None


def test_ranks_are_compared_only_if_their_earlier_operations_match() -> None:
    alike = [gloo(number, "all_reduce", [[4]], done=True) for number in range(1, 200)]
    one, other = ([*alike, gloo(200, operation, [[4]], done=False)] for operation in ("all_reduce", "broadcast"))
    shifted = [*alike[:150], gloo(151, "barrier", [], done=True), *alike[151:], gloo(200, "broadcast", [[4]], done=False)]
    first, second, third = (flight.newest({"entries": entries}) for entries in (one, other, shifted))
    assert at_odds({0: first, 1: second}) is not None
    assert at_odds({0: first, 1: third}) is None
