"""Reads a host's adapters as a whole from its settings, and finds the faults of this file alone."""

import ipaddress
import re
from collections.abc import Iterator, Mapping

from headway.templates.reading import DeviceView, Fault, PortView, QosView, Setting, Traits

NO_QOS = (
    *("address", "gateway", "table", "mtu", "up", "route|", "rule|", "rp_filter", "arp_", "fib_multipath", "ip_forward"),
    *("way|", "fabric|", "rule-priority", "setpci|", "mlxconfig|", "link|", "fec", "pause|"),
)
"""Beginnings of the keys that set no class of traffic."""

# A packet of 4096 bytes and its RoCE v2 headers.
_LEAST_MTU = 4200
# Of its PCI capability: device control, with the size of read requests in bits 12 to 14; ConnectX has it at 0x60.
_DEVICE_CONTROL = re.compile(r"(cap_exp\+(0x)?8|68)\.w")
_ACS_CONTROL = re.compile(r"ecap_acs\+(0x)?6\.w")
_LEAST_READ_REQUEST = 2
_LEAST_SHARE = 10
_MOST_DSCP = 63
# Of ip-rule(8): the tables main and local, by number too, and the priority of main.
_KERNELS_TABLES = frozenset({"main", "local", "254", "255"})
_MAIN_PRIORITY = 32766
# Prefix length of a network of two.
_LINK = 30
_ON = frozenset({"on", "1", "yes"})


def host_view(settings: Mapping[str, Setting]) -> DeviceView:
    """Return the host, its adapters by the names that the file uses."""
    by_adapter: dict[str, dict[str, str]] = {}
    for key, setting in settings.items():
        end, bar, rest = key.partition("|")
        if end == "adapter":
            by_adapter.setdefault(setting.value, {})
        elif bar and rest.split("|")[0] in {
            "address",
            "address-expected",
            "gateway",
            "mtu",
            "up",
            "fec",
            "pause",
            "link",
            "dscp-prio",
            "prio-pfc",
            "trust",
        }:
            by_adapter.setdefault(end, {})[rest] = setting.value
    shared = {key: setting.value for key, setting in settings.items()}
    return DeviceView(os="host", ports={name: _adapter(name, own, shared) for name, own in by_adapter.items()})


def _adapter(name: str, own: Mapping[str, str], shared: Mapping[str, str]) -> PortView:
    found = [value for key, value in own.items() if key == "address" or key.startswith("address|")]
    mtu = own.get("mtu", shared.get("mtu", ""))
    pauses = [value in _ON for key, value in {**shared, **own}.items() if key in {"pause|rx", "pause|tx"}]
    keys = {
        field: f"{name}|{key}" for field, key in (("mtu", "mtu"), ("gateway", "gateway"), ("addresses", "address")) if key in own
    }
    address = next((key for key in own if key.startswith("address|")), None)
    if address is not None:
        keys["addresses"] = f"{name}|{address}"
    keys.setdefault("mtu", "mtu")
    return PortView(
        enabled=False if own.get("up") == "no" else None,
        mtu=int(mtu) if mtu.isdecimal() else None,
        mbps=int(own["link|speed"]) if own.get("link|speed", "").isdecimal() else None,
        fec={"rs": "rs", "baser": "fc", "off": "none", "auto": "auto"}.get(own.get("fec", "")),
        addresses=tuple(found),
        gateway=own.get("gateway"),
        pauses=any(pauses) if pauses else None,
        keys=keys,
    )


def traits(settings: Mapping[str, Setting]) -> Traits:
    """Return what hosts of a cluster usually share: all but addresses."""
    return Traits(
        {key: setting.value for key, setting in settings.items() if not re.search(r"(^|\|)(address|gateway|route|rule)", key)}
    )


def faults(settings: Mapping[str, Setting], views: Mapping[str, QosView], device: DeviceView | None = None) -> Iterator[Fault]:
    """Yield the faults of the file; `device` is the host if its adapters are not those of `host_view`."""
    device = device or host_view(settings)
    rails = [name for name, port in device.ports.items() if port.addresses]
    yield from _sysctls(settings, len(rails) > 1)
    yield from _omitted(settings, rails, views)
    yield from _routes(settings, device)
    yield from _links(settings, device, views)
    yield from _classes(settings, views)
    yield from _pci(settings)
    yield from _uneven(settings, device, views)
    yield from _ways(settings)
    yield from _unset(settings, device)
    yield from _unlike_marks(settings)


def _ways(settings: Mapping[str, Setting]) -> Iterator[Fault]:
    """Find tables of routes that no rule leads to, and rules to tables without a route: by number, or by a script's variable."""
    routes: dict[str, str] = {}
    rules: dict[str, str] = {}
    for key, setting in settings.items():
        parts = key.split("|")
        if "route" in parts[:2] and len(parts) > parts.index("route") + 1:
            routes.setdefault(parts[parts.index("route") + 1], key)
        elif parts[0] == "rule":
            rules.setdefault(setting.value, key)
        elif parts[0] == "way":
            (rules if parts[2:] else routes).setdefault(parts[1], key)
    for table in routes.keys() - rules.keys() - {"main", "local", "default", "254", "255"}:
        message = (
            f"routing table {table} has routes, and no rule leads to it; every rail leaves by the main table, through one adapter"
        )
        hint = "add `ip rule add from ADDRESS lookup TABLE`; in netplan, a `routing-policy`"
        yield Fault("HW851", routes[table], message, hint)
    yield from _between_rails(settings, routes)
    for key, setting in settings.items():
        if key.endswith("|table") and setting.value in _KERNELS_TABLES:
            message = (
                f"its table {setting.value} is the kernel's own, which all packets look into; rails take each other's routes"
            )
            yield Fault("HW851", key, message, "give each adapter a table of its own, such as 1000")
        if key.partition("|")[0] == "rule-priority" and setting.value.isdecimal() and int(setting.value) > _MAIN_PRIORITY:
            message = f"the rules have priority {setting.value}, after the main table; its default route counts for all rails"
            yield Fault("HW851", key, message, f"use less than {_MAIN_PRIORITY}")
    for table in rules.keys() - routes.keys() - {"main", "local", "default", "254", "255"} if routes else ():
        message = (
            f"a rule leads to routing table {table}, which has no route; packets from this adapter's address leave by another one"
        )
        hint = "add `ip route replace default via GATEWAY dev DEVICE table TABLE`; in netplan, one of `routes`"
        yield Fault("HW851", rules[table], message, hint)


def _unset(settings: Mapping[str, Setting], device: DeviceView) -> Iterator[Fault]:
    """Find classes that a script defines and sets on no adapter."""
    rails = [name for name, port in device.ports.items() if port.gateway is not None]
    key = next((key for key in settings if key.startswith(("dscp-prio|", "prio-pfc|"))), None)
    is_set = any(each.startswith("adapter|") or "|dscp-prio|" in each or "|prio-pfc|" in each for each in settings)
    if rails and key is not None and not is_set:
        message = (
            f"it defines classes of traffic and sets them on no adapter, such as {rails[0]}; RDMA packets are dropped unpaused"
        )
        yield Fault("HW852", key, message, "call `set_qos` for each adapter")


def _between_rails(settings: Mapping[str, Setting], routes: Mapping[str, str]) -> Iterator[Fault]:
    """Find rails with addresses of a link each, and no route to all of them in the main table: RDMA-CM and ARP look there first."""
    addresses = [
        interface
        for key, setting in settings.items()
        if (key.endswith("|address") or "|address|" in key) and (interface := _interface(setting.value)) is not None
    ]
    is_linked = len(addresses) > 1 and all(each.network.prefixlen >= _LINK for each in addresses if each.version == 4)
    literal = {key: key.split("|")[-2:] for key in settings if "|route|" in key}
    own = [key for key, setting in settings.items() if key.startswith("way|") and setting.value == "route"]
    own += [key for key, (table, _) in literal.items() if table not in _KERNELS_TABLES]
    if not is_linked or not own:
        return
    targets = [setting.value for key, setting in settings.items() if key.startswith("fabric|")]
    targets += [target for table, target in literal.values() if table in _KERNELS_TABLES]
    networks = []
    for target in targets:
        try:
            networks.append(ipaddress.ip_network("0.0.0.0/0" if target == "default" else target, strict=False))
        except ValueError:
            return
    outside = next((each for each in addresses if not any(each.ip in network for network in networks)), None)
    if outside is not None:
        where = (
            f"the main table's routes by the leaves ({', '.join(targets)}) do not lead to"
            if targets
            else "no route of the main table leads to"
        )
        message = f"{where} {outside.ip}, an address of another rail; what has no address yet reaches its own leaf only"
        of_main = (key for key, (table, _) in literal.items() if table in _KERNELS_TABLES)
        key = next((key for key in settings if key.startswith("fabric|")), next(of_main, own[0]))
        yield Fault("HW851", key, message, "route the network of all adapters' addresses by each of them", doubtful=True)


def _unlike_marks(settings: Mapping[str, Setting]) -> Iterator[Fault]:
    """Find two defaults of one adapter that differ: connections by RDMA-CM have one, all others the other."""
    for key, setting in settings.items():
        if key.endswith("tc/1/traffic_class"):
            other = settings.get(key.replace("tc/1/traffic_class", "default_roce_tos"))
            if other is not None and other.value != setting.value and not {"$", "`"}.intersection(setting.value + other.value):
                message = (
                    f"the traffic class is {setting.value}, and {other.value} for connections of RDMA-CM; one of both has another class "
                    "than is planned"
                )
                yield Fault("HW852", key, message, f"set {other.value}", doubtful=True)


def _uneven(settings: Mapping[str, Setting], device: DeviceView, views: Mapping[str, QosView]) -> Iterator[Fault]:
    """Find adapters that have no address, or no class of traffic, where others of the host have."""
    classed = {name for name, view in views.items() if view.pfc or view.priorities}
    for name, port in device.ports.items():
        if not port.addresses and any(each.addresses for each in device.ports.values()) and name in classed:
            key = next((key for key, setting in settings.items() if key.startswith("adapter|") and setting.value == name), name)
            message = f"{name} has no address, and the other adapters have one; NCCL finds no GID there, and its connections fail"
            yield Fault("HW851", key, message, "set its address, gateway and table")
        # An interface with an address alone is that of the management network, or of storage.
        is_rail = any(key.startswith((f"{name}|mtu", f"{name}|gateway", f"{name}|table", f"{name}|route")) for key in settings)
        if port.addresses and is_rail and classed and name not in classed and "host" not in classed:
            message = (
                f"{name} has neither PFC nor a priority for DSCP, and the other adapters have; its traffic is dropped where "
                "theirs is paused"
            )
            yield Fault("HW852", port.keys.get("addresses", name), message, "set its classes as on the other adapters")


def _omitted(settings: Mapping[str, Setting], rails: list[str], views: Mapping[str, QosView]) -> Iterator[Fault]:
    """Find what a script that sets up several rails leaves to the kernel, whose value does not suit them."""
    names = {key.rpartition("|")[2] for key in settings}
    if len(rails) < 2 or not any(view.pfc for view in views.values()):
        return
    first = next((key for key in settings if key.endswith("|address") or "|address|" in key), "")
    if "mtu" not in names:
        message = (
            "it sets addresses and classes and no MTU; with the kernel's 1500 RDMA packets have 1024 bytes, a quarter of 4096"
        )
        yield Fault("HW820", first, message, "set 9000, unless another file does", doubtful=True)
    for name, value, effect in (
        ("arp_ignore", "1", "every adapter answers for every address, and packets of one rail arrive at another's"),
        ("arp_announce", "2", "an adapter asks with the address of another rail, and the answers go there"),
        ("rp_filter", "2", "many distributions set 1, which drops what comes in by another adapter than the route back"),
    ):
        if name not in names and names & {"arp_ignore", "arp_announce", "rp_filter"}:
            message = f"it sets up several rails and does not set `{name}`; {effect}"
            yield Fault("HW850", first, message, f"set `{name}` to {value}, unless another file does", doubtful=True)


def _sysctls(settings: Mapping[str, Setting], has_rails: bool) -> Iterator[Fault]:
    for key, setting in settings.items():
        name = key.rpartition("|")[2]
        if name == "rp_filter" and setting.value == "1":
            message = (
                "strict reverse-path filtering drops what comes in by another adapter than the route back; with several "
                "rails connections time out"
            )
            yield Fault("HW850", key, message, "set `rp_filter` to 2", doubtful=not has_rails)
        if name in {"arp_ignore", "arp_announce"} and setting.value == "0":
            message = (
                f"with `{name}` 0 every adapter answers for every address; packets of one rail arrive at another's adapter, "
                "and RDMA connections fail"
            )
            yield Fault("HW850", key, message, "set `arp_ignore` to 1 and `arp_announce` to 2", doubtful=not has_rails)


def _routes(settings: Mapping[str, Setting], device: DeviceView) -> Iterator[Fault]:
    tables: dict[str, str] = {}
    networks: dict[str, tuple[str, str]] = {}
    for name, port in device.ports.items():
        key, table = _table_of(settings, name)
        if table is not None and tables.setdefault(table, name) != name:
            message = (
                f"{name} and {tables[table]} share routing table {table}; both rails leave by one adapter, and the other idles"
            )
            yield Fault("HW851", key, message, "give each adapter a table of its own")
        for address in port.addresses:
            interface = _interface(address)
            if interface is None:
                message = f"`{address}` is not an address with its prefix length; the adapter gets none, and RoCE v2 has no GID"
                yield Fault("HW851", port.keys.get("addresses", ""), message, "write it like `10.10.0.1/31`")
                continue
            other, _ = networks.setdefault(str(interface.network), (name, address))
            if other != name and table is None and not any(key.endswith("arp_announce") for key in settings):
                message = (
                    f"{name} and {other} are in the network {interface.network}; Linux answers and sends by either, and a "
                    "rail's packets take another rail"
                )
                yield Fault(
                    "HW851", port.keys.get("addresses", ""), message, "use a network per rail, or tables and `arp_announce` 2"
                )
            if port.gateway is not None:
                yield from _gateway(name, port, interface)


def _table_of(settings: Mapping[str, Setting], name: str) -> tuple[str, str | None]:
    """Return the adapter's own table of routes, with the setting that it is from; None where it has none."""
    stated = settings.get(f"{name}|table")
    if stated is not None:
        return f"{name}|table", stated.value
    for key in settings:
        if key.startswith(f"{name}|route|") and key.endswith("|default"):
            table = key.split("|")[2]
            if table not in _KERNELS_TABLES:
                return key, table
    return "", None


def _gateway(name: str, port: PortView, interface: ipaddress.IPv4Interface | ipaddress.IPv6Interface) -> Iterator[Fault]:
    key = port.keys.get("gateway", f"{name}|gateway")
    try:
        gateway = ipaddress.ip_address(port.gateway or "")
    except ValueError:
        yield Fault("HW851", key, f"`{port.gateway}` is not an address; the rail has no way out", "set the leaf's address")
        return
    if gateway not in interface.network or gateway == interface.ip:
        message = (
            f"the gateway {gateway} is not a neighbor in {interface.network}; Linux refuses the route, and the rail reaches "
            "no other leaf"
        )
        yield Fault("HW851", key, message, "set the leaf's address on this link")


def _interface(address: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface | None:
    try:
        return ipaddress.ip_interface(address) if "/" in address else None
    except ValueError:
        return None


def _links(settings: Mapping[str, Setting], device: DeviceView, views: Mapping[str, QosView]) -> Iterator[Fault]:
    for key, setting in settings.items():
        if (key == "mtu" or key.endswith("|mtu")) and setting.value.isdecimal() and int(setting.value) < _LEAST_MTU:
            message = (
                f"the MTU is {setting.value}; RDMA packets have 1024 bytes or less instead of 4096, and adapters do not reach "
                "their speed"
            )
            yield Fault("HW820", key, message, "set 9000 on adapters, and 9216 on switches", doubtful=int(setting.value) == 1500)
        if key.endswith(("pause|rx", "pause|tx")) and setting.value in _ON:
            has_pfc = any(any(view.pfc.values()) for view in views.values())
            message = (
                "global pause is on; it stops all priorities of a link, so one slow receiver stops collectives, storage and "
                "BGP, and PFC is off beside it"
            )
            yield Fault("HW809", key, message, "turn it off: `ethtool -A DEVICE rx off tx off`", doubtful=not has_pfc)
        if (key == "up" or key.endswith("|up")) and setting.value == "no":
            yield Fault(
                "HW823",
                key,
                "the adapter is set down; its rail is missing, and the job ends or runs on the others",
                "set it `up`",
            )
        if key.endswith("roce_mode") and setting.value in {"1", "IB/RoCE v1", "RoCE v1"}:
            message = "RoCE v1 has no IP header; no router forwards it, and no switch sees its DSCP"
            yield Fault("HW852", key, message, "set RoCE v2")


def _classes(settings: Mapping[str, Setting], views: Mapping[str, QosView]) -> Iterator[Fault]:
    for key, setting in settings.items():
        if (key == "trust" or key.endswith("|trust")) and setting.value == "pcp":
            message = (
                "the adapter trusts the VLAN tag and not the DSCP; routed packets have no tag, so all get priority 0 and are "
                "not paused"
            )
            yield Fault("HW852", key, message, "set `--trust dscp`", doubtful=True)
    for end, view in views.items():
        has_own = any(key.startswith(f"{end}|") and not key.removeprefix(f"{end}|").startswith(NO_QOS) for key in settings)
        prefix = f"{end}|" if has_own else ""
        cnp = view.marks.get("cnp")
        if cnp is not None and cnp > _MOST_DSCP:
            message = (
                f"the DSCP of notifications is {cnp}, and a DSCP is at most {_MOST_DSCP}; the driver keeps its own, whose "
                "queue nobody planned"
            )
            yield Fault("HW852", f"{prefix}ecn/roce_np/cnp_dscp", message, "set 48")
        elif cnp == 0:
            message = (
                "notifications have DSCP 0, that of all ordinary traffic; they wait behind it, and senders slow down too late"
            )
            yield Fault(
                "HW852", f"{prefix}ecn/roce_np/cnp_dscp", message, "set 48, and give it a queue that goes first", doubtful=True
            )
        elif cnp is not None and cnp in (view.marks.get("collectives"), view.marks.get("storage")):
            message = f"notifications have the DSCP of RDMA packets, {cnp}; they wait behind those that they are to slow down"
            yield Fault("HW852", f"{prefix}ecn/roce_np/cnp_dscp", message, "set another DSCP, for example 48")
        priority = view.marks_priority.get("cnp")
        if priority is not None and priority > 7:
            message = f"the priority of notifications is {priority}, and there are 0 to 7; the driver keeps its own"
            yield Fault("HW852", f"{prefix}ecn/roce_np/cnp_802p_prio", message, "set 6")
        for lossless, is_on in view.pfc.items():
            if (
                is_on
                and lossless in view.priorities.values()
                and view.priorities.get(48) == lossless
                and view.priorities.get(0) != lossless
            ):
                message = f"PFC pauses priority {lossless}, which DSCP 48 has: notifications wait where they are needed most"
                yield Fault("HW812", f"{prefix}prio-pfc|{lossless}", message, "pause the collectives' priority alone")
        yield from _halves(prefix, settings)
    yield from _shares(settings, views)


def _shares(settings: Mapping[str, Setting], views: Mapping[str, QosView]) -> Iterator[Fault]:
    """Find a lossless priority whose traffic class gets little of a full link; classes have the numbers of their priorities."""
    lossless = {str(priority) for view in views.values() for priority, is_on in view.pfc.items() if is_on}
    for key, setting in settings.items():
        before, name, number = key.rpartition("tc-bw|")
        if name and number in lossless and setting.value.isdecimal() and 0 < int(setting.value) < _LEAST_SHARE:
            others = [each for each in settings if each.startswith(f"{before}tc-bw|") and each != key]
            message = (
                f"traffic class {number} gets {setting.value} % of a full link, and PFC pauses it; collectives wait for the rest"
            )
            if others:
                yield Fault("HW815", key, message, "give it the larger share", doubtful=True)


def _halves(prefix: str, settings: Mapping[str, Setting]) -> Iterator[Fault]:
    """Find priorities with one half of DCQCN: who answers marks, or who slows down."""
    for number in range(8):
        answers, slows = (settings.get(f"{prefix}ecn/{side}/enable/{number}") for side in ("roce_np", "roce_rp"))
        if (answers is None) != (slows is None) or (answers is not None and slows is not None and answers.value != slows.value):
            key = f"{prefix}ecn/{'roce_np' if answers is not None else 'roce_rp'}/enable/{number}"
            message = (
                f"of congestion control for priority {number}, one half is on and the other is not; marks do not slow "
                "senders, and PFC stops whole links"
            )
            yield Fault("HW852", key, message, "set both `roce_np` and `roce_rp` to 1", doubtful=answers is None or slows is None)


def _pci(settings: Mapping[str, Setting]) -> Iterator[Fault]:
    for key, setting in settings.items():
        register = key.rpartition("setpci|")[2] if "setpci|" in key else ""
        try:
            value = int(setting.value, 16) if register else 0
        except ValueError:
            continue
        if register and _DEVICE_CONTROL.fullmatch(register) and value >> 12 & 7 < _LEAST_READ_REQUEST:
            message = (
                f"PCIe read requests are {128 << (value >> 12 & 7)} bytes; the adapter reads GPU memory in small pieces, and "
                "does not reach its speed"
            )
            yield Fault("HW853", key, message, "set 4096: bits 12 to 14 are 5, as in 5936")
        if register and _ACS_CONTROL.fullmatch(register) and value:
            message = (
                "ACS is on; traffic between adapter and GPU takes the root complex, and GPUDirect RDMA loses half of its speed"
            )
            yield Fault("HW853", key, message, "set 0 on the PCIe switches, unless virtual machines need ACS", doubtful=True)
        if key.endswith("mlxconfig|ROCE_CC_PRIO_MASK_P1") and setting.value in {"0", "0x0"}:
            message = (
                "congestion control is off for every priority of the adapter; marks do not slow it, and PFC stops whole links"
            )
            yield Fault("HW852", key, message, "set the bit of the collectives' priority: 8 for priority 3", doubtful=True)
        if key.endswith("mlxconfig|ROCE_CONTROL") and setting.value in {"1", "ROCE_DISABLE", "0x1"}:
            message = "RoCE is off in the adapter's firmware; it has no RDMA device, and NCCL uses TCP or ends"
            yield Fault("HW852", key, message, "set `ROCE_CONTROL=2`")
        if "mlxconfig|CNP_DSCP_P" in key and setting.value in {"0", "0x0"}:
            message = (
                "notifications have DSCP 0, that of all ordinary traffic; they wait behind it, and senders slow down too late"
            )
            yield Fault("HW852", key, message, "set 48", doubtful=True)
        if key.endswith("mlxconfig|PCI_WR_ORDERING") and setting.value in {"per_mkey", "0"}:
            message = (
                "writes of the adapter keep their order unless each memory region asks otherwise; behind a busy root complex "
                "it is slower"
            )
            yield Fault(
                "HW853",
                key,
                message,
                "set `PCI_WR_ORDERING=1`, or keep NCCL_IB_PCI_RELAXED_ORDERING at its default",
                doubtful=True,
            )
