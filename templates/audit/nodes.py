"""Rules about hosts next to jobs and to each other: adapters that NCCL uses, their addresses, and time that it waits for the network."""

import ipaddress
import re
from collections.abc import Iterator, Mapping

from headway.templates.audit.finding import Finding
from headway.templates.audit.machines import Machine
from headway.templates.audit.routing import hold_of
from headway.templates.reading import Reading

# NCCL's defaults (src/transport/net_ib): 4.096 us x 2^20 before each of 7 retries.
_IB_TIMEOUT = 20
_RETRIES = 7
_ADAPTER = re.compile(r"(mlx5|bnxt_re|ionic|irdma|rocep|ibp|efa|hns)\S*\d\S*")


def environments(readings: Mapping[str, Reading]) -> dict[str, Reading]:
    """Return the jobs' environments among the readings."""
    return {file: reading for file, reading in readings.items() if "NCCL" in reading.qos}


def check_adapters(found: list[Machine], jobs: Mapping[str, Reading]) -> Iterator[Finding]:
    """Compare NCCL_IB_HCA, NCCL_IB_ADDR_RANGE and NCCL_SOCKET_IFNAME with the adapters of each host."""
    for host in (machine for machine in found if machine.os == "host"):
        adapters = {name for name in host.ports if _ADAPTER.fullmatch(name) and host.fabric_of(name) is None}
        for file, reading in jobs.items():
            setting = reading.settings.get("NCCL_IB_HCA")
            if setting is not None and adapters and "$" not in setting.value:
                yield from _used(file, setting.value, host, adapters)
            yield from _in_range(file, reading, host)
            name = reading.settings.get("NCCL_SOCKET_IFNAME")
            shared = (
                sorted(set(name.value.lstrip("=").split(",")) & host.ports.keys())
                if name is not None and name.value[:1] != "^"
                else []
            )
            if shared:
                message = (
                    f"`NCCL_SOCKET_IFNAME` names {shared[0]}, an RDMA adapter's interface on {host.name}; its subnet may "
                    "reach one rail only, and the job hangs when it starts"
                )
                yield Finding(
                    "HW866", file, "NCCL_SOCKET_IFNAME", message, "set the management interface: `=eth0`", doubtful=True
                )


def _used(file: str, value: str, host: Machine, adapters: set[str]) -> Iterator[Finding]:
    excludes, exact = value.startswith("^"), "=" in value[:2]
    words = [word.partition(":")[0] for word in value.lstrip("^=").split(",") if word]
    chosen = {name for name in adapters if any(name == word if exact else name.startswith(word) for word in words)} ^ (
        adapters if excludes else set()
    )
    missing = [
        word for word in words if not excludes and not any(name == word if exact else name.startswith(word) for name in adapters)
    ]
    if missing:
        message = (
            f"`NCCL_IB_HCA` has {missing[0]}, and {host.name} sets up no such adapter; its traffic is unmarked and unpaused, "
            "or the rail is missing"
        )
        yield Finding("HW865", file, "NCCL_IB_HCA", message, "set the adapter up on the host, or correct the list")
    idle = sorted(adapters - chosen)
    if idle and chosen:
        message = (
            f"`NCCL_IB_HCA` leaves out {idle[0]}, which {host.name} sets up; this rail idles, and its GPUs share the adapters "
            "of others"
        )
        yield Finding("HW865", file, "NCCL_IB_HCA", message, "list all adapters of the scale-out fabric")


def _in_range(file: str, reading: Reading, host: Machine) -> Iterator[Finding]:
    setting = reading.settings.get("NCCL_IB_ADDR_RANGE")
    try:
        network = ipaddress.ip_network(setting.value, strict=False) if setting is not None else None
    except ValueError:
        return
    for name, port in host.ports.items():
        # An interface with an address alone is that of the management network, or of storage.
        is_rail = bool(port.view.gateway) or port.view.keys.get("mtu", "mtu") != "mtu" or _ADAPTER.fullmatch(name) is not None
        for address in port.view.addresses if network is not None and is_rail and host.fabric_of(name) is None else ():
            try:
                outside = ipaddress.ip_interface(address).ip not in network  # type: ignore[operator]
            except ValueError:
                continue
            if outside:
                message = (
                    f"`NCCL_IB_ADDR_RANGE` is {network}, and {name} of {host.name} has {address}; NCCL finds no GID of this "
                    "adapter, and its connections fail"
                )
                yield Finding("HW865", file, "NCCL_IB_ADDR_RANGE", message, "set the network of all adapters' addresses")
                return


def retries_s(reading: Reading) -> float | None:
    """Return the seconds for which NCCL sends a lost packet again before the job ends; None if a variable is no number.

    The adapter waits 4.096 us x 2^NCCL_IB_TIMEOUT before each of NCCL_IB_RETRY_CNT retries, at least.
    """
    values = []
    for name, default in (("NCCL_IB_TIMEOUT", _IB_TIMEOUT), ("NCCL_IB_RETRY_CNT", _RETRIES)):
        setting = reading.settings.get(name)
        text = str(default) if setting is None else setting.value.strip()
        values.append(int(text) if text.isdecimal() else None)
    timeout, retries = values
    return None if timeout is None or retries is None or timeout > 31 else 4.096e-6 * 2**timeout * retries


def reconvergence_s(machine: Machine) -> float | None:
    """Return the longest time in seconds until a switch uses another path after a silent failure: BFD's, or else the hold time of BGP."""
    times: list[float] = []
    detections = [
        view.multiplier * max(view.transmit_ms or 0, view.receive_ms or 0) / 1000
        for _, device in machine.devices
        for view in device.bfd.values()
        if view.multiplier
    ]
    bgp = machine.bgp
    for neighbor in (bgp.neighbors or {}).values() if bgp is not None else ():
        if neighbor.is_up and bgp is not None:
            hold = hold_of(bgp, neighbor)
            if neighbor.bfd:
                times.append(max(detections, default=0.9))
            elif hold:
                times.append(hold)
    return max(times, default=None)


def check_marks(found: list[Machine], jobs: Mapping[str, Reading]) -> Iterator[Finding]:
    """Find senders whose packets have no ECN bits, or one queue pair for all equal paths, next to files that need them.

    The two lowest bits of the traffic class are ECN's (RFC 3168): without them a switch drops what it would mark.
    """
    senders = {(file, "NCCL_IB_TC"): setting for file, reading in jobs.items() if (setting := reading.settings.get("NCCL_IB_TC"))}
    for machine in found:
        if machine.os == "host":
            of_collectives = ((file, machine.files[file]) for file, device in machine.devices if device.fabric is None)
            for file, reading in of_collectives:
                senders |= {(file, key): each for key, each in reading.settings.items() if key.endswith("default_roce_tos")}
    bits = {place: int(each.value) & 3 for place, each in senders.items() if each.value.isdecimal() and int(each.value) > 3}
    for (file, key), value in bits.items() if any(bits.values()) else ():
        if not value:
            message = (
                f"the traffic class is {senders[file, key].value}, without the ECN bits that other senders set; unless the adapter sets "
                "them, switches drop these packets where they mark others"
            )
            hint = f"set {int(senders[file, key].value) | 2}"
            yield Finding("HW852" if key != "NCCL_IB_TC" else "HW867", file, key, message, hint, doubtful=True)
    spread = max((len(machine.bgp.neighbors or {}) for machine in found if machine.role == "leaf" and machine.bgp), default=0)
    switches = {machine.os for machine in found if machine.os != "host"}
    for file, reading in jobs.items():
        adaptive = reading.settings.get("NCCL_IB_ADAPTIVE_ROUTING")
        if adaptive is not None and adaptive.value.strip() == "1" and switches and switches <= {"sonic", "frr"}:
            message = (
                "`NCCL_IB_ADAPTIVE_ROUTING` is 1, and the switches choose a path for each connection; NCCL sends the end of each message "
                "separately, which pays only where packets are spread"
            )
            yield Finding("HW867", file, "NCCL_IB_ADAPTIVE_ROUTING", message, "leave it out", doubtful=True)
        pairs = reading.settings.get("NCCL_IB_QPS_PER_CONNECTION")
        if pairs is not None and pairs.value.strip() == "1" and spread > 1:
            message = (
                f"each connection has one queue pair, which takes one of the leaves' {spread} uplinks; a few uplinks are full while others "
                "idle"
            )
            yield Finding("HW867", file, "NCCL_IB_QPS_PER_CONNECTION", message, "set 4", doubtful=True)


def check_time(found: list[Machine], jobs: Mapping[str, Reading]) -> Iterator[Finding]:
    """Compare how long the network may stand still with how long jobs wait for it."""
    slowest = max(
        ((time, machine) for machine in found if (time := reconvergence_s(machine)) is not None),
        key=lambda each: each[0],
        default=None,
    )
    for file, reading in jobs.items():
        uses_rdma = any(name.startswith("NCCL_IB_") for name in reading.settings)
        limit = retries_s(reading)
        if limit is None or not uses_rdma:
            continue
        key = next((name for name in ("NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT") if name in reading.settings), "")
        if slowest is not None and slowest[0] >= limit:
            time, machine = slowest
            message = (
                f"NCCL sends a lost packet again for {limit:.1f} s, and {machine.name} finds a dead link after {time:.1f} s; "
                "the job ends although another path is there"
            )
            yield Finding("HW840", file, key, message, "turn BFD on, shorten the hold time, or set NCCL_IB_TIMEOUT to 20")
        watchdog = (
            max((device.watchdog_ms for machine in found for _, device in machine.devices if device.watchdog_ms), default=0)
            / 1000
        )
        if watchdog >= limit:
            message = (
                f"NCCL sends a lost packet again for {limit:.1f} s, and a switch's PFC watchdog lets a queue stand still for "
                f"{watchdog:.1f} s; the job ends first"
            )
            yield Finding("HW840", file, key, message, "shorten the watchdog's detection time, or set NCCL_IB_TIMEOUT to 20")
