"""Applies all rules to a set of readings."""

from collections.abc import Iterator, Mapping

from headway.templates.audit.fabrics import fabrics_of
from headway.templates.audit.finding import Finding
from headway.templates.audit.links import check_cables, check_identities, check_ports
from headway.templates.audit.machines import links, machines
from headway.templates.audit.nodes import check_adapters, check_marks, check_time, environments
from headway.templates.audit.peers import check_peers
from headway.templates.audit.queues import check_queues
from headway.templates.audit.routing import check_limits, check_numbers, check_routing, check_sessions, check_summaries
from headway.templates.audit.subnets import check_subnets
from headway.templates.reading import Reading


def findings(readings: Mapping[str, Reading]) -> Iterator[Finding]:
    """Yield what harms a training run in the files, each by its name, without a cluster file. Equal findings are reported once."""
    yield from dict.fromkeys(_all(readings))


def _all(readings: Mapping[str, Reading]) -> Iterator[Finding]:
    for file, reading in readings.items():
        for fault in reading.faults():
            yield Finding(fault.code, file, fault.key, fault.message, fault.hint, fault.doubtful)
    found = machines(readings)
    cables = links(found)
    by_machine: dict[int, list[int]] = {}
    for index, cable in enumerate(cables):
        for end in (cable.a, cable.b):
            by_machine.setdefault(id(end), []).append(index)
    for machine in found:
        own = [cables[index] for index in by_machine.get(id(machine), ())]
        yield from check_ports(machine)
        yield from check_queues(machine)
        yield from check_routing(machine, own)
    yield from check_identities(found)
    yield from check_cables(found, cables)
    yield from check_sessions(cables)
    yield from check_numbers(found)
    yield from check_summaries(found)
    yield from check_limits(found)
    jobs = environments(readings)
    yield from check_adapters(found, jobs)
    yield from check_marks(found, jobs)
    yield from check_time(found, jobs)
    yield from check_peers(readings, fabrics_of(found, cables))
    yield from check_subnets(readings)
