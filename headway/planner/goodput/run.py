"""Describes a run for the simulation: nodes, work, failures, checkpoint tiers, recovery and spares, all times in seconds."""

import math
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

# A run that needs so many times its work is given up: its checkpoints are further apart than its failures.
_HOPELESS = 20


class Scope(StrEnum):
    """The scope of a failure: a process, the memory of a node, of a rack, or everything that the job holds outside of
    its storage."""

    PROCESS = "process"
    NODE = "node"
    RACK = "rack"
    JOB = "job"


class SimulatedTier(Struct, frozen=True):
    """A place for checkpoints.

    One is taken after each `interval_s` of training, blocks training for `block_s` and can be loaded `write_s` later.
    `keep` of them stay; `survives` are the failures after which they still exist, and reading one back takes `load_s`.
    """

    kind: str
    interval_s: float
    block_s: float = 0.0
    write_s: float = 0.0
    load_s: float = 0.0
    keep: int = 3
    survives: frozenset[Scope] = frozenset(Scope)

    def __post_init__(self) -> None:
        if not self.interval_s > 0:
            raise ValueError(f"the interval of the tier `{self.kind}` is {self.interval_s} s; it must be above 0")
        if min(self.block_s, self.write_s, self.load_s) < 0 or self.keep < 1:
            raise ValueError(f"the tier `{self.kind}` has a time below 0, or keeps no checkpoint")

    @property
    def spacing_s(self) -> float:
        """Return the training between two checkpoints: saves that come due while one is being written are skipped."""
        return self.interval_s * max(1, math.ceil(self.write_s / (self.interval_s + self.block_s) - 1e-9))


class FailureCause(Struct, frozen=True):
    """One cause of node failures: its share of failures by `weight`, and how often the node is `replaced` (else only
    processes start again).

    It is noticed `detect_s` after training stopped. Training was wrong for `latent_s` before that: checkpoints since
    are of no use.
    """

    name: str
    weight: float
    replaced: float
    detect_s: float
    latent_s: float = 0.0


class FailureModel(Struct, frozen=True):
    """Failure rates by scope. `node_mtbf_s` is one node's; None of the others: no such failures.

    A rack is `rack_nodes` neighbouring nodes. With a Weibull `shape` other than 1, a node's rate changes with its age:
    `age_s` when the run starts, 0 after a replacement. Of all nodes, the share `lemons` fails `lemon_factor` times as
    often as the others, while the mean over all of them stays.
    """

    node_mtbf_s: float
    causes: tuple[FailureCause, ...]
    job_mtbf_s: float | None = None
    rack_mtbf_s: float | None = None
    rack_nodes: int = 1
    repair_s: float = 0.0
    detect_s: float = 0.0
    shape: float = 1.0
    age_s: float = 0.0
    lemons: float = 0.0
    lemon_factor: float = 1.0

    def __post_init__(self) -> None:
        times = (self.node_mtbf_s, self.job_mtbf_s, self.rack_mtbf_s)
        if any(time is not None and not time > 0 for time in times) or not self.shape > 0 or self.rack_nodes < 1:
            raise ValueError("mean times between failures, the Weibull shape and the nodes of a rack must be above 0")
        if not self.causes or sum(cause.weight for cause in self.causes) <= 0:
            raise ValueError("failures need at least one cause with a weight above 0")
        if self.shape != 1 and self.lemons:
            raise ValueError("lemon nodes are simulated with exponential times only; leave out either shape or lemons")

    @property
    def replaced(self) -> float:
        """The share of the nodes' failures after which the node is replaced."""
        return sum(cause.weight * cause.replaced for cause in self.causes) / sum(cause.weight for cause in self.causes)


class Recovery(Struct, frozen=True):
    """Times of a restart: `warm_s` on nodes that are in the job already, `cold_s` when one comes from outside,
    `provision_s` to get it.

    `at_once`: a failure during recovery restarts it at once (the model of Daly); otherwise when the current attempt has
    ended.
    """

    warm_s: float
    cold_s: float
    provision_s: float
    at_once: bool = True


class Replicas(Struct, frozen=True):
    """Data-parallel replicas that continue without each other: a lost node stalls all for `stall_s`, its replica is
    unavailable for longer.

    The replica is unavailable until it has a node again and `rejoin_s` more. With fewer than `least` replicas the job
    restarts as a whole.
    """

    count: int
    stall_s: float
    rejoin_s: float
    least: int = 1


class RestartBudget(Struct, frozen=True):
    """Restarts at hand, steps of new progress that give one back, and restarts in a row without progress that end the run."""

    restarts: int
    refill_steps: int
    no_progress: int


class SimulatedRun(Struct, frozen=True):
    """A training run. It ends after `work_s` seconds of training that counts, or after `wall_s` seconds, whichever
    comes first.

    `spares` are additional nodes that the job holds; `pool` are nodes of the cluster that it can get when these are
    used up. `assumed` lists the values that were taken from publications for want of others.
    """

    nodes: int
    step_s: float
    failures: FailureModel
    recovery: Recovery
    tiers: tuple[SimulatedTier, ...]
    gpus_per_node: int = 8
    work_s: float = math.inf
    wall_s: float = math.inf
    spares: int = 0
    pool: int = 0
    replicas: Replicas | None = None
    budget: RestartBudget | None = None
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nodes < 1 or not self.step_s > 0:
            raise ValueError("a run needs at least 1 node and a step time above 0")
        if not min(self.work_s, self.wall_s) > 0 or math.isinf(min(self.work_s, self.wall_s)):
            raise ValueError("a run needs an end: work or wall-clock time above 0")
        if self.replicas is not None and not 1 <= self.replicas.least <= self.replicas.count <= self.nodes:
            raise ValueError("replicas need 1 <= least <= count <= nodes")

    @property
    def length_s(self) -> float:
        """The run's length without failures, an upper bound of every sensible checkpoint interval."""
        return min(self.work_s, self.wall_s)

    @property
    def limit_s(self) -> float:
        """When the run ends at the latest: a run without a wall-clock time is given up after 20 times its work."""
        return min(self.wall_s, _HOPELESS * self.work_s)

    @property
    def racks(self) -> int:
        """Racks that its nodes fill, the last one perhaps in part."""
        return -(-self.nodes // self.failures.rack_nodes)

    def rates(self) -> Mapping[Scope, float]:
        """Return failures a second by their scope."""
        failures = self.failures
        of_nodes = self.nodes / failures.node_mtbf_s
        return {
            Scope.PROCESS: of_nodes * (1 - failures.replaced),
            Scope.NODE: of_nodes * failures.replaced,
            Scope.RACK: self.racks / failures.rack_mtbf_s if failures.rack_mtbf_s else 0.0,
            Scope.JOB: 1 / failures.job_mtbf_s if failures.job_mtbf_s else 0.0,
        }

    def tier(self, kind: str) -> SimulatedTier:
        """Return the tier of this kind; KeyError when there is none."""
        return {tier.kind: tier for tier in self.tiers}[kind]
