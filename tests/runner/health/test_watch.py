"""Tests the watch on a generation that advances, stalls or hangs, in virtual time: its probes, and which ranks it names or spares."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from headway.runner.contract import DEFAULT_TIMEOUTS, Timeout
from headway.runner.health.collectives import Collective, CollectiveOperation
from headway.runner.health.watch import EXITING_S, FIRST_STEPS_S, UNSEEN_S, Findings, Hang, Probe, RankBeat, Watch

BEAT_S, TICK_S = 0.5, 0.1
TRAIN = ("/work/train.py:40 loss_of", "/work/train.py:80 main")
LOCK = ("/work/train.py:52 refresh", "/work/train.py:80 main")
GATHER = ("/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3100 all_reduce", "/work/train.py:60 main")

WAITING = Probe("S", 5.0, 0, GATHER, "collective", "futex_do_wait")
LOCKED = Probe("S", 5.0, 0, LOCK, None, "futex_do_wait")
STOPPED = Probe("T", 5.0, 0)
# The stack of an inference server's client that waits for its answer.
ASKS = Probe(
    "S",
    5.0,
    0,
    (
        "/usr/lib/python3.11/socket.py:705 readinto",
        "/venv/lib/python3.11/site-packages/urllib3/connection.py:500 getresponse",
        *TRAIN,
    ),
)
Processes = Callable[[int, float], Probe]


class World:
    """Ranks of one job: in `go` all of them step, in `stand` none advances, and the watch is called as by a coordinator."""

    def __init__(
        self, ranks: int, timeouts: Mapping[str, Timeout] = DEFAULT_TIMEOUTS, step_s: float = 0.1, base: int = 0
    ) -> None:
        self.now_s, self.step_s = 1000.0, step_s
        self.watch = Watch(ranks, timeouts, self.now_s)
        self.beats = {rank: RankBeat(base, "compute", 0, 0.0) for rank in range(ranks)}
        self.signs_s = dict.fromkeys(self.beats, self.now_s)
        self.probed = 0
        self.processes: Processes = lambda _, now_s: Probe("R", now_s, 0, TRAIN)
        self.unheard: set[int] = set()

    def move(self, *ranks: int, section: str | None = None, steps: int = 0) -> None:
        """A heartbeat of these ranks, or of all if none are given."""
        for rank in ranks or self.beats:
            beat = self.beats[rank]
            self.beats[rank] = beat._replace(pulse=beat.pulse + 1, step=beat.step + steps, section=section or beat.section)
            self.signs_s[rank] = self.now_s

    def go(self, seconds: float) -> list[Findings]:
        """All ranks step for this long."""
        found: list[Findings] = []
        for _ in range(round(seconds / self.step_s)):
            found += self.stand(self.step_s)
            self.move(steps=1)
        return found

    def stand(self, seconds: float, fine_s: float = 20.0) -> list[Findings]:
        """Let this time pass without progress, the first `fine_s` of it in short ticks, minutes in long ones. Ends early with a
        hang."""
        found: list[Findings] = []
        began_s, until_s = self.now_s, self.now_s + seconds
        while self.now_s < until_s - 1e-9:
            passed_s = self.now_s - began_s
            tick_s = TICK_S if passed_s < fine_s else 1.0 if passed_s < 120.0 else 4.0
            self.now_s = min(self.now_s + tick_s, until_s)
            if int(self.now_s / BEAT_S) != int((self.now_s - tick_s) / BEAT_S):
                self.send_heartbeats()
            found.append(self.watch.tick(self.now_s))
            asked = found[-1].probe
            self.probed += len(asked)
            self.watch.probed({rank: self.processes(rank, self.now_s) for rank in asked}, self.now_s)
            if found[-1].hang is not None:
                break
        return found

    def send_heartbeats(self) -> None:
        heard = [rank for rank in self.beats if rank not in self.unheard]
        self.watch.beat({rank: self.beats[rank]._replace(age_s=self.now_s - self.signs_s[rank]) for rank in heard}, self.now_s)


def hang_in(findings: list[Findings]) -> Hang | None:
    return findings[-1].hang


def one_and_others(one: Probe, others: Probe) -> Processes:
    return lambda rank, _: one if rank == 1 else others


def trained(ranks: int, seconds: float = 30.0, **options: Any) -> World:
    """A job that has been running for a while and is in its step's collective, except rank 1."""
    world = World(ranks, **options)
    world.go(seconds)
    world.move(section="collective")
    world.move(1, section="compute")
    return world


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("one", [STOPPED, LOCKED], ids=["stopped", "locked"])
def test_a_hang_proven_by_two_probes_is_named_within_two_seconds(ranks: int, one: Probe) -> None:
    world = trained(ranks)
    world.processes = one_and_others(one, WAITING)
    hang = hang_in(world.stand(60.0))
    assert hang is not None
    assert hang.ranks == (1,)
    assert hang.section == "compute"
    assert 1.0 < hang.silent_s <= 2.0


def test_long_steps_have_a_longer_timeout() -> None:
    world = trained(4, seconds=400.0, step_s=4.0)
    world.processes = one_and_others(LOCKED, WAITING)
    began_s = world.now_s
    hang = hang_in(world.stand(60.0))
    assert hang is not None
    assert hang.ranks == (1,)
    assert 12.0 < world.now_s - began_s <= 20.0


BENIGN = {
    "recompiles": Probe("R", 0.0, 0, TRAIN, "compile"),
    "collects garbage": Probe("R", 0.0, 0, TRAIN),
    "reads a stalled file system": Probe("D", 5.0, 0, TRAIN, None, "folio_wait_bit"),
    "waits for its loader": Probe("S", 5.0, 0, LOCK, "data", "futex_do_wait"),
    "waits for a save": Probe("S", 5.0, 0, LOCK, "save", "futex_do_wait"),
    "waits for a server": Probe("S", 5.0, 0, LOCK, None, "wait_woken"),
    "sleeps": Probe("S", 5.0, 0, LOCK, None, "hrtimer_nanosleep"),
    "waits for a thread of a library": Probe("S", 5.0, 0, ("/usr/lib/python3.11/threading.py:320 wait",), None, "futex_do_wait"),
    "is held by a debugger": Probe("t", 5.0, 0, LOCK, None, None),
    "cannot be looked at": Probe("S", 5.0, 0, (), None, None),
    "sets up a communicator like all others": WAITING,
}


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("what", BENIGN)
def test_a_rank_is_tolerated_for_minutes_while_it(what: str, ranks: int) -> None:
    world = trained(ranks)

    def processes(rank: int, now_s: float) -> Probe:
        one = BENIGN[what]
        return WAITING if rank != 1 else dataclasses.replace(one, cpu_s=now_s) if one.state == "R" else one

    world.processes = processes
    assert hang_in(world.stand(590.0)) is None
    assert world.probed > ranks


def test_probes_become_rarer_as_the_silence_lasts() -> None:
    world = trained(2)
    found = world.stand(600.0)
    assert sum(bool(each.probe) for each in found) < 100


def test_steps_that_become_slow_for_all_are_not_a_hang() -> None:
    world = World(4)
    world.go(30.0)
    world.step_s = 6.0
    assert hang_in(world.go(300.0)) is None


def test_ranks_in_identical_states_are_not_blamed_and_end_at_their_timeout() -> None:
    world = trained(4)
    world.move(section="collective")
    world.processes = lambda *_: WAITING
    began_s = world.now_s
    hang = hang_in(world.stand(700.0))
    assert hang is not None
    assert hang.ranks == ()
    assert hang.section == "collective"
    assert 600.0 <= world.now_s - began_s < 601.0


def test_a_rank_in_another_collective_than_most_is_named_at_its_timeout() -> None:
    world = trained(4)
    world.move(section="collective")
    elsewhere = dataclasses.replace(WAITING, stack=("/work/train.py:99 average", *TRAIN))
    world.processes = one_and_others(elsewhere, WAITING)
    hang = hang_in(world.stand(700.0))
    assert hang is not None
    assert hang.ranks == (1,)
    assert hang.silent_s >= 600.0


def test_a_wait_in_a_collective_is_explained_by_a_rank_that_works_longer() -> None:
    world = trained(2)
    world.move(1, section="evaluation")
    world.processes = one_and_others(dataclasses.replace(LOCKED, waits_on=None), WAITING)
    began_s = world.now_s
    hang = hang_in(world.stand(4000.0))
    assert hang is not None
    assert hang.ranks == (1,)
    assert 3600.0 <= world.now_s - began_s < 3601.0


def test_one_rank_that_evaluates_with_heartbeats_is_never_ended() -> None:
    world = trained(2)
    world.processes = one_and_others(Probe("R", 0.0, 0, TRAIN), WAITING)
    for _ in range(100):
        assert hang_in(world.stand(60.0)) is None
        world.move(1, section="evaluation")


def test_missing_heartbeats_are_not_evidence() -> None:
    world = trained(4)
    world.processes = one_and_others(STOPPED, WAITING)
    world.unheard = {0, 1, 2, 3}
    assert hang_in(world.stand(1000.0)) is None


def test_no_rank_is_named_while_one_ranks_heartbeats_are_missing() -> None:
    world = trained(4)
    world.processes = one_and_others(STOPPED, WAITING)
    world.unheard = {3}
    assert hang_in(world.stand(60.0)) is None
    world.unheard = set()
    assert hang_in(world.stand(60.0)) is not None


def test_a_rank_that_has_ended_is_not_awaited() -> None:
    world = trained(4)
    world.processes = one_and_others(STOPPED, WAITING)
    world.unheard = {3}
    world.watch.ended([3])
    hang = hang_in(world.stand(60.0))
    assert hang is not None
    assert hang.ranks == (1,)


def test_late_heartbeats_that_arrive_together_are_not_a_silence() -> None:
    world = World(2)
    world.go(30.0)
    world.unheard = {0, 1}
    world.go(20.0)  # steps advance without heartbeats
    world.unheard = set()
    world.processes = one_and_others(LOCKED, WAITING)
    assert hang_in(world.go(10.0)) is None


def test_a_generation_stopped_as_a_whole_blames_no_rank() -> None:
    world = trained(4)
    world.processes = lambda *_: STOPPED
    assert hang_in(world.stand(600.0)) is None


def test_half_of_the_ranks_on_a_lock_are_not_culprits_for_the_rest() -> None:
    world = trained(4)
    world.move(section="compute")
    other = dataclasses.replace(LOCKED, stack=TRAIN)
    world.processes = lambda rank, _: LOCKED if rank < 2 else other
    assert hang_in(world.stand(600.0)) is None


def test_many_ranks_at_one_place_wait_even_outside_known_collectives() -> None:
    world = trained(8)
    item = ("/work/train.py:70 main",)
    world.move(section="compute")
    world.processes = lambda rank, now_s: LOCKED if rank == 1 else Probe("R", now_s, 0, item)  # as CUDA waits: it spins
    hang = hang_in(world.stand(60.0))
    assert hang is not None
    assert hang.ranks == (1,)


def test_before_the_first_step_a_lock_proves_nothing_but_a_stop_does() -> None:
    world = World(2)
    world.stand(5.0)
    world.move(section="collective")
    world.move(1, section="script")
    world.processes = one_and_others(LOCKED, WAITING)
    assert hang_in(world.stand(60.0)) is None
    world.processes = one_and_others(STOPPED, WAITING)
    assert hang_in(world.stand(60.0)) is not None


def test_after_thirty_steps_of_any_speed_a_lock_is_proof_at_once() -> None:
    world = trained(2, seconds=2.0, step_s=0.05)
    world.processes = one_and_others(LOCKED, WAITING)
    hang = hang_in(world.stand(60.0))
    assert hang is not None
    assert hang.silent_s <= 2.0


def test_the_first_steps_after_a_restore_count_as_first_steps() -> None:
    world = World(2, base=5_000)
    world.go(0.5)
    world.move(1, section="compute")
    world.processes = one_and_others(LOCKED, WAITING)
    began_s = world.now_s
    assert hang_in(world.stand(60.0)) is not None
    assert world.now_s - began_s > FIRST_STEPS_S


@pytest.mark.parametrize("ranks", [2, 8])
def test_in_the_first_steps_a_lock_is_proof_after_ten_idle_seconds(ranks: int) -> None:
    world = trained(ranks, seconds=0.5)
    world.processes = one_and_others(LOCKED, WAITING)
    began_s = world.now_s
    hang = hang_in(world.stand(60.0))
    assert hang is not None
    assert hang.ranks == (1,)
    assert FIRST_STEPS_S < world.now_s - began_s <= FIRST_STEPS_S + 3.0


@pytest.mark.parametrize("what", BENIGN)
def test_in_the_first_steps_a_rank_is_tolerated_while_it(what: str) -> None:
    world = trained(2, seconds=0.5)
    one = BENIGN[what]
    world.processes = lambda rank, now_s: (
        WAITING if rank != 1 else dataclasses.replace(one, cpu_s=now_s) if one.state == "R" else one
    )
    assert hang_in(world.stand(100.0)) is None


@pytest.mark.parametrize("used", ["cpu_s", "io_bytes"])
def test_in_the_first_steps_a_lock_with_occasional_activity_is_not_proof(used: str) -> None:
    """Like a native library that loads something while the script's thread waits for it."""
    world = trained(2, seconds=0.5)
    grows: dict[str, Callable[[float], Probe]] = {
        "cpu_s": lambda now_s: dataclasses.replace(LOCKED, cpu_s=now_s // 4),
        "io_bytes": lambda now_s: dataclasses.replace(LOCKED, io_bytes=int(now_s // 4) << 20),
    }
    world.processes = lambda rank, now_s: grows[used](now_s) if rank == 1 else WAITING
    assert hang_in(world.stand(100.0)) is None


# --- flight recorders -------------------------------------------------------------------------------------------------


def entered(number: int, *, done: bool = False) -> tuple[Collective, ...]:
    return (Collective("0", "default_pg", number, "all_reduce(Float[4])", done),)


def test_a_hang_names_the_collective_that_its_culprit_has_not_entered() -> None:
    world = trained(4)
    world.processes = one_and_others(LOCKED, WAITING)
    world.stand(1.0)
    world.watch.recorded({rank: entered(7) for rank in (0, 2, 3)} | {1: entered(6, done=True)})
    world.watch.recorded({}, "INCOMPLETE: Missing communicator data from 1 job process")
    hang = hang_in(world.stand(60.0))
    assert hang is not None
    assert hang.ranks == (1,)
    assert hang.why.endswith(
        "; rank 1 has not entered all_reduce(Float[4]), number 7 of group default_pg, in which 3 others wait"
        "; NCCL says: INCOMPLETE: Missing communicator data from 1 job process"
    )


def in_an_operation(operation: str) -> tuple[Collective, ...]:
    return (Collective("0", "default_pg", 7, operation, False, 7, (CollectiveOperation(7, operation, "same"),)),)


@pytest.mark.parametrize("ranks", [2, 4])
def test_mismatched_collectives_are_an_immediate_hang_that_blames_no_node(ranks: int) -> None:
    world = trained(ranks)
    world.move(section="collective")
    world.processes = lambda *_: WAITING
    world.stand(1.0)
    others = {rank: in_an_operation("all_reduce of 4 elements") for rank in range(ranks)}
    world.watch.recorded(others | {1: in_an_operation("barrier")})
    hang = hang_in(world.stand(60.0))
    assert hang is not None
    assert (hang.ranks, hang.section) == ((), "collective")
    assert hang.silent_s <= 2.0
    assert hang.why.endswith("they will never match")


@pytest.mark.parametrize("running", [False, True])
def test_ranks_in_different_collectives_are_tolerated_if_one_stack_changes(running: bool) -> None:
    def process(rank: int, now_s: float) -> Probe:
        if running:
            return Probe("R", 5.0, 0) if rank == 1 else WAITING
        return dataclasses.replace(WAITING, stack=(f"/work/train.py:{int(10 * now_s)} main", *GATHER))

    world = trained(2)
    world.processes = process
    world.stand(1.0)
    world.watch.recorded({0: in_an_operation("all_reduce of 4 elements"), 1: in_an_operation("barrier")})
    assert hang_in(world.stand(60.0)) is None


@pytest.mark.parametrize(("where", "ranks"), [(None, (2,)), ("collective", ())], ids=["outside", "in a collective by now"])
def test_without_conclusive_stacks_the_flight_recorder_names_the_culprit(where: str | None, ranks: tuple[int, ...]) -> None:
    """All ranks are at one place of the script, each in different native code."""
    world = trained(4)
    world.move(section="compute")
    world.processes = lambda *_: dataclasses.replace(LOCKED, waits_on=None, where=where)
    world.stand(1.0)
    world.watch.recorded({rank: entered(7) for rank in (0, 1, 3)} | {2: entered(6, done=True)})
    hang = hang_in(world.stand(2000.0))
    assert hang is not None
    assert hang.ranks == ranks


def spinning(_: int, now_s: float) -> Probe:
    """A rank that waits for its GPU: it uses a core, and a running process shows no stack."""
    return Probe("R", now_s, 0)


def stand_recorded(world: World, seconds: float, dumps: Mapping[int, tuple[Collective, ...]]) -> Hang | None:
    """Let this time pass while ranks dump their flight recorders repeatedly."""
    for number in range(round(seconds / 10.0)):
        if (hang := hang_in(world.stand(10.0, fine_s=0.0 if number > 1 else 10.0))) is not None:
            return hang
        world.watch.recorded(dumps)
    return None


def pending(number: int, *, on_device: bool = True) -> tuple[Collective, ...]:
    return (Collective("0", "default_pg", number, "all_reduce(Float[4])", False, number, on_device=on_device),)


def test_an_endless_gpu_collective_is_a_hang_despite_busy_ranks() -> None:
    world = trained(4)
    world.move(section="compute")
    world.processes = spinning
    hang = stand_recorded(world, 2000.0, {rank: pending(7) for rank in range(4)})
    assert hang is not None
    assert (hang.ranks, hang.section) == ((), "collective")
    limit_s = DEFAULT_TIMEOUTS["collective"].floor_s
    assert limit_s < hang.silent_s <= limit_s + 25.0
    assert "; every rank has entered all_reduce(Float[4]), number 7 of group default_pg, which does not complete" in hang.why


@pytest.mark.parametrize(
    "last",
    [entered(6, done=True), pending(6), ()],
    ids=["has not entered it", "waits in the previous one", "has entered none"],
)
def test_ranks_that_block_the_others_have_the_time_of_a_busy_rank(last: tuple[Collective, ...]) -> None:
    world = trained(4)
    world.move(section="compute")
    world.processes = spinning
    assert stand_recorded(world, 2000.0, {0: pending(7), 1: pending(7), 2: pending(7), 3: last}) is None


def test_a_gloo_collective_is_judged_by_stacks() -> None:
    world = trained(4)
    world.move(section="compute")
    world.processes = spinning
    assert stand_recorded(world, 2000.0, {rank: pending(7, on_device=False) for rank in range(4)}) is None


def test_a_late_collective_followed_by_another_is_not_a_hang() -> None:
    world = trained(2)
    world.move(section="compute")
    world.processes = spinning
    for number in range(7, 12):
        assert stand_recorded(world, 500.0, {rank: pending(number) for rank in range(2)}) is None


def test_an_ended_process_may_take_time_until_the_kernel_has_freed_it() -> None:
    """Its memory is locked for a GPU: its exit code arrives when that is undone."""
    world = trained(4)
    world.processes = one_and_others(Probe("Z", 5.0, 0), WAITING)
    assert hang_in(world.stand(EXITING_S - 5.0)) is None
    hang = hang_in(world.stand(30.0))
    assert hang is not None
    assert hang.ranks == (1,)


def test_a_rank_that_has_ended_is_not_named_by_its_earlier_record() -> None:
    world = trained(4)
    world.stand(1.0)
    world.watch.recorded({rank: entered(7) for rank in (0, 1, 3)} | {2: entered(6, done=True)})
    world.watch.ended([2])
    del world.beats[2]
    world.processes = lambda *_: WAITING
    hang = hang_in(world.stand(2000.0))
    assert hang is not None
    assert hang.ranks == ()


def test_records_older_than_the_last_progress_prove_nothing() -> None:
    world = trained(4)
    world.watch.recorded({rank: entered(7) for rank in (0, 2, 3)} | {1: entered(6, done=True)}, "INCOMPLETE")
    world.go(1.0)
    world.processes = one_and_others(STOPPED, WAITING)
    hang = hang_in(world.stand(60.0))
    assert hang is not None
    assert "number 7" not in hang.why
    assert "NCCL" not in hang.why


@pytest.mark.parametrize(
    ("used_at", "recorded", "after_s"),
    [([5], True, 4.1), ([5], False, 4.6), (range(2, 1000), True, None)],
    ids=["a dump", "something else", "a dump and always something else"],
)
def test_an_idle_rank_that_writes_a_dump_still_counts_as_idle(
    used_at: Sequence[int], recorded: bool, after_s: float | None
) -> None:
    """Probes are 0.5 s apart from 1.9 s on, and a hang is named from 4 s on."""
    world = trained(4, seconds=60.0, step_s=1.0)
    used, looks, began_s = LOCKED, 0, world.now_s

    def processes(rank: int, _: float) -> Probe:
        nonlocal used, looks
        if rank != 1:
            return WAITING
        looks += 1
        if looks in used_at:
            used = dataclasses.replace(used, cpu_s=used.cpu_s + 0.4, io_bytes=used.io_bytes + (1 << 20))
            if recorded:
                world.watch.recorded({1: entered(6, done=True)})
        return used

    world.processes = processes
    hang = hang_in(world.stand(60.0))
    assert (hang is None) == (after_s is None)
    assert after_s is None or world.now_s - began_s == pytest.approx(after_s, abs=0.21)


def test_slow_phases_of_a_section_extend_its_timeout() -> None:
    timeouts = {**DEFAULT_TIMEOUTS, "data": Timeout(10.0, 10.0)}
    world = World(2, timeouts)
    world.processes = lambda *_: dataclasses.replace(LOCKED, waits_on=None)
    for _ in range(30):
        world.move(section="data")
        assert hang_in(world.stand(5.0)) is None
        world.move(section="compute", steps=1)
        world.stand(1.0)
    world.move(section="data")
    assert hang_in(world.stand(45.0)) is None
    assert hang_in(world.stand(10.0)) is not None


def without_rank_2(process: Processes | None, seconds: float) -> Hang | None:
    """The others continue for this long without rank 2, whose process is probed on the watch's request, if possible."""
    world = World(4)
    world.go(10.0)
    if process is not None:
        world.processes = process
    until_s, frozen = world.now_s + seconds, world.beats[2]
    while world.now_s < until_s:
        world.now_s += 1.0
        world.move(0, 1, 3, steps=1)
        world.send_heartbeats()
        found = world.watch.tick(world.now_s)
        if process is not None:
            world.watch.probed({rank: world.processes(rank, world.now_s) for rank in found.probe}, world.now_s)
        world.probed += len(found.probe)
        if found.hang is not None:
            return found.hang
    assert world.beats[2] == frozen
    assert world.probed < 2 * seconds / 60
    return None


@pytest.mark.parametrize("process", [lambda *_: LOCKED, None], ids=["it stalls", "it cannot be probed"])
def test_a_rank_left_behind_by_the_others_is_named_at_its_timeout(process: Processes | None) -> None:
    hang = without_rank_2(process, 1000.0)
    assert hang is not None
    assert (hang.ranks, hang.section) == ((2,), "compute")
    assert 900.0 < hang.silent_s < 905.0 + (0.0 if process else UNSEEN_S)
    assert "HEADWAY_TIMEOUT_COMPUTE" in hang.why


@pytest.mark.slow
@pytest.mark.parametrize(
    "process",
    [
        lambda _, now_s: Probe("R", now_s, 0),
        lambda _, now_s: dataclasses.replace(ASKS, stack=(f"/work/train.py:{int(now_s)} rollout",)),
        lambda _, now_s: dataclasses.replace(ASKS, io_bytes=int(4096 * now_s)),
    ],
    ids=["computes", "executes its code", "reads and writes"],
)
def test_a_rank_left_behind_by_the_others_may_work_for_hours(process: Processes) -> None:
    assert without_rank_2(process, 4 * 3600.0) is None


def test_a_rank_left_behind_may_wait_for_a_server_for_an_hour() -> None:
    hang = without_rank_2(lambda *_: ASKS, 4 * 3600.0)
    assert hang is not None
    assert 3600.0 < hang.silent_s < 3603.0


def test_a_rank_that_the_others_wait_for_is_not_left_behind() -> None:
    world = trained(2)
    world.move(0, section="evaluation")
    for _ in range(2000):
        assert hang_in(world.stand(1.0)) is None
        world.move(0)


@pytest.mark.slow
def test_a_script_without_steps_may_work_for_hours_but_not_stall() -> None:
    world = World(2)
    world.move(section="script")
    world.processes = lambda _, now_s: Probe("R", now_s, 0, TRAIN)
    assert hang_in(world.stand(5_000.0)) is None
    world.processes = lambda *_: LOCKED
    began_s = world.now_s
    assert hang_in(world.stand(5_000.0)) is not None
    assert 1800.0 <= world.now_s - began_s < 1900.0


@pytest.mark.slow
def test_a_large_job_probes_the_blocking_ranks_and_a_sample() -> None:
    world = World(4_000, step_s=2.0)
    world.watch.beat(world.beats, world.now_s)
    for step in range(1, 40):
        world.now_s += 2.0
        beats = {rank: RankBeat(step, "compute", step, 0.0) for rank in world.beats}
        world.watch.beat(beats, world.now_s)
    section = {rank: "compute" if rank == 3_777 else "collective" for rank in world.beats}
    named: Hang | None = None
    while named is None and world.now_s < 1200.0:
        world.now_s += 0.5
        for node in range(0, 4_000, 8):
            beats = {rank: RankBeat(39, section[rank], 39, world.now_s - 1078.0) for rank in range(node, node + 8)}
            world.watch.beat(beats, world.now_s)
        found = world.watch.tick(world.now_s)
        assert len(found.probe) <= 1024
        world.watch.probed({r: LOCKED if r == 3_777 else WAITING for r in found.probe}, world.now_s)
        named = found.hang
    assert named is not None
    assert named.ranks == (3_777,)
    assert named.silent_s <= 10.0


# --- long phases without calls to torch ------------------------------------------------------------------------------------

AT_WORK: dict[str, Callable[[float], Probe]] = {
    "computes": lambda now_s: Probe("R", now_s, 0),
    "has others compute": lambda now_s: dataclasses.replace(ASKS, cpu_s=now_s),
    "uploads": lambda now_s: dataclasses.replace(LOCKED, waits_on="wait_woken", io_bytes=int(now_s) << 20),
    "asks a server again and again": lambda now_s: dataclasses.replace(ASKS, stack=(f"/work/train.py:{int(now_s)} ask",)),
}


# Each activity in one section, and one activity in each section.
HOURS = [
    pytest.param(what, section, marks=[pytest.mark.variant] * (what != "computes" and section != "compute"))
    for what in AT_WORK
    for section in ("compute", "data", "script", "evaluation")
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "section"), HOURS)
def test_a_rank_may_work_for_hours_while_the_others_wait_when_it(what: str, section: str) -> None:
    world = trained(2)
    world.move(1, section=section)
    world.processes = lambda rank, now_s: WAITING if rank == 0 else AT_WORK[what](now_s)
    assert hang_in(world.stand(3 * 3600.0)) is None


@pytest.mark.slow
def test_all_ranks_may_work_for_hours() -> None:
    world = trained(2)
    world.move(section="compute")
    world.processes = lambda _, now_s: AT_WORK["computes"](now_s)
    assert hang_in(world.stand(3 * 3600.0)) is None


@pytest.mark.slow
def test_a_rank_that_works_beyond_its_bound_is_ended_with_the_bound_named() -> None:
    longest_s = 2 * 3600.0
    world = trained(2, timeouts={**DEFAULT_TIMEOUTS, "busy": Timeout(longest_s)})
    world.processes = lambda rank, now_s: WAITING if rank == 0 else AT_WORK["computes"](now_s)
    began_s = world.now_s
    hang = hang_in(world.stand(longest_s + 100.0))
    assert hang is not None
    assert longest_s <= world.now_s - began_s < longest_s + 2.0
    assert (hang.ranks, hang.section) == ((1,), "compute")
    assert "HEADWAY_TIMEOUT_BUSY" in hang.why


@pytest.mark.slow
def test_a_rank_that_stalls_after_working_is_ended_at_its_sections_timeout() -> None:
    world = trained(2)
    world.processes = lambda rank, now_s: WAITING if rank == 0 else AT_WORK["computes"](now_s)
    assert hang_in(world.stand(2 * 3600.0)) is None
    world.processes = one_and_others(dataclasses.replace(LOCKED, waits_on=None), WAITING)
    began_s = world.now_s
    hang = hang_in(world.stand(3600.0))
    assert hang is not None
    assert 0.0 <= world.now_s - began_s < 1000.0
    assert "HEADWAY_TIMEOUT_COMPUTE" in hang.why


def test_a_bound_shorter_than_the_probe_interval_ends_no_working_rank() -> None:
    world = World(2, {**DEFAULT_TIMEOUTS, "compute": Timeout(10.0)})
    world.go(30.0)
    world.move(0, section="collective")
    world.processes = lambda rank, now_s: WAITING if rank == 0 else AT_WORK["computes"](now_s)
    assert hang_in(world.stand(3600.0)) is None


def test_background_activity_during_a_collective_is_not_work() -> None:
    """NCCL spins, and a tracker's thread sends."""
    world = trained(2)
    world.move(section="collective")
    world.processes = lambda _, now_s: dataclasses.replace(WAITING, cpu_s=now_s, io_bytes=int(now_s) << 20)
    hang = hang_in(world.stand(700.0))
    assert hang is not None
    assert "HEADWAY_TIMEOUT_COLLECTIVE" in hang.why


WAITS_OUTSIDE = {
    "a server": ASKS,
    "an event loop's sockets": dataclasses.replace(
        ASKS, stack=("/usr/lib/python3.11/selectors.py:468 select", "/usr/lib/python3.11/asyncio/base_events.py:1871 _run_once")
    ),
    "a socket of its own": dataclasses.replace(LOCKED, waits_on="wait_woken"),
    "a clock": dataclasses.replace(LOCKED, waits_on="hrtimer_nanosleep"),
}


@pytest.mark.parametrize("what", WAITS_OUTSIDE)
def test_a_rank_has_the_evaluation_timeout_when_it_waits_for(what: str) -> None:
    world = trained(2)
    world.processes = one_and_others(WAITS_OUTSIDE[what], WAITING)
    began_s = world.now_s
    hang = hang_in(world.stand(4000.0))
    assert hang is not None
    assert 3600.0 <= world.now_s - began_s < 3602.0
    assert "HEADWAY_TIMEOUT_EVALUATION" in hang.why


# --- suspension of the whole job --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agents_notice", [True, False])
@pytest.mark.parametrize("in_a_collective", [True, False])
def test_a_job_that_was_suspended_as_a_whole_continues(agents_notice: bool, in_a_collective: bool) -> None:
    world = trained(2)
    world.processes = one_and_others(LOCKED, WAITING) if in_a_collective else lambda _, now_s: Probe("R", now_s, 0)
    world.now_s += 36_000.0
    if agents_notice:
        world.signs_s = {rank: sign_s + 36_000.0 for rank, sign_s in world.signs_s.items()}
    else:
        world.watch.slept(36_000.0)
    world.send_heartbeats()
    assert world.watch.tick(world.now_s).hang is None
    assert hang_in(world.stand(1.0)) is None
    assert hang_in(world.go(5.0)) is None


def test_a_hang_after_a_suspension_is_found_as_before() -> None:
    world = trained(2)
    world.processes = one_and_others(LOCKED, WAITING)
    world.stand(0.5)
    world.now_s += 3600.0
    world.signs_s = {rank: sign_s + 3600.0 for rank, sign_s in world.signs_s.items()}
    hang = hang_in(world.stand(10.0))
    assert hang is not None
    assert hang.ranks == (1,)
    assert hang.silent_s < 5.0


def test_a_node_that_was_suspended_alone_is_not_a_hang() -> None:
    """Its agent does not count its pause; the others have waited all the time."""
    world = trained(2)
    world.move(1, section="collective")
    world.processes = lambda *_: WAITING
    world.unheard = {1}
    assert hang_in(world.stand(590.0)) is None
    world.unheard, world.signs_s[1] = set(), world.signs_s[1] + 590.0
    assert hang_in(world.stand(100.0)) is None
