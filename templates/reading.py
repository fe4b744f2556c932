"""Represents what a file configures, as its kind's `read.py` finds it: settings, QoS of marked packets, and routes."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Setting:
    """A value as it is in the file, and its line, counted from 1."""

    value: str
    line: int


@dataclass(frozen=True)
class EcnView:
    """The queue length from which a queue marks. None: the file switches marking on and leaves the numbers to the device."""

    min_bytes: int | None = None
    max_bytes: int | None = None
    percent: int | None = None


@dataclass(frozen=True)
class QosView:
    """How one end (a port, an adapter, a job's environment) treats packets. Settings that are not in its file are
    absent or empty.

    `marks`: kind of traffic (`collectives`, `cnp`) -> the DSCP that this end puts on it. `marks_priority`: kind of
    traffic -> the 802.1p priority that this end puts on it. `priorities`: DSCP -> 802.1p priority; on a switch the PFC
    priority whose pause holds back this DSCP's queue. `queues`, `groups`: DSCP -> egress queue, ingress priority group.
    `pfc`: priority 0-7 -> whether it is paused and not dropped. `paused_queues`: PFC priority -> the queue that it
    pauses. `ecn`: queue of a switch -> when it marks; None is never. `reacts`: priority of an adapter -> whether marks
    slow it down. `weights`: queue -> its share of a full link; None is strict priority. The set `says` names the facts
    (`agreement.facts`) that such an end has to state; one that is omitted is missing there.
    """

    marks: Mapping[str, int] = field(default_factory=dict)
    marks_priority: Mapping[str, int] = field(default_factory=dict)
    priorities: Mapping[int, int] = field(default_factory=dict)
    queues: Mapping[int, int] = field(default_factory=dict)
    groups: Mapping[int, int] = field(default_factory=dict)
    pfc: Mapping[int, bool] = field(default_factory=dict)
    paused_queues: Mapping[int, int] = field(default_factory=dict)
    ecn: Mapping[int, EcnView | None] = field(default_factory=dict)
    reacts: Mapping[int, bool] = field(default_factory=dict)
    weights: Mapping[int, int | None] = field(default_factory=dict)
    says: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RoutingView:
    """BGP of one switch. `neighbors` are those that can exchange routes, interfaces (unnumbered) or addresses. None: the file does not
    set it."""

    asn: int | None = None
    router_id: str | None = None
    neighbors: frozenset[str] | None = None
    max_paths: int | None = None


@dataclass(frozen=True)
class Reading:
    """A file. `settings`: path in the file's own words (`PORT|Ethernet0|speed`) -> value. `qos`: name of the end -> view."""

    settings: Mapping[str, Setting]
    qos: Mapping[str, QosView] = field(default_factory=dict)
    routing: RoutingView | None = None
