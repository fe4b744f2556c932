"""Renders an InfiniBand fabric as files of opensm, and its cables as a netlist in the form that `ibnetdiscover` prints.

The settings: linux-rdma/opensm opensm/osm_subnet.c and doc/; `ar_updn`, `ar_ftree` and `sharp_enabled` are those of NVIDIA's opensm
(docs.nvidia.com, MLNXSM release notes and SHARP deployment).
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from msgspec.structs import replace

from headway.jobspec.plan import ClusterPlan, FabricPlan, PortPlan, SwitchPlan
from headway.templates.kind import Files
from headway.templates.switches.opensm.options import OpensmOptions

FILE = "opensm.conf"
PARTITIONS, ROOTS, NAMES, NETLIST = "partitions.conf", "root-guids", "ib-node-name-map", "topology.net"
OTHERS = (PARTITIONS, ROOTS, NAMES, NETLIST)

# Collectives have a virtual lane for themselves where their service level is not that of all else.
_LANES = 2
_SERVICE_LEVELS = 16
_ADAPTIVE = {"updn": "ar_updn", "ftree": "ar_ftree"}


def render_fabric(options: OpensmOptions, fabric: FabricPlan, cluster: ClusterPlan) -> Files:
    """Return the files of the host that runs opensm, by their names in `options.directory`. The file of roots is there if an inventory
    has the GUIDs of all of them."""
    switches = [switch for switch in cluster.switches if switch.fabric == fabric.name]
    roots = roots_of(fabric, cluster)
    files = {
        FILE: _configuration(options, fabric, cluster),
        PARTITIONS: _partitions(options, fabric),
        NETLIST: _netlist([replace(switch, ports=cluster.cabled(switch)) for switch in switches]),
    }
    if all(root.guid for root in roots):
        files[ROOTS] = "".join(f"{root.guid}\n" for root in roots)
    if any(switch.guid for switch in switches):
        files[NAMES] = "".join(f'{switch.guid} "{switch.name}"\n' for switch in switches if switch.guid)
    return {PurePosixPath(name): text for name, text in files.items()}


def roots_of(fabric: FabricPlan, cluster: ClusterPlan) -> Sequence[SwitchPlan]:
    """Return the switches of the highest tier."""
    switches = [switch for switch in cluster.switches if switch.fabric == fabric.name]
    for role in ("core", "spine"):
        if found := [switch for switch in switches if switch.role == role]:
            return found
    return switches


def routing_of(options: OpensmOptions, fabric: FabricPlan) -> tuple[str, ...]:
    """Return the routing engines that opensm tries, in order."""
    engine = options.routing or "updn"
    if fabric.balancing == "adaptive" and engine in _ADAPTIVE:
        return (_ADAPTIVE[engine], engine)
    return (engine,)


def _configuration(options: OpensmOptions, fabric: FabricPlan, cluster: ClusterPlan) -> str:
    folder = options.directory.rstrip("/")
    engines = routing_of(options, fabric)
    lines = [
        f"# opensm of {fabric.name} on {cluster.name}.",
        "# Rendered by headway; edit the cluster's spec, not this file. opensm has its defaults for everything else.",
        "#",
    ]
    if len(engines) > 1:
        lines.append("# An opensm without the adaptive engine takes the next.")
    lines.append(f"routing_engine {','.join(engines)}")
    if all(root.guid for root in roots_of(fabric, cluster)):
        lines.append(f"root_guid_file {folder}/{ROOTS}")
    if any(switch.guid for switch in cluster.switches if switch.fabric == fabric.name):
        lines.append(f"node_name_map_name {folder}/{NAMES}")
    lines.append(f"partition_config_file {folder}/{PARTITIONS}")
    lines += _service_levels(fabric)
    if fabric.sharp:
        lines += [
            "# 2: opensm sets up the switches' aggregation nodes; 0 leaves them as they are, 1 disables them.",
            "sharp_enabled 2",
        ]
    return "\n".join(lines) + "\n"


def _service_levels(fabric: FabricPlan) -> Iterator[str]:
    """Yield the lanes: what has the service level of collectives gets virtual lane 1, which comes before lane 0 and leaves it a
    fifth of a saturated link."""
    level = fabric.service_level
    if not level:
        yield "qos FALSE"
        return
    lanes = ",".join("1" if each == level else "0" for each in range(_SERVICE_LEVELS))
    yield f"# Collectives have service level {level} (NCCL_IB_SL) and virtual lane 1; everything else has lane 0."
    yield "qos TRUE"
    yield f"qos_max_vls {_LANES}"
    yield "qos_high_limit 0"
    yield "qos_vlarb_high 0:0,1:0"
    yield "qos_vlarb_low 0:16,1:64"
    yield f"qos_sl2vl {lanes}"


def _partitions(options: OpensmOptions, fabric: FabricPlan) -> str:
    """Return one partition of all ports, whose broadcast group has the service level of everything but collectives."""
    flags = ", ipoib" if options.ipoib else ""
    return (
        f"# Partitions of {fabric.name}. Rendered by headway; edit the cluster's spec, not this file.\n"
        f"Default=0x7fff{flags}, sl=0, defmember=full : ALL, ALL_SWITCHES=full, SELF=full ;\n"
    )


# --- the netlist ------------------------------------------------------------------------------------------------------


def _netlist(switches: Sequence[SwitchPlan]) -> str:
    """Return every device with its cables. Adapters are named as rdma-ndd names them, `HOST DEVICE`; all ids are names where no
    inventory has a GUID."""
    ids = {switch.name: _id(switch) for switch in switches}
    parts = [_switch(switch, ids) for switch in switches]
    for switch in switches:
        parts += [_adapter(port, switch, ids) for port in switch.ports if port.role == "node"]
    return "\n".join(parts)


def _id(switch: SwitchPlan) -> str:
    return f"S-{switch.guid.removeprefix('0x')}" if switch.guid else switch.name


def _adapter_id(port: PortPlan) -> str:
    return f"{port.peer} {port.peer_port}"


def _switch(switch: SwitchPlan, ids: dict[str, str]) -> str:
    lines = [f"switchguid={switch.guid}"] if switch.guid else []
    lines.append(f'Switch\t{switch.port_count} "{ids[switch.name]}"\t\t# "{switch.name}"')
    for port in switch.ports:
        if port.role == "node":
            lines.append(f'[{port.name}]\t"{_adapter_id(port)}"[1]\t\t# "{_adapter_id(port)}"')
        else:
            lines.append(f'[{port.name}]\t"{ids[port.peer]}"[{port.peer_port}]\t\t# "{port.peer}"')
    return "\n".join(lines) + "\n"


def _adapter(port: PortPlan, switch: SwitchPlan, ids: dict[str, str]) -> str:
    return (
        f'Ca\t1 "{_adapter_id(port)}"\t\t# "{_adapter_id(port)}"\n[1]\t"{ids[switch.name]}"[{port.name}]\t\t# "{switch.name}"\n'
    )
