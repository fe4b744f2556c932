"""Represents what a file configures, as its kind's `read.py` finds it: settings, QoS of marked packets, and routes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct, field

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Setting(NamedTuple):
    """A value as it is in the file, and its line, counted from 1."""

    value: str
    line: int


class EcnView(Struct, frozen=True):
    """The queue length from which a queue marks. None: the file switches marking on and leaves the numbers to the device."""

    min_bytes: int | None = None
    max_bytes: int | None = None
    percent: int | None = None


class QosView(Struct, frozen=True):
    """How one end (a port, an adapter, a job's environment) treats packets. Settings that are not in its file are
    absent or empty.

    `marks`: kind of traffic (`collectives`, `storage`, `cnp`) -> the DSCP that this end puts on it. `marks_priority`: kind of
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


class RoutingView(Struct, frozen=True):
    """BGP of one switch. `neighbors` are those that can exchange routes, interfaces (unnumbered) or addresses. None: the file does not
    set it."""

    asn: int | None = None
    router_id: str | None = None
    neighbors: frozenset[str] | None = None
    max_paths: int | None = None


class PortView(NamedTuple):
    """A port of a switch, or an adapter of a host. None: the file does not set it.

    `fec`: `rs`, `fc`, `none`, `auto`. `addresses` have prefix lengths. `peer`: the device and the port that the file names as the other
    end. `pauses` is global pause (IEEE 802.3x) in either direction. `has_link_local`: it has an IPv6 link-local address, which
    unnumbered BGP needs. `metres`: length of its cable. `gateway`: of a host's adapter. `description`: a text
    for people, where the file names the other end elsewhere. `keys`: field -> the setting that it is from.
    """

    enabled: bool | None = None
    mtu: int | None = None
    mbps: int | None = None
    fec: str | None = None
    addresses: tuple[str, ...] = ()
    peer: tuple[str, str] | None = None
    pauses: bool | None = None
    has_link_local: bool | None = None
    metres: int | None = None
    gateway: str | None = None
    description: str | None = None
    keys: Mapping[str, str] = _NOTHING


class NeighborView(NamedTuple):
    """A BGP neighbor, with what its group sets. `remote_as`: a number, `external` or `internal`.

    `is_up`: it is not shut down, has an AS, and is active for IPv4. `policies`: names of route maps by direction. `waits`: it opens no
    session and waits for the other end to do so. `lists`: direction and name of each other filter of routes. `ranks`: what ranks its routes
    above or below those of another neighbor. `most_routes`: with more of them the session ends. `signs`: its packets carry a password.
    """

    key: str
    remote_as: int | str | None = None
    is_up: bool = True
    hold_s: int | None = None
    bfd: bool | None = None
    policies: Mapping[str, str] = _NOTHING
    allows_own_as: bool = False
    waits: bool = False
    lists: tuple[tuple[str, str], ...] = ()
    ranks: tuple[str, ...] = ()
    most_routes: int | None = None
    signs: bool = False


class FilterLine(NamedTuple):
    """A line of a list that filters routes: those in `network` with a prefix length from `low` to `high`; every route without one."""

    permits: bool
    network: str | None = None
    low: int = 0
    high: int = 128


class BgpView(Struct, frozen=True):
    """BGP of a switch's default VRF. `max_paths`, `relaxes` and `hold_s` are in force, by the file or the device's default; None: unknown.

    `relaxes`: paths through different AS numbers may be used together. `requires_policy`: external neighbors exchange nothing without a
    route map. `policies`: defined route map -> whether it permits anything. `announces`: networks that it announces; None: those of its
    interfaces, or unknown. `aggregates`: those of them that it announces while it has a part of them. `lists`: name of each list that
    filters routes -> its lines in their order.
    """

    key: str
    asn: int | None = None
    router_id: str | None = None
    neighbors: Mapping[str, NeighborView] | None = None
    max_paths: int | None = None
    relaxes: bool | None = None
    requires_policy: bool = False
    hold_s: int | None = None
    policies: Mapping[str, bool] = field(default_factory=dict)
    announces: tuple[str, ...] | None = None
    aggregates: tuple[str, ...] = ()
    lists: Mapping[str, tuple[FilterLine, ...]] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


class MarkingView(Struct, frozen=True):
    """A profile of WRED or ECN: bytes in a queue and percent; None is the device's default. `marks`: it sets ECN bits."""

    key: str
    ecn: EcnView
    marks: bool = True


class BfdView(Struct, frozen=True):
    """Intervals in milliseconds and the packets in a row that may be lost."""

    key: str
    transmit_ms: int | None = None
    receive_ms: int | None = None
    multiplier: int | None = None


class DeviceView(Struct, frozen=True):
    """A switch as one of its files has it, or a host. `os`: `sonic`, `frr`, `nvue`, `eos`, `host`.

    `hashed`: fields of a packet that choose among equal paths, of `ip` and `port`; None: the device's default. `watches`: the PFC
    watchdog is on; None where the file cannot set it. `watchdog_ms`: the longest time that it lets a queue be paused. `fabric`: what the
    file names as the fabric of its ports, if that is another one than that of the collectives. `mac`: its base
    MAC address.
    """

    os: str
    name: str | None = None
    role: str | None = None
    ports: Mapping[str, PortView] = field(default_factory=dict)
    bgp: BgpView | None = None
    marking: Mapping[str, MarkingView] = field(default_factory=dict)
    bfd: Mapping[str, BfdView] = field(default_factory=dict)
    hashed: frozenset[str] | None = None
    watches: bool | None = None
    watchdog_ms: int | None = None
    fabric: str | None = None
    mac: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)


class MemberView(NamedTuple):
    """A member of a partition: a port's GUID, or a group such as `ALL`."""

    name: str
    is_full: bool


class PartitionView(NamedTuple):
    """A partition of an InfiniBand fabric. `line` is that of its name, as in the settings; None: the file leaves it to opensm."""

    line: str
    name: str
    key: int | None
    has_ipoib: bool
    service_level: int | None
    members: tuple[MemberView, ...]


class NetlistView(NamedTuple):
    """Cables of an InfiniBand fabric. `devices`, `switches`: id -> name. `ends`: id and port -> id and port at the other end."""

    devices: Mapping[str, str]
    switches: Mapping[str, str]
    ends: Mapping[tuple[str, str], tuple[str, str]]


class SubnetView(Struct, frozen=True):
    """A file of a subnet manager. `kind` is its name as headway renders it. `guids`: lines of the roots. `names`: GUID -> switch."""

    kind: str
    guids: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[PartitionView, ...] = ()
    netlist: NetlistView | None = None


class Fault(Struct, frozen=True):
    """Something in one file that harms a training run whatever the other files are. `key`: the setting, or the start of several.

    `message` has what was found and, after a semicolon, the effect on the run.
    """

    code: str
    key: str
    message: str
    hint: str
    doubtful: bool = False


class LazySettings(Mapping[str, Setting]):
    """Settings that are read from the text when one of them is asked for; most files have no problem, and need no lines."""

    def __init__(self, read: Callable[[], Mapping[str, Setting]]) -> None:
        self._read = read

    @cached_property
    def _found(self) -> Mapping[str, Setting]:
        return self._read()

    def __getitem__(self, key: str) -> Setting:
        return self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Traits(Struct, frozen=True):
    """Values that similar devices and ports usually share: of the device, and of each port in use, by key.

    Files of one `format` are compared with each other.
    """

    device: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    format: str = ""


def no_traits() -> Traits:
    """Return no traits: files of this kind are not compared with similar ones."""
    return Traits()


def no_faults() -> Iterable[Fault]:
    """Return no faults: the file's kind has no rules of its own."""
    return ()


class Reading(Struct, frozen=True):
    """A file. `settings`: path in the file's own words (`PORT|Ethernet0|speed`) -> value. `qos`: name of the end -> view.

    `faults` yields those that the file's kind finds by its own terms.
    """

    settings: Mapping[str, Setting]
    qos: Mapping[str, QosView] = field(default_factory=dict)
    routing: RoutingView | None = None
    device: DeviceView | None = None
    faults: Callable[[], Iterable[Fault]] = no_faults
    traits: Callable[[], Traits] = no_traits
    subnet: SubnetView | None = None

    def line_of(self, key: str) -> int | None:
        """Return the line of the setting, or of the first one below it; None where the file has neither."""
        found = self.settings.get(key)
        if found is None and key:
            found = next((setting for name, setting in self.settings.items() if name.startswith(f"{key}|")), None)
        return found.line if found is not None else None
