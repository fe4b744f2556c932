"""Computes how many spare nodes a job needs so that it hardly ever waits for one."""

import math
from collections.abc import Iterator
from itertools import count
from statistics import NormalDist

from headway.planner.goodput.run import Scope, SimulatedRun

# The share of time for which a job may wait for nodes.
WAITING_SHARE = 0.005

# Above this mean the smallest probability underflows, and the normal distribution is as good.
_MANY = 500.0


def best_spares(run: SimulatedRun) -> int:
    """Return the fewest spares, in addition to the nodes of its pool, with which the job is short of a node for less
    than 0.5 % of the time.

    Nodes in repair are Poisson distributed with the mean of their failures times the repair time, whatever the
    distribution of repair times (Palm's theorem; Feeney and Sherbrooke 1966, https://doi.org/10.1287/mnsc.12.5.391);
    racks come as batches.
    """
    rates, repair_s = run.rates(), run.failures.repair_s
    single, racks, size = rates[Scope.NODE] * repair_s, rates[Scope.RACK] * repair_s, run.failures.rack_nodes
    mean = single + racks * size
    if mean > _MANY:
        away = NormalDist(mean, math.sqrt(single + racks * size**2))
        return max(0, math.ceil(away.inv_cdf(1 - WAITING_SHARE)) - run.pool)
    within = 0.0
    for number, share in enumerate(_in_repair(single, racks, size)):
        within += share
        if 1 - within < WAITING_SHARE:
            return max(0, number - run.pool)
    raise AssertionError("the shares add up to less than 1")


def _in_repair(single: float, racks: float, size: int) -> Iterator[float]:
    """Yield the share of time for which 0, 1, 2 ... nodes are in repair (Panjer's recursion for a compound Poisson
    distribution)."""
    shares = [math.exp(-single - racks)]
    for number in count(1):
        yield shares[-1]
        batch = size * racks * shares[number - size] if number >= size else 0.0
        shares.append((single * shares[number - 1] + batch) / number)
