"""Pipeline schedules compared with torch's orders, with closed forms of their times, and with published bounds of memory."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import groupby
from math import fsum
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, _Action, get_schedule_class
from torch.testing._internal.distributed.fake_pg import FakeStore

from headway.jobspec.spec.layout import Schedule as SpecSchedule
from headway.planner.schedules.operation import Operation
from headway.planner.schedules.orders import ScheduleError
from headway.planner.schedules.schedule import Schedule, make_schedule
from headway.planner.schedules.steps import DeadlockError, steps_of
from headway.planner.schedules.timeline import ScheduleSpan, Times, run, spans

ONE_STAGE = ("GPipe", "1F1B", "ZBH1")
LOOPED = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
FOLDED = ("ZBVZeroBubble", "DualPipeV")


def equal_times(schedule: Schedule, forward: float = 1, input_gradient: float = 1, weight_gradient: float = 1) -> Times:
    stages = schedule.shape.stages
    return Times([forward] * stages, [input_gradient] * stages, [weight_gradient] * stages)


# --- the orders against torch itself -----------------------------------------------------------------------------------------------


class Recorder(PipelineStage):
    """A stage that records the requested operations, and neither computes nor sends."""

    def __init__(self, index: int, stages: int) -> None:
        super().__init__(torch.nn.Linear(1, 1), index, stages, torch.device("cpu"))
        self.operations: list[Operation] = []

    def forward_one_chunk(self, fwd_chunk_id: int, *_: object, **__: object) -> None:
        self.operations.append(Operation("F", self.stage_index, fwd_chunk_id))

    def backward_one_chunk(self, bwd_chunk_id: int, *_: object, **__: object) -> None:
        self.operations.append(Operation("B", self.stage_index, bwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return []

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return []

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return []

    def perform_reduce_grad(self, _: int) -> None:
        """There are no gradients."""


@contextmanager
def single_rank_of(world_size: int, rank: int = 0) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def torch_order(name: str, ranks: int, microbatches: int, chunks: int) -> list[list[Operation]]:
    """Return the operations of each rank in torch's schedule. Raises ValueError if torch rejects it."""
    if not issubclass(get_schedule_class(name), PipelineScheduleMulti):
        return [_recorded_order(name, ranks, microbatches, rank) for rank in range(ranks)]
    with single_rank_of(ranks):
        held = [0, 2 * ranks - 1] if name in FOLDED else range(0, ranks * chunks, ranks)
        stages = [PipelineStage(torch.nn.Linear(1, 1), index, ranks * chunks, torch.device("cpu")) for index in held]
        schedule = get_schedule_class(name)(stages, microbatches)
        return [[part for action in schedule.pipeline_order[rank] if action for part in _parts(action)] for rank in range(ranks)]


def _parts(action: _Action) -> list[Operation]:
    """Split an action of torch: a pair of overlapped passes is one action with two parts."""
    if action.sub_actions is None:
        return [Operation(action.computation_type.value, action.stage_index, action.microbatch_index)]  # type: ignore[arg-type]
    forward, backward = (_parts(part)[0] for part in action.sub_actions)
    return [forward._replace(overlapped=True), backward]


def _recorded_order(name: str, ranks: int, microbatches: int, rank: int) -> list[Operation]:
    with single_rank_of(ranks, rank):
        stage = Recorder(rank, ranks)
        schedule = get_schedule_class(name)(stage, microbatches)
        # This skips the exchange of shapes.
        schedule._stage_forward_initialized = True
        schedule._step_microbatches()
    return stage.operations


def own_order(name: str, ranks: int, microbatches: int, chunks: int) -> list[list[Operation]]:
    schedule = make_schedule(name, ranks, microbatches, chunks)
    return [list(schedule.operations(rank)) for rank in range(ranks)]


GRID = [(name, ranks, 1) for name in ("GPipe", "1F1B") for ranks in (1, 2, 3, 4, 8)]
GRID += [(name, ranks, chunks) for name in LOOPED for ranks in (1, 2, 3, 4, 8) for chunks in (1, 2, 3, 4)]
GRID += [(name, ranks, 2) for name in FOLDED for ranks in (1, 2, 3, 4, 5, 8)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "chunks"), GRID)
def test_every_rank_runs_the_operations_of_torch_in_the_same_order(name: str, ranks: int, chunks: int) -> None:
    compared = 0
    for microbatches in sorted({*range(1, 2 * ranks + 2), 2 * ranks * chunks, 5 * ranks, 5 * ranks + 1}):
        try:
            expected = torch_order(name, ranks, microbatches, chunks)
        except ValueError:
            if name != "1F1B":
                with pytest.raises(ScheduleError):
                    make_schedule(name, ranks, microbatches, chunks)
            continue
        assert own_order(name, ranks, microbatches, chunks) == expected, microbatches
        compared += 1
    assert compared >= 3


def test_every_schedule_of_the_spec_language_is_compared() -> None:
    assert {name for name, _, _ in GRID} == set(get_args(SpecSchedule))


@pytest.mark.parametrize("name", [*LOOPED, *FOLDED])
def test_stage_is_on_the_same_rank_as_in_torch(name: str) -> None:
    with single_rank_of(4):
        held = [0, 7] if name in FOLDED else [0, 4]
        stages = [PipelineStage(torch.nn.Linear(1, 1), index, 8, torch.device("cpu")) for index in held]
        schedule = get_schedule_class(name)(stages, 8)
        assert make_schedule(name, 4, 8, 2).rank_of == tuple(schedule.stage_index_to_group_rank[stage] for stage in range(8))


def test_interleaved_zero_bubble_with_one_stage_per_rank_is_zbh1() -> None:
    for ranks, microbatches in ((2, 4), (4, 4), (4, 12), (8, 16)):
        assert own_order("ZBH1", ranks, microbatches, 1) == torch_order("InterleavedZeroBubble", ranks, microbatches, 1)


def test_1f1b_with_fewer_microbatches_than_ranks_equals_gpipe() -> None:
    assert own_order("1F1B", 4, 1, 1) == own_order("GPipe", 4, 1, 1)


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "chunks", "message"),
    [
        ("2F2B", 2, 2, 1, "`2F2B` is not a pipeline schedule; there are GPipe, 1F1B, Interleaved1F1B, LoopedBFS, "),
        ("1F1B", 2, 2, 2, "`1F1B` needs 1 stage per rank, not 2"),
        ("DualPipeV", 2, 4, 1, "`DualPipeV` needs 2 stages per rank, not 1"),
        ("DualPipeV", 2, 3, 2, "`DualPipeV` needs a microbatch for each of 4 stages, not 3"),
        (
            "Interleaved1F1B",
            2,
            5,
            2,
            "`Interleaved1F1B` runs in rounds of equal size, but 5 microbatches do not divide into 2 rounds",
        ),
        (
            "GPipe",
            2,
            0,
            1,
            "ranks, stages of a rank and microbatches are at least 1; here they are 2, 1, 0",
        ),
    ],
)
def test_unsupported_shape_is_rejected_with_the_reason(
    name: str, ranks: int, microbatches: int, chunks: int, message: str
) -> None:
    with pytest.raises(ScheduleError) as refusal:
        make_schedule(name, ranks, microbatches, chunks)
    assert str(refusal.value).startswith(message)


def test_deadlock_of_ranks_is_an_error() -> None:
    first = [Operation("F", 0, 0), Operation("B", 0, 0), Operation("F", 0, 1), Operation("B", 0, 1)]
    second = [Operation("F", 1, 0), Operation("F", 1, 1), Operation("B", 1, 0), Operation("B", 1, 1)]
    with pytest.raises(DeadlockError, match=r"^rank 0 waits forever before B of microbatch 0 on stage 0$"):
        steps_of([first, second], 2, 2)


def test_a_weight_gradient_before_its_input_gradient_is_an_error() -> None:
    order = [Operation("F", 0, 0), Operation("W", 0, 0), Operation("I", 0, 0)]
    with pytest.raises(DeadlockError, match=r"^rank 0 waits forever before W of microbatch 0 on stage 0$"):
        steps_of([order], 1, 1)


# --- times against closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_bubble_of_equal_stages_is_p_minus_1_over_m_plus_p_minus_1(name: str, ranks: int) -> None:
    """arXiv 2104.04473, section 2.2.1: a bubble of (p - 1) passes in addition to m."""
    for microbatches in (1, ranks, 3 * ranks + 1):
        schedule = make_schedule(name, ranks, microbatches)
        timeline = run(schedule, equal_times(schedule, 2, 3, 1))
        assert timeline.makespan == (microbatches + ranks - 1) * 6
        assert timeline.busy == (microbatches * 6,) * ranks
        assert timeline.bubble == pytest.approx(float(Fraction(ranks - 1, microbatches + ranks - 1)), abs=1e-15)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("name", ["Interleaved1F1B", "LoopedBFS"])
def test_interleaving_divides_the_bubble_by_the_stages_per_rank(name: str, chunks: int, ranks: int) -> None:
    """arXiv 2104.04473, section 2.2.2."""
    for microbatches in (ranks, 4 * ranks):
        schedule = make_schedule(name, ranks, microbatches, chunks)
        timeline = run(schedule, equal_times(schedule, 2, 3, 1))
        assert timeline.makespan == (microbatches * chunks + ranks - 1) * 6


@pytest.mark.parametrize(("forward", "input_gradient", "weight_gradient"), [(1, 1, 1), (2, 2, 1), (2, 3, 1)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("name", "chunks"), [("ZBH1", 1), ("InterleavedZeroBubble", 2), ("InterleavedZeroBubble", 3)])
def test_zero_bubble_h1_idles_f_plus_i_minus_w_per_hop(
    name: str, chunks: int, ranks: int, forward: int, input_gradient: int, weight_gradient: int
) -> None:
    """arXiv 2401.10241, table 2: ZB-H1."""
    for microbatches in (ranks, 4 * ranks):
        schedule = make_schedule(name, ranks, microbatches, chunks)
        timeline = run(schedule, equal_times(schedule, forward, input_gradient, weight_gradient))
        idle = (ranks - 1) * (forward + input_gradient - weight_gradient)
        assert timeline.makespan == microbatches * chunks * (forward + input_gradient + weight_gradient) + idle


def _by_rank(passes: Iterable[ScheduleSpan]) -> list[ScheduleSpan]:
    return sorted(passes, key=lambda span: (span.rank, span.start))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_zbv_with_equal_passes_has_no_idle_time_inside_a_rank(ranks: int) -> None:
    """arXiv 2401.10241, section 6; the ranks start one pass apart."""
    for microbatches in (2 * ranks, 3 * ranks + 1):
        schedule = make_schedule("ZBVZeroBubble", ranks, microbatches, 2)
        for rank, passes in groupby(_by_rank(spans(schedule, equal_times(schedule))), key=lambda span: span.rank):
            ordered = list(passes)
            assert (ordered[0].start, ordered[-1].end - ordered[0].start) == (rank, 6 * microbatches)


@pytest.mark.parametrize(("forward", "input_gradient", "weight_gradient"), [(1, 1, 1), (2, 2, 1)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_dual_pipe_v_idles_as_published(ranks: int, forward: int, input_gradient: int, weight_gradient: int) -> None:
    """deepseek-ai/DualPipe:README.md: (PP / 2 - 1)(F&B + B - 3W) for PP / 2 ranks; here a pair takes as long as its passes."""
    backward = input_gradient + weight_gradient
    for microbatches in (2 * ranks, 3 * ranks + 1):
        schedule = make_schedule("DualPipeV", ranks, microbatches, 2)
        timeline = run(schedule, equal_times(schedule, forward, input_gradient, weight_gradient))
        idle = (ranks - 1) * (forward + backward + backward - 3 * weight_gradient)
        assert timeline.makespan == 2 * microbatches * (forward + backward) + idle


def test_slow_last_stage_determines_the_time() -> None:
    """It computes from the first microbatch's arrival to the last gradient's departure without a pause."""
    for name in ("GPipe", "1F1B"):
        timeline = run(make_schedule(name, 4, 16), Times([1, 1, 1, 2], [1, 1, 1, 2], [1, 1, 1, 2]))
        assert timeline.makespan == 3 + 16 * 6 + 6
        assert timeline.busy == (48, 48, 48, 96)
        assert timeline.finish == (105, 103, 101, 99)


def test_transfer_delays_its_receiver_and_blocks_it_if_exposed() -> None:
    schedule = make_schedule("1F1B", 2, 2)
    overlapped = Times([1, 1], [1, 1], [1, 1], transfer=[0.5])
    exposed = Times([1, 1], [1, 1], [1, 1], transfer=[0.5], exposed=True)
    assert {(span.start, str(span.operation)) for span in spans(schedule, overlapped) if span.rank == 1} == {
        (1.5, "F of microbatch 0 on stage 1"),
        (2.5, "B of microbatch 0 on stage 1"),
        (4.5, "F of microbatch 1 on stage 1"),
        (5.5, "B of microbatch 1 on stage 1"),
    }
    assert {(span.start, str(span.operation)) for span in spans(schedule, exposed) if span.rank == 1} == {
        (1.5, "F of microbatch 0 on stage 1"),
        (2.5, "B of microbatch 0 on stage 1"),
        (5.0, "F of microbatch 1 on stage 1"),
        (6.0, "B of microbatch 1 on stage 1"),
    }
    assert (run(schedule, overlapped).makespan, run(schedule, exposed).makespan) == (10, 10.5)


def test_no_transfer_happens_at_the_turn_of_a_v() -> None:
    schedule = make_schedule("ZBVZeroBubble", 2, 4, 2)
    turning = Times([1] * 4, [1] * 4, [1] * 4, transfer=[0, 9, 0])
    assert run(schedule, turning) == run(schedule, equal_times(schedule))


def test_overlapped_time_of_a_pair_is_not_counted() -> None:
    schedule = make_schedule("DualPipeV", 2, 4, 2)
    pairs = Counter(op.stage for rank in range(2) for op in schedule.operations(rank) if op.overlapped)
    hidden = [0.25, 0.5, 0.75, 1]
    timeline = run(schedule, Times([2] * 4, [2] * 4, [1] * 4, hidden=hidden))
    whole = run(schedule, Times([2] * 4, [2] * 4, [1] * 4))
    for rank in range(2):
        saved = sum(pairs[stage] * hidden[stage] for stage in schedule.stages_of(rank))
        assert saved > 0
        assert timeline.busy[rank] == whole.busy[rank] - saved
    assert timeline.makespan < whole.makespan


def test_times_of_another_number_of_stages_are_rejected() -> None:
    schedule = make_schedule("1F1B", 2, 2)
    with pytest.raises(ValueError, match=r"^times of \[2, 2, 1, 2\] stages and 0 transfers were given, and there are 2 stages$"):
        run(schedule, Times([1, 1], [1, 1], [1]))
    with pytest.raises(ValueError, match=r"^times of \[2, 2, 2, 2\] stages and 2 transfers were given, and there are 2 stages$"):
        run(schedule, Times([1, 1], [1, 1], [1, 1], transfer=[1, 1]))


# --- every schedule of every shape -------------------------------------------------------------------------------------------------


EVERY_NAME = pytest.mark.parametrize("name", [*ONE_STAGE, *LOOPED, *FOLDED])
SETTINGS = settings(max_examples=40, deadline=None)


@st.composite
def schedules(draw: st.DrawFn, name: str) -> Schedule:
    ranks = draw(st.integers(1, 6))
    chunks = 1 if name in ONE_STAGE else 2 if name in FOLDED else draw(st.integers(1, 4))
    try:
        return make_schedule(name, ranks, draw(st.integers(1, 16)), chunks)
    except ScheduleError:
        assume(False)
        raise


@st.composite
def timed_schedules(draw: st.DrawFn, name: str) -> tuple[Schedule, Times]:
    """Draw a schedule and times in whole seconds, so that sums are exact."""
    schedule = draw(schedules(name))
    stages = schedule.shape.stages
    of_stages = st.lists(st.integers(1, 9), min_size=stages, max_size=stages)
    transfer = draw(st.lists(st.integers(0, 4), min_size=stages - 1, max_size=stages - 1))
    hidden = draw(st.sampled_from([(), (1,) * stages]))
    return schedule, Times(draw(of_stages), draw(of_stages), draw(of_stages), transfer, draw(st.booleans()), hidden)


@EVERY_NAME
@SETTINGS
@given(data=st.data())
def test_every_pass_runs_once(name: str, data: st.DataObject) -> None:
    schedule = data.draw(schedules(name))
    passes = Counter(
        (kind, operation.stage, operation.microbatch)
        for rank in range(schedule.shape.ranks)
        for operation in schedule.operations(rank)
        for kind in ("IW" if operation.kind == "B" else operation.kind)
    )
    stages, microbatches = range(schedule.shape.stages), range(schedule.shape.microbatches)
    assert passes == Counter((kind, stage, number) for kind in "FIW" for stage in stages for number in microbatches)
    for rank in range(schedule.shape.ranks):
        assert {operation.stage for operation in schedule.operations(rank)} == set(schedule.stages_of(rank))


def _inputs(operation: Operation, stages: int) -> list[tuple[str, int, int]]:
    """Return the inputs of a pass: the output of the previous stage or the gradient of the next; and earlier passes of its stage."""
    kind, stage, microbatch, _ = operation
    if kind == "F":
        return [("F", stage - 1, microbatch)] if stage else []
    if kind == "W":
        return [("I", stage, microbatch)]
    return [("F", stage, microbatch), *([("I", stage + 1, microbatch)] if stage < stages - 1 else [])]


def _made(span: ScheduleSpan) -> tuple[str, int, int]:
    return ("I" if span.operation.kind == "B" else span.operation.kind, span.operation.stage, span.operation.microbatch)


def _together(run_by_rank: list[ScheduleSpan]) -> Iterator[list[ScheduleSpan]]:
    """Yield a rank's passes one by one, and overlapped ones together."""
    passes = iter(run_by_rank)
    for span in passes:
        yield [span, next(passes)] if span.operation.overlapped else [span]


@EVERY_NAME
@SETTINGS
@given(data=st.data())
def test_every_pass_starts_once_its_rank_and_inputs_are_ready(name: str, data: st.DataObject) -> None:
    schedule, times = data.draw(timed_schedules(name))
    stages = schedule.shape.stages
    by_rank: dict[int, list[ScheduleSpan]] = {rank: [] for rank in range(schedule.shape.ranks)}
    for span in spans(schedule, times):
        by_rank[span.rank].append(span)
    groups = {rank: list(_together(passes)) for rank, passes in by_rank.items()}
    there = {_made(span): group[-1].end for rank in groups for group in groups[rank] for span in group}
    for rank, passes in groups.items():
        assert [span.operation for span in by_rank[rank]] == list(schedule.operations(rank))
        free = 0.0
        for group in passes:
            expected = _expected_start(group, free, there, times, schedule, stages)
            assert group[0].start == expected
            assert [span.start for span in group[1:]] == [span.end for span in group[:-1]]
            free = group[-1].end
    timeline = run(schedule, times)
    assert timeline.finish == tuple(by_rank[rank][-1].end for rank in by_rank)
    assert timeline.busy == tuple(fsum(span.end - span.start for span in by_rank[rank]) for rank in by_rank)


def _expected_start(
    group: list[ScheduleSpan],
    free: float,
    there: dict[tuple[str, int, int], float],
    times: Times,
    schedule: Schedule,
    stages: int,
) -> float:
    """Return the expected start; exposed transfers are sequential, a backward's first."""
    for span in reversed(group):
        for needed in _inputs(span.operation, stages):
            between = times.transfer[min(needed[1], span.operation.stage)] if needed[1] != span.operation.stage else 0
            transfer = between if schedule.rank_of[needed[1]] != span.rank else 0
            free = max(free, there[needed]) + transfer if times.exposed else max(free, there[needed] + transfer)
    return free


@EVERY_NAME
@SETTINGS
@given(data=st.data())
def test_peak_activations_of_a_rank_follow_from_its_order(name: str, data: st.DataObject) -> None:
    schedule = data.draw(schedules(name))
    stages = schedule.shape.stages
    weights = st.lists(st.integers(0, 9), min_size=stages, max_size=stages)
    activation, kept = data.draw(weights), data.draw(weights)
    peaks, in_flight = [], [0] * stages
    for rank in range(schedule.shape.ranks):
        held = most = 0
        counts: Counter[int] = Counter()
        for kind, stage, *_ in schedule.operations(rank):
            change = {"F": activation[stage], "I": kept[stage] - activation[stage], "W": -kept[stage], "B": -activation[stage]}
            held += change[kind]
            most = max(most, held)
            counts[stage] += {"F": 1, "I": 0, "W": -1, "B": -1}[kind]
            in_flight[stage] = max(in_flight[stage], counts[stage])
        peaks.append(most)
    assert schedule.peaks(activation, kept) == tuple(peaks)
    assert schedule.peaks(activation) == schedule.peaks(activation, activation)
    assert schedule.in_flight == tuple(in_flight)


def _published_bound(schedule: Schedule, rank: int) -> int:
    """Return the maximum number of passes whose activations a rank holds at a time."""
    ranks, chunks, microbatches = schedule.shape.ranks, schedule.shape.chunks, schedule.shape.microbatches
    ahead = ranks - 1 - rank
    in_round = microbatches // max(1, microbatches // ranks)
    return {
        # arXiv 1811.06965.
        "GPipe": microbatches,
        # arXiv 2006.09503 (PipeDream-Flush).
        "1F1B": ahead + 1,
        # arXiv 2211.05953: every microbatch of every stage.
        "LoopedBFS": microbatches * chunks,
        # arXiv 2205.05198, section 4.2.3: L(1 + (p - 1) / (p m)) layers on the first rank, of which each stage has L / (p m).
        "Interleaved1F1B": (chunks - 1) * in_round + 2 * ahead + 1,
        # arXiv 2401.10241, ZB-H1: as much as 1F1B.
        "InterleavedZeroBubble": (chunks - 1) * in_round + ranks,
        "ZBH1": ranks,
        # arXiv 2401.10241, section 6: as much as 1F1B, in stages half as large.
        "ZBVZeroBubble": 2 * ranks,
        # deepseek-ai/DualPipe:README.md: PP + 1.
        "DualPipeV": 2 * ranks + 1,
    }[schedule.name]


@EVERY_NAME
@SETTINGS
@given(data=st.data())
def test_no_rank_holds_more_than_the_published_bound(name: str, data: st.DataObject) -> None:
    schedule = data.draw(schedules(name))
    for rank, peak in enumerate(schedule.peaks([1] * schedule.shape.stages)):
        assert 1 <= peak <= _published_bound(schedule, rank)


def test_weights_of_another_number_of_stages_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"^1 and 2 weights were given, and there are 2 stages$"):
        make_schedule("1F1B", 2, 2).peaks([1], [1, 1])


def test_schedule_is_cached() -> None:
    assert make_schedule("1F1B", 4, 8) is make_schedule("1F1B", 4, 8)
