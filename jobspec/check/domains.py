"""Groups of ranks against NVLink domains: what talks over NVLink must not leave it.

Ranks are numbered in layout order with `tp` innermost, and a node's ranks are consecutive: so the ranks of one `tp` group, and of one
`ep` group, are consecutive too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headway.jobspec.check.multiples import divisors, listed_numbers
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.resolve.model import ModelSizes
from headway.jobspec.resolve.nodes import domain_of
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.nodes import NodeGroup


@dataclass(frozen=True)
class _Domain:
    """`gpus` of one NVLink domain over nodes of `per_node` GPUs each."""

    gpus: int
    per_node: int

    @property
    def nodes(self) -> int:
        return max(1, self.gpus // self.per_node)

    def is_crossed_by(self, size: int) -> bool:
        """Whether some group of so many consecutive ranks leaves its domain."""
        return self.gpus % size != 0

    def is_filled_by(self, nodes: int) -> bool:
        """Whether so many nodes are whole domains, or fit into one."""
        return nodes % self.nodes == 0 or nodes <= self.nodes


def check_domains(job: TrainingJob, group: NodeGroup, sizes: ModelSizes | None) -> Iterator[Problem]:
    """Groups of ranks on the job's nodes; nodes without GPUs have no domains."""
    if group.gpus is None:
        return
    domain = _Domain(domain_of(group), group.gpus)
    yield from _check_tensor(job, domain, sizes)
    yield from _check_experts(job, domain, sizes)
    yield from _check_replacement(job, group, domain)


def _check_tensor(job: TrainingJob, domain: _Domain, sizes: ModelSizes | None) -> Iterator[Problem]:
    tp = job.layout.tp
    if domain.is_crossed_by(tp):
        heads = sizes.heads if sizes is not None else 0
        fitting = [size for size in divisors(domain.gpus) if heads % size == 0]
        message = f"tensor-parallel groups of {tp} ranks {_crossing(tp, domain)}"
        yield Problem("HW413", JOB, ("layout", "tp"), message, f"`tp` can be {listed_numbers(fitting)} there")
    elif _spans_nodes(tp, domain) and not domain.is_filled_by(job.nodes):
        message = f"tensor-parallel groups of {tp} ranks span nodes, and {_unfilled(job.nodes, domain)}"
        hint = f"{_filling(job.nodes, domain)}, or a `tp` within a node: {listed_numbers(divisors(domain.per_node))}"
        yield Problem("HW415", JOB, ("nodes",), message, hint)


def _check_experts(job: TrainingJob, domain: _Domain, sizes: ModelSizes | None) -> Iterator[Problem]:
    """Expert parallelism over the network is usual where a domain is a node; where it is a rack, the all-to-all over both stalls and
    slows down (NVIDIA-NeMo/RL#2986)."""
    ep = job.layout.ep
    if domain.nodes == 1 or ep == 1:
        return
    experts = sizes.experts.count if sizes is not None and sizes.experts is not None else 0
    fitting = listed_numbers([size for size in divisors(domain.gpus) if experts % size == 0])
    if domain.is_crossed_by(ep):
        message = f"expert-parallel groups of {ep} ranks {_crossing(ep, domain)}: their all-to-all leaves NVLink"
        yield Problem("HW414", JOB, ("layout", "ep"), message, f"inside a domain `ep` can be {fitting}", Severity.WARNING)
    elif _spans_nodes(ep, domain) and not domain.is_filled_by(job.nodes):
        message = f"expert-parallel groups of {ep} ranks span nodes, and {_unfilled(job.nodes, domain)}"
        yield Problem("HW414", JOB, ("nodes",), message, _filling(job.nodes, domain), Severity.WARNING)


def _check_replacement(job: TrainingJob, group: NodeGroup, domain: _Domain) -> Iterator[Problem]:
    """A node whose group spans nodes is replaced within its domain, or the whole domain is."""
    tp = job.layout.tp
    whole = job.nodes >= domain.nodes and domain.is_filled_by(job.nodes)
    if domain.is_crossed_by(tp) or not _spans_nodes(tp, domain) or not whole or _spare_domains(job, group, domain):
        return
    message = (
        f"a lost node costs its whole NVLink domain of {domain.nodes} nodes: groups of {tp} ranks span nodes, the job takes all nodes "
        "of each domain, and no domain is spare"
    )
    hint = f"keep a domain free (`spares: {domain.nodes}` of the cluster's group), or a `tp` within a node: "
    yield Problem("HW416", JOB, ("layout", "tp"), message, hint + listed_numbers(divisors(domain.per_node)), Severity.WARNING)


def _spare_domains(job: TrainingJob, group: NodeGroup, domain: _Domain) -> int:
    return max(group.spares, job.resilience.spares) // domain.nodes


def _spans_nodes(size: int, domain: _Domain) -> bool:
    return domain.per_node % size != 0


def _crossing(size: int, domain: _Domain) -> str:
    over = f" over {domain.nodes} nodes" if domain.nodes > 1 else ""
    if size > domain.gpus:
        return f"are larger than an NVLink domain of {domain.gpus} GPUs{over}"
    return f"cross the borders of NVLink domains of {domain.gpus} GPUs{over}"


def _unfilled(nodes: int, domain: _Domain) -> str:
    return f"{nodes} nodes are no whole NVLink domains of {domain.nodes} nodes"


def _filling(nodes: int, domain: _Domain) -> str:
    below = nodes // domain.nodes * domain.nodes
    return f"use {below} or {below + domain.nodes} nodes"
