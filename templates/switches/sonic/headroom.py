"""Computes the headroom of lossless priority groups, and compares it with a file's profiles and pools.

The formula is sonic-swss's `cfgmgr/buffer_headroom_mellanox.lua`, with the constants of sonic-buildimage's
`platform/mellanox/asic_table.j2`: what still arrives after a pause was sent.
"""

import math
from collections.abc import Iterator, Mapping

from msgspec import Struct

from headway.templates.reading import Fault
from headway.templates.switches.sonic.tables import Tables, by_port, number, numbers_of, referred, row_of

# Bytes a metre of cable holds per Mb/s and way: the speed of light in it is 198,000 km/s.
_CABLE_M_PER_S = 198_000_000
_KIB = 1024
_MAC_PHY_BYTES = 0.8 * _KIB
_LEAST_PACKET = 64
# A pause lasts up to this many quanta of 512 bit times until the peer obeys it, by Mb/s (IEEE 802.3, table 31B).
_PEER_QUANTA = {10000: 67, 25000: 80, 40000: 118, 50000: 147, 100000: 394, 200000: 453, 400000: 905, 800000: 905}
_QUANTUM_BYTES = 512 // 8
_PORT_MTU = 9216
_DEFAULT_ROCE_MTU = 1024
_DEFAULT_SMALL_PERCENT = 50


class Asic(Struct, frozen=True):
    """A generation of Spectrum: bytes of a buffer cell, KiB of its pipeline, and whether a tile delays by the port's speed."""

    cell: int
    pipeline_kib: int
    has_tiles: bool


class Headroom(Struct, frozen=True):
    """Bytes: `xoff` holds what arrives after the pause, `xon` is the level at which it ends, `size` both."""

    xoff: int
    xon: int
    size: int


# By the part of the platform's name that is the model's.
_ASICS = {
    "msn4": Asic(144, 19, False),
    "msn3": Asic(144, 19, False),
    "sn4": Asic(144, 19, False),
    "sn5": Asic(192, 19, True),
    "msn2": Asic(96, 18, False),
}


def asic_of(platform: str) -> Asic | None:
    """Return the ASIC of NVIDIA's platform; None for others."""
    _, _, model = platform.rpartition("_")
    if "nvidia" not in platform and "mlnx" not in platform:
        return None
    name = platform.partition("nvidia_")[2] or platform.partition("mlnx_")[2] or model
    return next((asic for start, asic in _ASICS.items() if name.startswith(start)), None)


def headroom(
    asic: Asic, mbps: int, metres: int, lanes: int, roce_mtu: int, small_percent: int, port_mtu: int = _PORT_MTU
) -> Headroom:
    """Return a port's headroom in bytes. `roce_mtu`: bytes of the longest lossless packet; `small_percent`: share of packets of 64 bytes.

    Raises ValueError for a speed without a pause time.
    """
    if mbps not in _PEER_QUANTA:
        raise ValueError(f"no pause time is known for {mbps} Mb/s")
    cable = 2 * metres * mbps * 1e9 / _CABLE_M_PER_S / 8000
    tile = mbps / 1000 * 120 / 8 if asic.has_tiles else 0
    worst = math.ceil(asic.cell / _LEAST_PACKET) if asic.cell > 2 * _LEAST_PACKET else math.ceil(2 * asic.cell / (1 + asic.cell))
    small = 100 * _LEAST_PACKET / ((small_percent * _LEAST_PACKET + (100 - small_percent) * roce_mtu) / 100)
    occupancy = (100 - small + small * worst) / 100
    pending = port_mtu + cable + _MAC_PHY_BYTES + _PEER_QUANTA[mbps] * _QUANTUM_BYTES + tile
    xoff = _rounded(roce_mtu + occupancy * pending)
    is_wide = lanes == 8
    xon = asic.pipeline_kib * _KIB * (2 if is_wide else 1)
    return Headroom(xoff, xon, _rounded(xoff + xon + (port_mtu if is_wide else 0)))


def _rounded(value: float) -> int:
    return math.ceil(value / _KIB) * _KIB


def least_bytes(mbps: int, metres: int, port_mtu: int = _PORT_MTU) -> float | None:
    """Return the bytes that arrive after a pause on any switch: a packet on either side, the cable, and what the peer sends until it obeys.

    None for a speed without a pause time. SONiC's own tables for long cables go down to half of it.
    """
    if mbps not in _PEER_QUANTA:
        return None
    return _DEFAULT_ROCE_MTU + port_mtu + 2 * metres * mbps * 1e9 / _CABLE_M_PER_S / 8000 + _PEER_QUANTA[mbps] * _QUANTUM_BYTES


def group_bytes(shared: int, dynamic_th: int) -> int:
    """Return the most bytes of a shared pool that one priority group fills before it pauses its sender, by alpha = 2^dynamic_th."""
    alpha = 2.0**dynamic_th
    return int(shared * alpha / (1 + alpha))


def headroom_faults(tables: Tables, lossless: Mapping[str, tuple[int, ...]]) -> Iterator[Fault]:
    """Compare headroom with what arrives after a pause, the sum with the pool, and marking with the level at which a group pauses."""
    yield from _too_small(tables, lossless)
    pool_key, pool = _pool(tables)
    reserved = _reserved(tables, lossless)
    if pool is None:
        return
    if reserved >= pool:
        message = (
            f"all ports' headroom is {reserved} bytes, and the pool has {pool}; the switch refuses some of it, and those "
            "ports drop lossless packets"
        )
        hint = "shorten the cables, lower `small_packet_percentage`, or use fewer lossless priorities"
        yield Fault("HW814", pool_key, message, hint)
        return
    threshold = number(row_of(tables, "DEFAULT_LOSSLESS_BUFFER_PARAMETER", "AZURE").get("default_dynamic_th"))
    most = group_bytes(pool - reserved, 0 if threshold is None else threshold)
    queues = {referred(row.get("wred_profile")) for row in tables.get("QUEUE", {}).values()}
    for name in sorted(queues):
        highest = number(row_of(tables, "WRED_PROFILE", name).get("green_max_threshold"))
        lowest = number(row_of(tables, "WRED_PROFILE", name).get("green_min_threshold"))
        if any(lossless.values()) and highest is not None and (lowest or 0) <= highest and highest > most:
            message = (
                f"queues mark all packets from {highest} bytes on, but a group pauses its sender at {most} at the latest "
                f"(pool {pool}, headroom {reserved}); PFC stops whole links before senders slow down"
            )
            yield Fault(
                "HW802", f"WRED_PROFILE|{name}|green_max_threshold", message, f"set less than {most}, for example 2097152"
            )


def _too_small(tables: Tables, lossless: Mapping[str, tuple[int, ...]]) -> Iterator[Fault]:
    """Find profiles of groups whose `xoff` is less than half of what arrives after a pause at their port's speed and cable."""
    seen = set()
    for port, groups in by_port(tables, "BUFFER_PG").items():
        for group, row in groups.items():
            name = referred(row.get("profile"))
            profile = row_of(tables, "BUFFER_PROFILE", name)
            xoff = number(profile.get("xoff"))
            speed = number(row_of(tables, "PORT", port).get("speed"))
            if xoff is None or speed is None or name in seen or group not in lossless.get(port, ()):
                continue
            least = least_bytes(speed, _metres(tables, port) or 0)
            if least is not None and xoff < least / 2:
                seen.add(name)
                message = (
                    f"the headroom is {xoff} bytes, and {int(least)} arrive after a pause at {speed // 1000} Gb/s on this cable; "
                    "the rest is dropped, and RDMA sends whole windows again"
                )
                yield Fault("HW808", f"BUFFER_PROFILE|{name}|xoff", message, f"set `xoff` to {_rounded(least)} or more")


def _metres(tables: Tables, port: str) -> int | None:
    lengths = (row.get(port) for row in tables.get("CABLE_LENGTH", {}).values())
    return next((number(str(length).removesuffix("m")) for length in lengths if length is not None), None)


def _pool(tables: Tables) -> tuple[str, int | None]:
    """Return the pool of lossless traffic: the one at the way in, or, where that is computed, the one at the way out, of all memory."""
    for name in ("ingress_lossless_pool", "egress_lossless_pool"):
        size = number(row_of(tables, "BUFFER_POOL", name).get("size"))
        if size is not None:
            return f"BUFFER_POOL|{name}|size", size
    return "BUFFER_POOL", None


def _reserved(tables: Tables, lossless: Mapping[str, tuple[int, ...]]) -> int:
    """Return the headroom of all lossless groups in bytes: from their profiles, or computed as SONiC's dynamic model does.

    0 where a shared headroom pool (`xoff` of the ingress pool) has it apart, or the ASIC's numbers are unknown.
    """
    device = row_of(tables, "DEVICE_METADATA", "localhost")
    if "xoff" in row_of(tables, "BUFFER_POOL", "ingress_lossless_pool"):
        return 0
    asic = asic_of(str(device.get("platform"))) if device.get("buffer_model") == "dynamic" else None
    pattern = row_of(tables, "LOSSLESS_TRAFFIC_PATTERN", "AZURE")
    mtu = number(pattern.get("mtu")) or _DEFAULT_ROCE_MTU
    small = number(pattern.get("small_packet_percentage"))
    total = 0
    groups = by_port(tables, "BUFFER_PG")
    for port, priorities in lossless.items():
        row = row_of(tables, "PORT", port)
        speed, lanes = number(row.get("speed")), str(row.get("lanes", "")).count(",") + 1
        maps = {**row_of(tables, "PORT_QOS_MAP", "global"), **row_of(tables, "PORT_QOS_MAP", port)}
        of_priority = numbers_of(tables, "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP", maps.get("pfc_to_pg_map"))
        for priority in priorities:
            name = referred(groups.get(port, {}).get(of_priority.get(priority, priority), {}).get("profile"))
            size = number(row_of(tables, "BUFFER_PROFILE", name).get("size"))
            metres = _metres(tables, port)
            if size is not None:
                total += size
            elif asic is not None and speed in _PEER_QUANTA and metres is not None and mtu > 0:
                percent = min(100, _DEFAULT_SMALL_PERCENT if small is None else small)
                total += headroom(asic, speed, metres, lanes, mtu, percent).size
    return total
