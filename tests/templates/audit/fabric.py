"""The fabric of examples/two-node-roce as files of each operating system; headway renders SONiC's, these are Cumulus's and Arista's."""

from functools import cache
from pathlib import Path

from headway.compile import PlannedCluster, compile_documents
from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.templates.audit.plan import native_name

STORY = Path(__file__).parents[3] / "examples" / "two-node-roce"
CLUSTER = STORY / "slurm-cluster.yaml"
TREE = "two-roce-nodes"


@cache
def planned() -> PlannedCluster:
    (cluster,) = compile_documents([CLUSTER], kinds=("Cluster",)).clusters
    return cluster


def files(os: str) -> dict[str, str]:
    """All files of the fabric by their paths, its switches under `os`."""
    found = {}
    for root in (STORY / "rendered" / TREE, STORY / "rendered" / "small-llama" / TREE):
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.name in {"headway-qos", "job.sbatch", "config_db.json", "frr.conf"}:
                name = str(path.relative_to(STORY / "rendered"))
                if os == "sonic" or "switches" not in name:
                    found[name] = path.read_text()
    plan = planned().plan
    for switch in plan.switches if os != "sonic" else ():
        text = {"nvue": nvue, "eos": eos}[os](switch, plan)
        found[f"{TREE}/switches/{switch.name}/{'startup.txt' if os == 'nvue' else 'running.cfg'}"] = text
    return found


def nvue(switch: SwitchPlan, plan: ClusterPlan) -> str:
    """As `nv config show -o commands` prints it, Cumulus Linux 5.15."""
    lines = [
        f"system hostname {switch.name}",
        f"interface lo ip address {switch.router_id}/32",
        "qos roce mode lossless",
        "qos roce state enabled",
    ]
    # The example's numbers are not those of `qos roce`.
    ecn = "qos congestion-control default-global traffic-class"
    lines += [f"{ecn} 3 ecn enable", f"{ecn} 3 min-threshold 1048576", f"{ecn} 3 max-threshold 2097152", f"{ecn} 3 probability 5"]
    for queue, share in ((0, 40), (3, 60)):
        lines += [
            f"qos egress-scheduler default-global traffic-class {queue} mode dwrr",
            f"qos egress-scheduler default-global traffic-class {queue} bw-percent {share}",
        ]
    lines += ["qos egress-scheduler default-global traffic-class 6 mode strict"]
    bgp = "vrf default router bgp"
    lines += [
        f"{bgp} autonomous-system {switch.asn}",
        f"{bgp} router-id {switch.router_id}",
        f"{bgp} path-selection multipath aspath-ignore on",
    ]
    lines += [
        f"{bgp} peer-group FABRIC remote-as external",
        f"{bgp} peer-group FABRIC bfd state enabled",
        f"{bgp} peer-group FABRIC bfd min-rx-interval 300",
    ]
    lines += [
        f"{bgp} peer-group FABRIC bfd min-tx-interval 300",
        f"{bgp} peer-group FABRIC bfd detect-multiplier 3",
        f"{bgp} peer-group FABRIC timers hold 9",
    ]
    lines += [
        f"{bgp} address-family ipv4-unicast network {switch.router_id}/32",
        f"{bgp} address-family ipv4-unicast multipaths ebgp 2",
    ]
    for port in switch.ports:
        name = native_name(port, "nvue")
        peer = f"{port.peer} {_peer_port(port.peer, port.peer_port, 'nvue', plan)}"
        lines += [
            f"interface {name} link state up",
            f"interface {name} link mtu 9216",
            f"interface {name} link speed 400G",
            f"interface {name} link fec rs",
        ]
        lines += [f"interface {name} description '{peer}'", f"interface {name} qos pfc-watchdog state enabled"]
        if port.address:
            lines += [
                f"interface {name} ip address {port.address}",
                f"{bgp} address-family ipv4-unicast network {_network(port.address)}",
            ]
        else:
            lines += [
                f"{bgp} neighbor {name} peer-group FABRIC",
                f"{bgp} neighbor {name} type unnumbered",
                f"interface {name} ip ipv6 enable on",
            ]
    return "".join(f"nv set {line}\n" for line in lines)


def eos(switch: SwitchPlan, plan: ClusterPlan) -> str:
    """As `show running-config` prints it."""
    lines = [
        f"! device: {switch.name} (DCS-7060X6-64PE-F, EOS-4.34.1F)",
        "!",
        f"hostname {switch.name}",
        "!",
        "qos map dscp 26 to traffic-class 3",
        "qos map dscp 48 to traffic-class 6",
        "!",
    ]
    lines += ["qos profile ROCE", "   priority-flow-control on", "   priority-flow-control priority 3 no-drop", "   !"]
    lines += [
        "   uc-tx-queue 1",
        "      no priority",
        "      bandwidth percent 40",
        "   !",
        "   uc-tx-queue 3",
        "      no priority",
        "      bandwidth percent 60",
    ]
    lines += [
        "      random-detect ecn minimum-threshold 1048576 bytes maximum-threshold 2097152 bytes max-mark-probability 5 weight 0",
        "   !",
    ]
    lines += ["   uc-tx-queue 6", "      priority strict", "!"]
    for port in switch.ports:
        peer = f"{port.peer} {_peer_port(port.peer, port.peer_port, 'eos', plan)}"
        lines += [
            f"interface {native_name(port, 'eos')}",
            f"   description {peer}",
            "   mtu 9214",
            "   speed 400g-8",
            "   error-correction encoding reed-solomon",
            "   no switchport",
        ]
        lines += [f"   ip address {port.address}"] if port.address else ["   ipv6 enable"]
        lines += ["   qos trust dscp", "   service-profile ROCE", "!"]
    lines += ["interface Loopback0", f"   ip address {switch.router_id}/32", "!", "ip routing ipv6 interfaces", "!"]
    lines += [
        "priority-flow-control pause watchdog default timeout 0.4",
        "priority-flow-control pause watchdog default polling-interval 0.2",
        "priority-flow-control pause watchdog action drop",
        "!",
    ]
    lines += [
        "ip load-sharing trident fields ip source-ip destination-ip protocol source-port destination-port",
        "!",
        "peer-filter ANY",
        "   10 match as-range 1-4294967295 result accept",
        "!",
    ]
    lines += [
        f"router bgp {switch.asn}",
        f"   router-id {switch.router_id}",
        "   no bgp default ipv4-unicast",
        "   maximum-paths 2 ecmp 2",
        "   neighbor FABRIC peer group",
    ]
    lines += ["   neighbor FABRIC bfd", "   neighbor FABRIC timers 3 9"]
    lines += [f"   neighbor interface {native_name(port, 'eos')} peer-group FABRIC peer-filter ANY" for port in switch.uplinks]
    networks = [
        f"      network {switch.router_id}/32",
        *(f"      network {_network(port.address)}" for port in switch.ports if port.address),
    ]
    lines += [
        "   !",
        "   address-family ipv4",
        "      neighbor FABRIC activate",
        "      neighbor FABRIC next-hop address-family ipv6 originate",
        *networks,
    ]
    lines += ["!", "router bfd", "   interval 300 min-rx 300 multiplier 3 default", "!", "end"]
    return "\n".join(lines) + "\n"


def _peer_port(peer: str, name: str, os: str, plan: ClusterPlan) -> str:
    switch = next((switch for switch in plan.switches if switch.name == peer), None)
    return name if switch is None else native_name(next(port for port in switch.ports if port.name == name), os)


def _network(address: str) -> str:
    """The plan gives the leaf the lower, even address of a /31."""
    return address
