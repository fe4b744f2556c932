"""Checks groups of ranks against NVLink domains: groups that communicate over NVLink must not leave one."""

from collections.abc import Iterator

from headway.jobspec.check.layout import shards_with
from headway.jobspec.check.multiples import divisors, listed_numbers
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.resolve.domains import Domains
from headway.jobspec.resolve.model import ModelSizes
from headway.jobspec.resolve.nodes import domain_of
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.nodes import NodeGroup


def check_domains(job: TrainingJob, group: NodeGroup, sizes: ModelSizes | None) -> Iterator[Problem]:
    """Check groups of ranks on the job's nodes; nodes without GPUs have no domains."""
    if group.gpus is None:
        return
    domains = Domains(domain_of(group), group.gpus, group.count)
    yield from _check_tensor(job, domains, sizes)
    yield from _check_experts(job, domains, sizes)
    yield from _check_replacement(job, group, domains)
    yield from _check_spares(job, domains)


def _check_tensor(job: TrainingJob, domains: Domains, sizes: ModelSizes | None) -> Iterator[Problem]:
    tp = job.layout.tp
    if domains.are_crossed_by(tp):
        heads = sizes.heads if sizes is not None else domains.gpus
        fitting = [size for size in divisors(heads) if not domains.are_crossed_by(size)]
        message = f"tensor-parallel groups of {tp} ranks {_crossing(tp, domains)}"
        hint = f"`tp` can be {listed_numbers(fitting)} there"
        if fitting and (shards := shards_with(job.layout, fitting[-1])) is not None:
            hint += f", for example {shards}"
        yield Problem("HW413", JOB, ("layout", "tp"), message, hint)
    elif _lacks_room(job, domains, domains.unit(tp)):
        message = f"tensor-parallel groups of {tp} ranks {_crowded(job, domains, domains.unit(tp))}"
        hint = f"{_within(domains, domains.unit(tp))}, or a `tp` within a node: {listed_numbers(divisors(domains.per_node))}"
        yield Problem("HW415", JOB, ("nodes",), message, hint)


def _check_experts(job: TrainingJob, domains: Domains, sizes: ModelSizes | None) -> Iterator[Problem]:
    """Check experts. Expert parallelism over the network is usual where a domain is a node; where it is a rack, the
    all-to-all over both stalls and slows down (NVIDIA-NeMo/RL#2986)."""
    ep, tp = job.layout.ep, job.layout.tp
    if domains.nodes == 1 or ep == 1 or domains.are_crossed_by(tp):
        return
    if domains.are_crossed_by(tp, ep):
        experts = sizes.experts.count if sizes is not None and sizes.experts is not None else domains.gpus
        fitting = listed_numbers([size for size in divisors(experts) if not domains.are_crossed_by(tp, size)])
        message = f"expert-parallel groups of {ep} ranks {_crossing(ep, domains)}: their all-to-all leaves NVLink"
        yield Problem("HW414", JOB, ("layout", "ep"), message, f"inside a domain `ep` can be {fitting}", Severity.WARNING)
    elif _lacks_room(job, domains, domains.unit(tp, ep)) and not _lacks_room(job, domains, domains.unit(tp)):
        message = f"expert-parallel groups of {ep} ranks {_crowded(job, domains, domains.unit(tp, ep))}"
        yield Problem("HW414", JOB, ("nodes",), message, _within(domains, domains.unit(tp, ep)), Severity.WARNING)


def _check_replacement(job: TrainingJob, group: NodeGroup, domains: Domains) -> Iterator[Problem]:
    """Check that a node whose group spans nodes is replaced within its domain, or the whole domain is."""
    tp = job.layout.tp
    unit = domains.unit(tp)
    takes_all = job.nodes % domains.nodes == 0 and domains.nodes % unit == 0
    if unit == 1 or not takes_all or group.held_back >= domains.nodes or job.resilience.spares:
        return
    message = (
        f"a lost node costs its whole NVLink domain of {domains.nodes} nodes: groups of {tp} ranks span nodes, the job takes all nodes "
        "of each domain, and no domain is left as a spare"
    )
    hint = (
        f"keep a domain free (`held_back: {domains.nodes}` of the cluster's group), hold spares for one group of ranks "
        f"(`resilience: {{spares: {unit}}}`), or a `tp` within a node: "
    )
    yield Problem("HW416", JOB, ("layout", "tp"), message, hint + listed_numbers(divisors(domains.per_node)), Severity.WARNING)


def _check_spares(job: TrainingJob, domains: Domains) -> Iterator[Problem]:
    """Check the spares: nodes whose ranks communicate over NVLink are replaced together, by as many nodes of one domain."""
    spares, unit = job.resilience.spares, domains.together(job.layout.tp, job.layout.ep)
    if unit is None or not 0 < spares < unit:
        return
    message = (
        f"`spares: {spares}` helps only if a spare happens to be in the lost node's NVLink domain: groups of ranks fill {unit} nodes "
        "of one domain, and move to another as a whole"
    )
    hint = f"set a multiple of {unit}, or 0"
    yield Problem("HW713", JOB, ("resilience", "spares"), message, hint, Severity.WARNING)


def _lacks_room(job: TrainingJob, domains: Domains, unit: int) -> bool:
    """Return whether there are enough nodes for whole groups, but any choice splits a group over two domains."""
    return domains.room(unit) < job.nodes <= domains.count and job.nodes * domains.per_node % job.layout.tp == 0


def _crossing(size: int, domains: Domains) -> str:
    over = f" over {domains.nodes} nodes" if domains.nodes > 1 else ""
    if size > domains.gpus:
        return f"are larger than an NVLink domain of {domains.gpus} GPUs{over}"
    return f"cross the boundaries of NVLink domains of {domains.gpus} GPUs{over}"


def _crowded(job: TrainingJob, domains: Domains, unit: int) -> str:
    whole = domains.nodes // unit * unit
    return (
        f"fill {unit} nodes of one NVLink domain: {whole} of its {domains.nodes} nodes can be used, {domains.room(unit)} of all "
        f"{domains.count}, and the job needs {job.nodes}"
    )


def _within(domains: Domains, unit: int) -> str:
    room = domains.room(unit)
    return f"use at most {room} nodes" if room else f"no {unit} nodes are in one domain"
