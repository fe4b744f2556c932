"""The simulated run: the distribution of its time under given failures."""

import math
from random import Random
from statistics import fmean

import pytest
from msgspec.structs import replace

from headway.planner.goodput.arrivals import Arrivals
from headway.planner.goodput.interval import best_interval, daly, expected_goodput, with_interval, young
from headway.planner.goodput.nodes import Nodes
from headway.planner.goodput.run import (
    FailureCause,
    FailureModel,
    Recovery,
    Replicas,
    RestartBudget,
    Scope,
    SimulatedRun,
    SimulatedTier,
)
from headway.planner.goodput.saves import Checkpoints, SavePauses
from headway.planner.goodput.simulate import TimeBucket, simulate, simulate_each
from headway.planner.goodput.spares import best_spares
from headway.planner.goodput.summary import over_interval, summarize

DAY_S = 86400.0
NEVER_S = 1e15
PROCESS = FailureCause("software", 1, 0, 30.0)
NODE = FailureCause("gpu", 1, 1, 30.0)
DISK = SimulatedTier("shared", 1800.0, 10.0, 60.0, 20.0)
MEMORY = SimulatedTier("memory", 60.0, 0.5, 0.0, 2.0, survives=frozenset({Scope.PROCESS}))
RUN = SimulatedRun(
    nodes=2048,
    step_s=5.0,
    wall_s=54 * DAY_S,
    failures=FailureModel(200 * DAY_S, (PROCESS, NODE), repair_s=DAY_S, detect_s=30.0),
    recovery=Recovery(150.0, 600.0, 300.0),
    tiers=(MEMORY, DISK),
    spares=16,
    pool=64,
)


def failing(run: SimulatedRun, **changed: object) -> SimulatedRun:
    """Return the run with other failures."""
    return replace(run, failures=replace(run.failures, **changed))


RUNS = {
    "default": RUN,
    "one node": replace(RUN, nodes=1, wall_s=2000 * DAY_S),
    "no tier": replace(RUN, tiers=(), wall_s=DAY_S),
    "no spare": replace(RUN, spares=0, pool=0),
    "work": replace(RUN, wall_s=math.inf, work_s=20 * DAY_S),
    "racks and the job": failing(RUN, rack_mtbf_s=300 * DAY_S, rack_nodes=18, job_mtbf_s=3 * DAY_S),
    "ageing": failing(RUN, shape=0.7),
    "ageing racks": failing(RUN, shape=1.5, age_s=100 * DAY_S, rack_mtbf_s=300 * DAY_S, rack_nodes=18),
    "lemons": failing(RUN, lemons=0.01, lemon_factor=20.0),
    "complete recovery": replace(RUN, recovery=replace(RUN.recovery, at_once=False)),
    "replicas": replace(RUN, replicas=Replicas(16, 60.0, 900.0)),
    "few replicas": replace(failing(RUN, job_mtbf_s=DAY_S), replicas=Replicas(4, 60.0, 9000.0, least=3)),
    "latent corruption": failing(RUN, causes=(replace(PROCESS, latent_s=3000.0), NODE)),
    "a budget": replace(RUN, budget=RestartBudget(3, 100, 3)),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_every_second_of_a_run_is_in_one_bucket(run: SimulatedRun) -> None:
    outcome = simulate(run)
    assert sum(outcome.buckets.values()) == pytest.approx(outcome.wall_s, rel=1e-9)
    assert min(outcome.buckets.values()) >= -1e-6
    assert 0 <= outcome.goodput < 1
    assert outcome.wall_s <= run.limit_s * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_the_same_seed_gives_the_same_outcome(run: SimulatedRun) -> None:
    assert simulate(run, 7) == simulate(run, 7)
    assert simulate(run, 7) != simulate(run, 8)


def test_run_without_failures_takes_its_work_and_its_saves() -> None:
    outcome = simulate(replace(failing(RUN, node_mtbf_s=NEVER_S), wall_s=math.inf, work_s=3601.0))
    assert outcome.finished
    assert outcome.wall_s == pytest.approx(3601 + 60 * 0.5 + 2 * 10.0)
    assert outcome.buckets[TimeBucket.PRODUCTIVE] == pytest.approx(3601)
    assert outcome.buckets[TimeBucket.SAVE] == pytest.approx(50)


def test_failure_costs_the_work_since_the_last_checkpoint_and_recovery() -> None:
    run = replace(failing(RUN, causes=(PROCESS,)), tiers=(SimulatedTier("shared", 1000.0, load_s=20.0),))
    random = Random(3)
    failed_s = Arrivals(run, Nodes(run, random), random).next().time_s
    buckets = simulate(replace(run, wall_s=failed_s + 500), seed=3).buckets
    assert buckets[TimeBucket.LOST] == pytest.approx(failed_s % 1000)
    assert buckets[TimeBucket.DETECT] == pytest.approx(30)
    assert buckets[TimeBucket.RESTART] == pytest.approx(150)
    assert buckets[TimeBucket.LOAD] == pytest.approx(20)
    assert buckets[TimeBucket.PRODUCTIVE] == pytest.approx(failed_s - failed_s % 1000 + 300)


def test_run_that_never_reaches_a_checkpoint_is_abandoned() -> None:
    outcome = simulate(replace(RUN, tiers=(), wall_s=math.inf, work_s=10 * DAY_S))
    assert not outcome.finished
    assert outcome.wall_s == pytest.approx(200 * DAY_S)
    assert outcome.from_scratch == outcome.restarts > 1000


@pytest.mark.parametrize("tiers", [(), (DISK,), (MEMORY, DISK), (MEMORY, DISK, SimulatedTier("remote", 61.0, 3.0))])
def test_training_and_wall_clock_time_convert_into_each_other(tiers: tuple[SimulatedTier, ...]) -> None:
    pauses, random = SavePauses(tiers), Random(0)
    for _ in range(500):
        start, trained_s = random.uniform(0, 1e6), random.uniform(0, 1e4)
        assert pauses.reached(start, pauses.wall(start, start + trained_s)) == pytest.approx(start + trained_s, abs=1e-3)


def test_training_makes_no_progress_during_a_save() -> None:
    pauses = SavePauses((DISK,))
    assert pauses.reached(0.0, 1805.0) == pytest.approx(1800, abs=1e-3)
    assert pauses.reached(0.0, 1815.0) == pytest.approx(1805, abs=1e-3)


def test_checkpoint_can_be_loaded_once_it_is_written() -> None:
    for trained_s, position in ((1810 + 59, 0.0), (1810 + 61, 1800.0)):
        checkpoints = Checkpoints(replace(RUN, tiers=(DISK,)))
        checkpoints.trained(0.0, trained_s)
        assert checkpoints.restore(Scope.NODE, 1850.0, 1850.0).position == position


def test_lost_node_loses_the_checkpoints_in_its_memory() -> None:
    found = {}
    for scope in Scope:
        checkpoints = Checkpoints(RUN)
        checkpoints.trained(0.0, 2000.0)
        found[scope] = checkpoints.restore(scope, 1970.0, 1970.0).position
    assert found == {Scope.PROCESS: 1920.0, Scope.NODE: 1800.0, Scope.RACK: 1800.0, Scope.JOB: 1800.0}


def test_restart_after_silent_corruption_uses_an_earlier_checkpoint() -> None:
    for sound, position in ((1875.0, 1860.0), (1850.0, 1800.0), (1795.0, 0.0)):
        checkpoints = Checkpoints(replace(RUN, tiers=(MEMORY,)))
        checkpoints.trained(0.0, 1990.0)
        assert checkpoints.restore(Scope.PROCESS, 1970.0, sound).position == position


def test_checkpoints_saved_after_silent_corruption_are_not_used_again() -> None:
    checkpoints = Checkpoints(replace(RUN, tiers=(MEMORY,)))
    checkpoints.trained(0.0, 1990.0)
    checkpoints.restore(Scope.PROCESS, 1970.0, 1870.0)
    assert checkpoints.restore(Scope.PROCESS, 1970.0, 1970.0).position == 1860.0


def test_saves_longer_than_their_interval_are_spaced_by_its_multiples() -> None:
    assert SimulatedTier("shared", 100.0, 1.0, 250.0).spacing_s == 300
    assert SimulatedTier("shared", 100.0, 1.0, 101.0).spacing_s == 100


def test_job_without_spares_waits_for_repairs() -> None:
    waits = [simulate(replace(RUN, spares=spares, pool=0)).buckets[TimeBucket.NODES] for spares in (0, 4, 16)]
    assert waits[0] > 1.5 * waits[1] > 100 * waits[2]


def test_spare_of_the_job_restarts_warm_and_one_of_the_pool_cold() -> None:
    run = failing(replace(RUN, nodes=1, wall_s=20_000 * DAY_S), causes=(NODE,), repair_s=0.0)
    for spares, restart_s, waited_s in ((1, 150, 0), (0, 600, 300)):
        outcome = simulate(replace(run, spares=spares, pool=1))
        assert outcome.buckets[TimeBucket.RESTART] / outcome.restarts == pytest.approx(restart_s, rel=0.02)
        assert outcome.buckets[TimeBucket.NODES] / outcome.restarts == pytest.approx(waited_s, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [64, 2048])
def test_best_number_of_spares_avoids_waiting_but_three_fewer_do_not(nodes: int) -> None:
    run = replace(failing(RUN, repair_s=3 * DAY_S), nodes=nodes, pool=0, wall_s=(40_000 if nodes < 100 else 1000) * DAY_S)
    best = best_spares(run)
    waiting = {}
    for spares in (best, best - 3):
        outcome = simulate(replace(run, spares=spares))
        waiting[spares] = outcome.buckets[TimeBucket.NODES] / outcome.wall_s
    assert waiting[best] < 0.006 < waiting[best - 3]


def test_replacement_nodes_are_counted_once() -> None:
    alone = simulate(replace(RUN, spares=0, pool=0))
    assert alone.nodes_used == 2048
    outcome = simulate(failing(RUN, repair_s=0.0))
    assert sum(outcome.replaced.values()) > 200
    assert outcome.nodes_used == 2048 + 16 + 64


def test_nodes_of_the_pool_count_as_spares_and_racks_need_more() -> None:
    run = replace(failing(RUN, repair_s=3 * DAY_S), pool=0)
    assert best_spares(replace(run, pool=10)) == best_spares(run) - 10
    assert best_spares(replace(run, pool=1000)) == 0
    assert best_spares(failing(run, rack_mtbf_s=100 * DAY_S, rack_nodes=18)) > best_spares(run) + 18
    large = failing(run, repair_s=200 * DAY_S)
    mean = 2048 / 2
    assert best_spares(large) == pytest.approx(mean + 2.576 * math.sqrt(mean), abs=1)


def test_a_rack_fails_with_all_of_its_nodes() -> None:
    run = failing(RUN, node_mtbf_s=NEVER_S, rack_mtbf_s=100 * DAY_S, rack_nodes=18)
    outcome = simulate(run)
    assert set(outcome.failures) == {"rack"}
    assert 17 < sum(outcome.replaced.values()) / outcome.failures["rack"] <= 18


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "age_s"), [(0.7, 0.0), (0.7, 30 * DAY_S), (1.5, 0.0), (3.0, 200 * DAY_S)])
def test_unreplaced_nodes_fail_by_the_weibull_hazard_of_their_age(shape: float, age_s: float) -> None:
    run = failing(RUN, causes=(PROCESS,), shape=shape, age_s=age_s)
    scale_s = 200 * DAY_S / math.gamma(1 + 1 / shape)
    expected = 2048 * (((54 * DAY_S + age_s) / scale_s) ** shape - (age_s / scale_s) ** shape)
    counted = fmean(outcome.interruptions for outcome in simulate_each(run, range(10)))
    assert counted == pytest.approx(expected, abs=4 * math.sqrt(expected / 10))


@pytest.mark.slow
def test_replaced_nodes_fail_at_the_mean_rate_in_the_long_run() -> None:
    run = failing(replace(RUN, nodes=64, wall_s=20_000 * DAY_S), causes=(NODE,), shape=1.5, repair_s=0.0)
    assert simulate(run).interruptions == pytest.approx(64 * 20_000 / 200, rel=0.05)


def test_lemons_fail_more_often_and_do_not_change_the_mean() -> None:
    run = failing(RUN, causes=(replace(NODE, replaced=1e-9),), lemons=0.05, lemon_factor=20.0)
    random = Random(0)
    arrivals = Arrivals(run, Nodes(run, random), random)
    failures = [arrivals.next() for _ in range(20_000)]
    lemons = round(0.05 * 2048)
    share = fmean(failure.slots.start < lemons for failure in failures)
    assert share == pytest.approx(20 * lemons / (20 * lemons + 2048 - lemons), abs=0.015)
    assert failures[-1].time_s == pytest.approx(20_000 * 200 * DAY_S / 2048, rel=0.03)


def test_dropped_replica_stalls_the_others_and_is_missing_until_it_returns() -> None:
    run = failing(replace(RUN, replicas=Replicas(16, 60.0, 900.0), tiers=()), causes=(PROCESS,))
    outcome = simulate(run)
    assert outcome.restarts == 0
    assert outcome.buckets[TimeBucket.STALL] / outcome.interruptions == pytest.approx(60, rel=0.02)
    assert outcome.buckets[TimeBucket.MISSING] / outcome.interruptions == pytest.approx((930 - 60) / 16, rel=0.05)


def test_too_few_replicas_restart_the_job() -> None:
    outcome = simulate(RUNS["few replicas"])
    alone = simulate(replace(RUNS["few replicas"], replicas=Replicas(4, 60.0, 9000.0, least=1)))
    assert outcome.restarts > 1.5 * alone.restarts


def test_a_failure_of_the_job_stops_every_replica() -> None:
    run = failing(RUN, node_mtbf_s=NEVER_S, job_mtbf_s=DAY_S)
    outcome = simulate(replace(run, replicas=Replicas(16, 60.0, 900.0)))
    assert outcome.restarts == outcome.interruptions > 30


@pytest.mark.slow
def test_each_failure_costs_a_full_recovery_if_recoveries_complete() -> None:
    run = replace(
        failing(RUN, causes=(replace(PROCESS, detect_s=0),), node_mtbf_s=2048 * 1000.0), tiers=(SimulatedTier("memory", 5.0),)
    )
    run = replace(run, recovery=Recovery(500.0, 500.0, 0.0, at_once=False), wall_s=100 * DAY_S)
    assert simulate(run).goodput == pytest.approx(1 - 500 / 1000, abs=0.02)
    at_once = replace(run, recovery=replace(run.recovery, at_once=True))
    assert simulate(at_once).goodput == pytest.approx(math.exp(-500 / 1000), abs=0.02)


def test_a_run_without_progress_uses_up_its_restarts() -> None:
    stuck = replace(RUN, tiers=(), budget=RestartBudget(3, 10**6, 10**6))
    outcome = simulate(stuck)
    assert outcome.out_of_restarts
    assert outcome.restarts == 3
    assert outcome.interruptions == 4
    refilled = simulate(replace(RUN, budget=RestartBudget(10, 10, 10)))
    assert not refilled.out_of_restarts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "points"),
    [
        (replace(RUN, tiers=(DISK,)), 0.5),
        (RUN, 0.5),
        (replace(RUN, nodes=12_500, tiers=(DISK,), spares=1000), 1.0),
        (failing(replace(RUN, spares=1000), job_mtbf_s=DAY_S, rack_mtbf_s=365 * DAY_S, rack_nodes=8), 1.0),
        (replace(RUN, replicas=Replicas(16, 60.0, 900.0)), 0.5),
    ],
)
def test_the_formula_for_goodput_agrees_with_the_simulation(run: SimulatedRun, points: float) -> None:
    simulated = fmean(outcome.goodput for outcome in simulate_each(run, range(4)))
    assert 100 * expected_goodput(run) == pytest.approx(100 * simulated, abs=points)


def test_best_interval_of_one_tier_matches_daly() -> None:
    for mtbf_s, block_s in ((1e4, 60.0), (1e4, 1.0), (1e3, 100.0)):
        run = SimulatedRun(
            1, 1.0, FailureModel(mtbf_s, (PROCESS,)), Recovery(0, 0, 0), (SimulatedTier("shared", 60.0, block_s),), wall_s=DAY_S
        )
        assert best_interval(run, "shared") == pytest.approx(daly(mtbf_s, block_s), rel=2e-3)
        assert daly(mtbf_s, block_s) < young(mtbf_s, block_s)
    assert daly(10.0, 30.0) == 10.0


def test_best_interval_is_a_maximum_even_with_several_tiers() -> None:
    for kind in ("memory", "shared"):
        best = best_interval(RUN, kind)
        at_best = expected_goodput(with_interval(RUN, kind, best))
        assert all(expected_goodput(with_interval(RUN, kind, best * factor)) < at_best for factor in (0.5, 2, 1000))


def test_best_interval_is_at_least_a_step_and_a_write() -> None:
    free = replace(RUN, tiers=(SimulatedTier("shared", 600.0),))
    assert best_interval(free, "shared") == pytest.approx(5.0, rel=1e-3)
    slow = replace(RUN, tiers=(SimulatedTier("shared", 600.0, write_s=900.0),))
    assert best_interval(slow, "shared") >= 899


def test_missing_tier_has_no_best_interval() -> None:
    with pytest.raises(KeyError):
        best_interval(RUN, "peer")


def test_summary_has_means_and_the_cost_of_a_failure() -> None:
    run = replace(RUN, budget=RestartBudget(1, 10**9, 3))
    outcomes = simulate_each(run, range(5))
    summary = summarize(run, outcomes)
    assert summary.goodput.mean == pytest.approx(fmean(outcome.goodput for outcome in outcomes))
    assert summary.goodput.low == min(outcome.goodput for outcome in outcomes)
    assert sum(summary.shares.values()) == pytest.approx(1)
    assert summary.out_of_restarts == 5
    assert summary.of_held == pytest.approx(summary.goodput.mean * 2048 / 2064)
    lost_s = fmean(outcome.wall_s for outcome in outcomes) * (1 - summary.goodput.mean)
    assert summary.lost_s == pytest.approx(lost_s / summary.interruptions.mean)


@pytest.mark.slow
def test_table_of_intervals_includes_the_best_and_the_current_one() -> None:
    rows = over_interval(RUN, "shared", range(2))
    intervals = [row.interval_s for row in rows]
    assert intervals == sorted(intervals)
    assert {1800.0, best_interval(RUN, "shared")} <= set(intervals)
    best = max(rows, key=lambda row: row.expected)
    assert best.interval_s == best_interval(RUN, "shared")


@pytest.mark.parametrize(
    "changed",
    [
        {"nodes": 0},
        {"step_s": 0.0},
        {"wall_s": math.inf},
        {"work_s": 0.0},
        {"replicas": Replicas(3000, 1.0, 1.0)},
    ],
)
def test_impossible_run_is_rejected(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="need"):
        replace(RUN, **changed)


@pytest.mark.parametrize(
    "changed", [{"node_mtbf_s": 0.0}, {"shape": 0.0}, {"causes": ()}, {"rack_nodes": 0}, {"shape": 2.0, "lemons": 0.1}]
)
def test_impossible_failures_are_rejected(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"above 0|leave out"):
        failing(RUN, **changed)


@pytest.mark.parametrize("values", [(0.0, 0.0, 0.0), (1.0, -1.0, 0.0), (1.0, 0.0, -1.0)])
def test_tier_with_impossible_times_is_rejected(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="tier `shared`"):
        SimulatedTier("shared", *values)
