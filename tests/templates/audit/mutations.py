"""Mistakes that engineers make in files of a fabric, each as a change of one setting, by subject.

`at`: a part of the path of the changed files; the test fails if a file does not have the setting to change.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAF, OTHER_LEAF, SPINE, EVERY = "rails-leaf-1", "rails-leaf-2", "rails-spine-1", "switches/"
HOST, JOB = "hosts/h100-1", "job.sbatch"


@dataclass(frozen=True)
class Mutation:
    """A change named after its mistake. `rows` map paths in config_db.json (keys joined by `/`) to values, None removes one; otherwise
    `by` replaces `pattern` in the text."""

    name: str
    os: str
    at: str
    rows: tuple[tuple[str, Any], ...] = ()
    pattern: str = ""
    by: str = ""
    file: str = ""

    def apply(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return the files with the change; ValueError if no file has the setting."""
        changed = dict(files)
        for name, text in files.items():
            if self.at in name and name.endswith(self.file):
                changed[name] = (
                    self._in_tables(text)
                    if self.rows
                    else re.sub(self.pattern, self.by, text, count=0 if self.at == EVERY else 1, flags=re.MULTILINE)
                )
        if changed == dict(files):
            raise ValueError(f"nothing to change: {self.name}")
        return changed

    def _in_tables(self, text: str) -> str:
        tables = json.loads(text)
        for path, value in self.rows:
            *parents, last = (
                path.split("/") if "//" not in path else [each.replace("\0", "/") for each in path.replace("//", "\0").split("/")]
            )
            node = tables
            for parent in parents:
                node = node.setdefault(parent, {})
            if value is None:
                node.pop(last, None)
            else:
                node[last] = value
        return json.dumps(tables, indent=4)


def sonic(name: str, *rows: tuple[str, Any], at: str = LEAF) -> Mutation:
    return Mutation(name, "sonic", at, rows, file="config_db.json")


def frr(name: str, pattern: str, by: str = "", at: str = LEAF) -> Mutation:
    return Mutation(name, "sonic", at, pattern=pattern, by=by, file="frr.conf")


def host(name: str, pattern: str, by: str = "") -> Mutation:
    return Mutation(name, "sonic", HOST, pattern=pattern, by=by)


def unit(name: str, pattern: str, by: str = "", file: str = "headway-qos.service") -> Mutation:
    return Mutation(name, "sonic", HOST, pattern=pattern, by=by, file=file)


def nccl(name: str, pattern: str, by: str = "") -> Mutation:
    return Mutation(name, "sonic", JOB, pattern=pattern, by=by)


def added(name: str, variable: str) -> Mutation:
    return nccl(name, r"NCCL_DEBUG=WARN", f"NCCL_DEBUG=WARN {variable}")


def nvue(name: str, pattern: str, by: str = "", at: str = LEAF) -> Mutation:
    return Mutation(name, "nvue", at, pattern=pattern, by=by, file="startup.yaml")


def eos(name: str, pattern: str, by: str = "", at: str = LEAF) -> Mutation:
    return Mutation(name, "eos", at, pattern=pattern, by=by, file="startup-config")


def pods(name: str, pattern: str, by: str = "") -> Mutation:
    return Mutation(name, "pods", "job.yaml", pattern=pattern, by=by)


def opensm(name: str, file: str, pattern: str, by: str = "") -> Mutation:
    return Mutation(name, "opensm", "fabrics", pattern=pattern, by=by, file=file)


_ACTIVE = r"^(  neighbor FABRIC activate\n(?:.*\n)*)"


def _map(command: str, lines: str) -> str:
    """Return the neighbor's command, and the route map that it names."""
    return rf"  {command}\n\1route-map {lines}\nexit\n"


def _list(command: str, line: str) -> str:
    """Return the neighbor's command, and the prefix list that it names."""
    return rf"  {command}\n\1ip prefix-list {line}\n"


_WRED, _MAP = "WRED_PROFILE/queue3", "PORT_QOS_MAP/Ethernet0"
_UP = "PORT/Ethernet256"

SONIC = (
    sonic("unmarked traffic in the lossless class, everywhere", ("DSCP_TO_TC_MAP/AZURE/0", "3"), at=EVERY),
    sonic(
        "routed port in a VLAN", ("VLAN/Vlan10", {"vlanid": "10"}), ("VLAN_MEMBER/Vlan10|Ethernet0", {"tagging_mode": "untagged"})
    ),
    sonic("routed port in a LAG", ("PORTCHANNEL_MEMBER/PortChannel1|Ethernet256", {"NULL": "NULL"})),
    sonic("container of BGP disabled", ("FEATURE/bgp/state", "disabled")),
    sonic("no length of any cable", ("CABLE_LENGTH", None)),
    sonic("DSCP of the collectives in another class", ("DSCP_TO_TC_MAP/AZURE/26", "0")),
    sonic("DSCP of the collectives in another class, everywhere", ("DSCP_TO_TC_MAP/AZURE/26", "6"), at=EVERY),
    sonic("DSCP of the notifications in the lossless class", ("DSCP_TO_TC_MAP/AZURE/48", "3"), at=EVERY),
    sonic("class in another queue", ("TC_TO_QUEUE_MAP/AZURE/3", "5")),
    sonic("class in another priority group", ("TC_TO_PRIORITY_GROUP_MAP/AZURE/3", "0"), at=EVERY),
    sonic("PFC priority pauses another queue", ("MAP_PFC_PRIORITY_TO_QUEUE/AZURE/3", "4"), at=EVERY),
    sonic("PFC priority without a queue", ("MAP_PFC_PRIORITY_TO_QUEUE/AZURE/3", None), at=EVERY),
    sonic("PFC priority without a group", ("PFC_PRIORITY_TO_PRIORITY_GROUP_MAP/AZURE", {"4": "4"}), at=EVERY),
    sonic("PFC for another priority", (f"{_MAP}/pfc_enable", "4")),
    sonic("PFC for one priority more", (f"{_MAP}/pfc_enable", "3,6")),
    sonic("PFC off on a port", (f"{_MAP}/pfc_enable", "")),
    sonic("port without a map of DSCP", (f"{_MAP}/dscp_to_tc_map", None), ("PORT_QOS_MAP/global", None)),
    sonic("map that does not exist", (f"{_MAP}/tc_to_queue_map", "AZUR")),
    sonic("kmin above kmax, everywhere", (f"{_WRED}/green_min_threshold", "4194304"), at=EVERY),
    sonic("kmin above kmax for yellow", (f"{_WRED}/yellow_min_threshold", "4194304")),
    sonic("thresholds in cells", (f"{_WRED}/green_min_threshold", "5461"), (f"{_WRED}/green_max_threshold", "10922"), at=EVERY),
    sonic(
        "thresholds in kilobytes", (f"{_WRED}/green_min_threshold", "1024"), (f"{_WRED}/green_max_threshold", "2048"), at=EVERY
    ),
    sonic("kmax above the buffer", (f"{_WRED}/green_max_threshold", "200000000"), at=EVERY),
    sonic("kmax that PFC never lets a queue reach", (f"{_WRED}/green_max_threshold", "134217728"), at=EVERY),
    sonic("kmin of one byte", (f"{_WRED}/green_min_threshold", "1"), at=EVERY),
    sonic("drop probability 0", (f"{_WRED}/green_drop_probability", "0"), at=EVERY),
    sonic("drop probability 100 on one switch", (f"{_WRED}/green_drop_probability", "100")),
    sonic("ECN off", (f"{_WRED}/ecn", "ecn_none"), at=EVERY),
    sonic("WRED of green packets off", (f"{_WRED}/wred_green_enable", "false"), at=EVERY),
    sonic(
        "ECN on the wrong queue",
        *((f"QUEUE/{port}|3", {"scheduler": "queue3"}) for port in ("Ethernet0", "Ethernet8", "Ethernet256", "Ethernet264")),
        *(
            (f"QUEUE/{port}|0", {"scheduler": "queue0", "wred_profile": "queue3"})
            for port in ("Ethernet0", "Ethernet8", "Ethernet256", "Ethernet264")
        ),
    ),
    sonic("WRED profile that does not exist", ("QUEUE/Ethernet0|3/wred_profile", "AZURE_LOSSLESS")),
    sonic("lossy group for the lossless priority", ("BUFFER_PG/Ethernet0|3/profile", "ingress_lossy_profile")),
    sonic("no group for the lossless priority", ("BUFFER_PG/Ethernet0|3", None)),
    sonic("headroom for a priority without PFC", ("BUFFER_PG/Ethernet0|4", {"profile": "NULL"})),
    sonic("lossy queue for the lossless traffic", ("BUFFER_QUEUE/Ethernet0|3/profile", "q_lossy_profile")),
    sonic("egress dynamic threshold -8", ("BUFFER_PROFILE/egress_lossless_profile/dynamic_th", "-8"), at=EVERY),
    sonic("dynamic threshold out of range", ("BUFFER_PROFILE/ingress_lossless_profile/dynamic_th", "9")),
    sonic("dynamic threshold of one switch", ("BUFFER_PROFILE/ingress_lossless_profile/dynamic_th", "-3")),
    sonic("egress pool of one byte", ("BUFFER_POOL/egress_lossless_pool/size", "1"), at=EVERY),
    sonic("traditional buffer model with dynamic tables", ("DEVICE_METADATA/localhost/buffer_model", "traditional"), at=EVERY),
    sonic("HwSKU of another platform", ("DEVICE_METADATA/localhost/hwsku", "ACS-SN5600"), at=EVERY),
    sonic("platform of another switch", ("DEVICE_METADATA/localhost/platform", "x86_64-arista_7060x6_64pe")),
    sonic("cable 0 m", ("CABLE_LENGTH/AZURE/Ethernet256", "0m")),
    sonic("cable 5 m for 40 m", ("CABLE_LENGTH/AZURE/Ethernet256", "5m")),
    sonic("cable without a length", ("CABLE_LENGTH/AZURE/Ethernet256", None)),
    sonic("watchdog off on a port", ("PFC_WD/Ethernet0", None)),
    sonic("watchdog off", ("PFC_WD", None), at=EVERY),
    sonic("watchdog shorter than its poll", ("PFC_WD/Ethernet0/detection_time", "100")),
    sonic("watchdog that forwards", ("PFC_WD/Ethernet0/action", "forward")),
    sonic("watchdog for another priority", (f"{_MAP}/pfcwd_sw_enable", "4")),
    sonic("hash without ports", ("SWITCH_HASH/GLOBAL/ecmp_hash", ["SRC_IP", "DST_IP"]), at=EVERY),
    sonic("MTU 1500 at one end", (f"{_UP}/mtu", "1500")),
    sonic("MTU 1500 towards a host", ("PORT/Ethernet0/mtu", "1500")),
    sonic("FEC off at one end", (f"{_UP}/fec", "none")),
    sonic("FEC off everywhere", *((f"PORT/Ethernet{n}/fec", "none") for n in (0, 8)), at=EVERY),
    sonic("speed of one end", (f"{_UP}/speed", "200000")),
    sonic("speed that does not exist", ("PORT/Ethernet0/speed", "300000")),
    sonic("port shut", (f"{_UP}/admin_status", "down")),
    sonic("port to a host shut", ("PORT/Ethernet0/admin_status", "down")),
    sonic("lanes of another port", (f"{_UP}/lanes", "0,1,2,3,4,5,6,7")),
    sonic("lanes shifted", ("PORT/Ethernet16/lanes", "512,513,514,515,516,517,518,519")),
    sonic("three lanes", (f"{_UP}/lanes", "256,257,258")),
    sonic("index of another module", (f"{_UP}/index", "34")),
    sonic("alias of another port", (f"{_UP}/alias", "etp1")),
    sonic("breakout of another mode", ("BREAKOUT_CFG/Ethernet256/brkout_mode", "2x200G[100G,50G,40G,25G,10G]")),
    sonic("address of another port", ("INTERFACE/Ethernet0|10.10.0.0//31", None), ("INTERFACE/Ethernet0|10.10.0.2//31", {})),
    sonic("address outside of the link", ("INTERFACE/Ethernet0|10.10.0.0//31", None), ("INTERFACE/Ethernet0|10.10.9.0//31", {})),
    sonic("address missing", ("INTERFACE/Ethernet0|10.10.0.0//31", None)),
    sonic(
        "loopback of another switch",
        ("LOOPBACK_INTERFACE/Loopback0|10.255.128.1//32", None),
        ("LOOPBACK_INTERFACE/Loopback0|10.255.128.2//32", {}),
    ),
    sonic("link-local off on an uplink", ("INTERFACE/Ethernet256/ipv6_use_link_local_only", "disable")),
    sonic("neighbor of another name", ("DEVICE_NEIGHBOR/Ethernet256/name", "rails-spine-2")),
    sonic("neighbor's port", ("DEVICE_NEIGHBOR/Ethernet256/port", "Ethernet8")),
    sonic("host name of another switch", ("DEVICE_METADATA/localhost/hostname", "rails-leaf-2")),
    sonic("AS number that differs from frr.conf", ("DEVICE_METADATA/localhost/bgp_asn", "4200000009")),
    sonic("port without lanes", ("PORT/Ethernet8/lanes", None)),
    sonic("unknown type of switch", ("DEVICE_METADATA/localhost/type", "Leaf")),
    sonic("address at one end", ("INTERFACE/Ethernet256|10.99.0.0//31", {})),
    sonic("port that stays down", (f"{_UP}/admin_status", None)),
    sonic(
        "ACL that drops all of IPv4",
        ("ACL_TABLE/X", {"type": "L3", "stage": "INGRESS", "ports": ["Ethernet256"]}),
        ("ACL_RULE/X|R", {"PRIORITY": "1", "ETHER_TYPE": "2048", "PACKET_ACTION": "DROP"}),
    ),
    sonic("no room for ARP", ("PORT_STORM_CONTROL/Ethernet0|broadcast", {"kbps": "8"})),
    sonic(
        "static route that FRR does not read",
        ("STATIC_ROUTE/default|10.10.0.64//26", {"nexthop": "10.10.0.1", "ifname": "Ethernet0"}),
    ),
    sonic("scheduler with 1 %", ("SCHEDULER/queue3/weight", "1"), at=EVERY),
    sonic("lossless queue strict", ("SCHEDULER/queue3", {"type": "STRICT"}), at=EVERY),
    sonic("scheduler that does not exist", ("QUEUE/Ethernet0|3/scheduler", "scheduler.1")),
    sonic("four lanes of eight", ("PORT/Ethernet0/lanes", "0,1,2,3")),
    sonic("second half of a module", ("PORT/Ethernet0/subport", "2")),
    sonic("cage without a mode", ("BREAKOUT_CFG/Ethernet0", None)),
    sonic("description of another host", ("PORT/Ethernet0/description", "h100-2 mlx5_0")),
    sonic("VRF that does not exist", ("INTERFACE/Ethernet0/vrf_name", "VrfTenant")),
    sonic("VRF of one port", ("VRF/VrfTenant", {"vni": "0"}), ("INTERFACE/Ethernet0/vrf_name", "VrfTenant")),
    sonic("base MAC of another leaf", ("DEVICE_METADATA/localhost/mac", "02:00:5e:00:00:20")),
    sonic("type of a spine", ("DEVICE_METADATA/localhost/type", "SpineRouter")),
    sonic("sessions shut by default", ("DEVICE_METADATA/localhost/default_bgp_status", "down")),
    sonic("kmax of a millisecond", (f"{_WRED}/green_max_threshold", "67108864"), at=EVERY),
    sonic(
        "ACL that drops RoCE",
        ("ACL_TABLE/DATA", {"type": "L3", "stage": "ingress", "ports": ["Ethernet0"]}),
        ("ACL_RULE/DATA|R1", {"PRIORITY": "10", "PACKET_ACTION": "DROP", "IP_PROTOCOL": "17", "L4_DST_PORT": "4791"}),
    ),
    sonic("storm control", ("PORT_STORM_CONTROL/Ethernet0|unknown-unicast", {"kbps": "1000"})),
    sonic("static route that drops", ("STATIC_ROUTE/default|10.10.0.64//26", {"blackhole": "true"})),
    sonic("no control of modules", ("FEATURE/pmon", {"state": "disabled"})),
)

FRR = (
    frr("BFD that waits for 50 packets", "detect-multiplier 3", "detect-multiplier 50", at=EVERY),
    frr("AS number of another leaf", r"router bgp \d+", "router bgp 4200000002"),
    frr("AS number of the spines", r"router bgp \d+", "router bgp 4200000000"),
    frr("router ID of another leaf", r"router-id \S+", "router-id 10.255.128.2"),
    frr("remote AS internal", "remote-as external", "remote-as internal"),
    frr("unused remote AS", "remote-as external", "remote-as 65000"),
    frr("BFD missing", r"^ neighbor FABRIC bfd.*\n"),
    frr("BFD profile that does not exist", "bfd profile FABRIC", "bfd profile FAST"),
    frr("BFD of 10 ms", r"(transmit|receive)-interval 300", r"\1-interval 10", at=EVERY),
    frr(
        "hold time 180 s without BFD",
        r"^ neighbor FABRIC timers 3 9\n neighbor FABRIC timers connect 1\n neighbor FABRIC bfd.*\n",
        " neighbor FABRIC timers 60 180\n",
        at=EVERY,
    ),
    frr("hold time shorter than keepalives", "timers 3 9", "timers 30 9", at=EVERY),
    frr("timers missing without BFD, everywhere", r"(^ neighbor FABRIC (timers|bfd).*\n)+", "", at=EVERY),
    frr("one path", "maximum-paths 2", "maximum-paths 1"),
    frr("paths of different AS numbers not relaxed", r"^.*multipath-relax\n"),
    frr(
        "all sessions shut", "neighbor FABRIC remote-as external", "neighbor FABRIC remote-as external\n neighbor FABRIC shutdown"
    ),
    frr("one session shut", r"(neighbor Ethernet256 interface peer-group FABRIC)", r"\1\n neighbor Ethernet256 shutdown"),
    frr("neighbor missing", r"^ neighbor Ethernet256 interface.*\n"),
    frr("neighbor on another port", "neighbor Ethernet256 interface", "neighbor Ethernet272 interface"),
    frr("not active for IPv4", r"^  neighbor FABRIC activate\n"),
    frr(
        "peer group that does not exist",
        "neighbor Ethernet256 interface peer-group FABRIC",
        "neighbor Ethernet256 interface peer-group FABRICS",
    ),
    frr("policy required and missing", "no bgp ebgp-requires-policy", "bgp ebgp-requires-policy"),
    frr(
        "policy by the profile's default",
        r"frr defaults datacenter|^ no bgp ebgp-requires-policy\n",
        "frr defaults traditional",
        at=EVERY,
    ),
    frr(
        "route map that denies all",
        r"  neighbor FABRIC activate",
        "  neighbor FABRIC activate\n  neighbor FABRIC route-map DENY out\n exit-address-family\nexit\n"
        "route-map DENY deny 10\nexit\nrouter bgp 4200000001\n address-family ipv4 unicast",
    ),
    frr(
        "route map that does not exist",
        r"  neighbor FABRIC activate",
        "  neighbor FABRIC activate\n  neighbor FABRIC route-map FABRIC in",
    ),
    frr("network of a host not announced", r"^  network 10\.10\.0\.0/31\n(.*\n)*?  aggregate-address.*\n"),
    frr("another network announced", "network 10.10.0.0/31", "network 10.10.9.0/31"),
    frr("no network announced", r"^  (network|aggregate-address) .*\n", "", at=EVERY),
    frr("router advertisements off", "no ipv6 nd suppress-ra", "ipv6 nd suppress-ra"),
    frr("port shut in FRR", r"(interface Ethernet256\n)", r"\1 shutdown\n"),
    frr("slow announcements", "advertisement-interval 0", "advertisement-interval 30", at=EVERY),
    frr("slow reconnect", "timers connect 1", "timers connect 120", at=EVERY),
    frr("nexthop groups of the kernel on one switch", r"^no zebra nexthop.*\n"),
    frr("graceful shutdown", "bgp log-neighbor-changes", "bgp graceful-shutdown"),
    frr("host name of another switch in frr.conf", "hostname rails-leaf-1", "hostname rails-leaf-2"),
    frr("one network in the summary only", r"^  network 10\.10\.0\.2/31\n"),
    frr("summary of all leaves", r"aggregate-address 10\.10\.0\.0/26", "aggregate-address 10.10.0.0/16"),
    frr("BFD profile that no neighbor has", r"^ neighbor FABRIC bfd.*\n", at=EVERY),
    frr("both ends passive", r"remote-as external", r"remote-as external\n neighbor FABRIC passive", at=EVERY),
    frr("hold time 180 s with BFD", "timers 3 9", "timers 60 180", at=EVERY),
    frr("static route that drops in frr.conf", r"^bfd\n", "ip route 10.10.0.64/26 blackhole\n!\nbfd\n"),
    frr("weight of one uplink", _ACTIVE, r"\1  neighbor Ethernet256 weight 100\n"),
    frr(
        "longer path by one uplink",
        _ACTIVE,
        _map("neighbor Ethernet256 route-map PP in", "PP permit 10\n set as-path prepend 65000"),
    ),
    frr("prefix list that denies all", _ACTIVE, _list("neighbor FABRIC prefix-list P out", "P seq 5 deny any")),
    frr(
        "prefix list of loopbacks alone",
        _ACTIVE,
        _list("neighbor FABRIC prefix-list P out", "P seq 5 permit 10.255.0.0/16 le 32"),
    ),
    frr("unknown prefix list", _ACTIVE, r"\1  neighbor FABRIC prefix-list P in\n"),
    frr("fewer routes than switches", _ACTIVE, r"\1  neighbor FABRIC maximum-prefix 2\n"),
    frr("password at one end", "remote-as external", r"remote-as external\n neighbor FABRIC password secret"),
    frr(
        "another remote AS for one port",
        r"^( neighbor Ethernet256 interface).*",
        r"\1 remote-as 65001\n neighbor Ethernet256 peer-group FABRIC",
    ),
    frr(
        "no IPv6 next hops",
        r"^( neighbor Ethernet264 interface.*\n)",
        r"\1 no neighbor Ethernet264 capability extended-nexthop\n",
    ),
    frr("another AS in front", "remote-as external", r"remote-as external\n neighbor FABRIC local-as 65000"),
    frr("routes never installed", _ACTIVE, r"  distance bgp 255 255 255\n\1"),
    frr("paths that are never used", "bgp log-neighbor-changes", r"bgp log-neighbor-changes\n bgp dampening"),
    frr("BFD that waits", "detect-multiplier 3", r"detect-multiplier 3\n  passive-mode", at=EVERY),
    frr(
        "descriptions swapped",
        r"(description) rails-spine-1( Ethernet0\n[\s\S]*description) rails-spine-2",
        r"\1 rails-spine-2\2 rails-spine-1",
    ),
)

HOSTS = (
    host("unmarked packets in the lossless priority", "dscp-prio 48:6", "dscp-prio 48:6 0:3"),
    host("PFC for one priority more", "all:off 3:on", "all:off 3:on 4:on"),
    host("DSCP of another priority", "dscp-prio 26:3", "dscp-prio 26:5"),
    host("another DSCP", "dscp-prio 26:3", "dscp-prio 34:3"),
    host("PFC for another priority", "all:off 3:on", "all:off 4:on"),
    host("PFC for all priorities", "all:off 3:on", "all:on"),
    host("PFC missing", r"^  dcb pfc.*\n"),
    host("global pause", "rx off tx off", "rx on tx on"),
    host("MTU 1500", "mtu 9000", "mtu 1500"),
    host("traffic class of another DSCP", r"(cma_tos .*) 106", r"\1 136"),
    host("DSCP of the notifications", r"(cnp_dscp.*) 48$", r"\1 26"),
    host("priority of the notifications", r"(np_cnp_prio\") 6$", r"\1 3"),
    host("senders that do not slow down", r"(roce_rp/enable/3\") 1", r"\1 0"),
    host("receivers that do not answer marks", r"(roce_np/enable/3\") 1", r"\1 0"),
    host("strict reverse-path filter", "rp_filter 2", "rp_filter 1"),
    host("ARP for every address", "arp_ignore 1", "arp_ignore 0"),
    host("ARP announces any address", "arp_announce 2", "arp_announce 0"),
    host("address of another host", r"(set_address mlx5_0) 10\.10\.0\.1/31 10\.10\.0\.0", r"\1 10.10.0.3/31 10.10.0.2"),
    host(
        "addresses of the rails swapped",
        r"set_address mlx5_0 (\S+ \S+) (\d+)(.*)\nset_address mlx5_1 (\S+ \S+) (\d+)",
        r"set_address mlx5_0 \4 \2\3\nset_address mlx5_1 \1 \5",
    ),
    host("gateway of the other rail", r"(set_address mlx5_0 \S+) \S+", r"\1 10.10.0.64"),
    host("prefix too long", r"10\.10\.0\.1/31", "10.10.0.1/32"),
    host("one table for two rails", r"(set_address mlx5_1 \S+ \S+) \d+", r"\1 1000"),
    host("adapter without classes", r"^set_qos mlx5_1.*\n"),
    host("adapter without an address", r"^set_address mlx5_1.*\n"),
    host("no rule to the tables", r"^  ip rule add .*\n"),
    host("tables without a route", r"^  ip route replace default .*\n"),
    host("adapters down", "mtu 9000 up", "mtu 9000 down"),
    host("traffic class without ECN", r"(cma_tos .*) 106", r"\1 104"),
    host("two defaults", r"(traffic_class\") 106", r"\1 0"),
    host("notifications unmarked", r"(cnp_dscp.*) 48$", r"\1 0"),
    host("RoCE off in the firmware", r"^failed=0$", "failed=0\nmlxconfig -d mlx5_0 set ROCE_CONTROL=1"),
    host("MTU of the kernel", " mtu 9000"),
    host("no route to other rails", r"^  ip route replace 10\.10.*\n"),
    host("route to one rail", r"10\.10\.0\.0/16 via", "10.10.0.0/26 via"),
    host("ARP with another rail's address", r"^.*arp_announce 2\n"),
    host("reverse-path filter of the distribution", r"^.*rp_filter 2\n"),
    host("share of 1 %", r"^(  dcb pfc set.*\n)", r"\1  dcb ets set dev \"$netdev\" tc-bw 0:99 3:1\n"),
    host("the kernel's own table", r"10\.10\.0\.64 1001", "10.10.0.64 254"),
    host("rules behind the main table", r'ip rule add priority "\$table"', "ip rule add priority 40000"),
    host("classes on no adapter", r"^set_qos mlx5_0.*\nset_qos mlx5_1.*\n"),
    unit("unit that runs something else", r"^ExecStart=.*", "ExecStart=/bin/true"),
    unit("unit that nothing starts", r"^WantedBy=.*\n"),
    unit("unit after the jobs", r"^Before=slurmd.service kubelet.service", "After=slurmd.service"),
    unit("networkd that deletes routes", "ManageForeignRoutes=no", "ManageForeignRoutes=yes", "90-headway-qos.conf"),
    unit("networkd that deletes rules", r"^ManageForeignRoutingPolicyRules=no\n", "", "90-headway-qos.conf"),
)

JOBS = (
    nccl("address family of another network", r"ADDR_FAMILY=AF_INET\b", "ADDR_FAMILY=AF_INET6"),
    added("NVLink SHARP off", "NCCL_NVLS_ENABLE=0"),
    added("PXN off", "NCCL_PXN_DISABLE=1"),
    added("one protocol alone", "NCCL_PROTO=LL128"),
    added("an adapter's failure ignored", "NCCL_IB_RETURN_ASYNC_EVENTS=0"),
    added("unused partition", "NCCL_IB_PKEY=5"),
    nccl("ECN bits missing", "NCCL_IB_TC=106", "NCCL_IB_TC=104"),
    nccl("DSCP without a class", "NCCL_IB_TC=106", "NCCL_IB_TC=32"),
    nccl("DSCP instead of the traffic class", "NCCL_IB_TC=106", "NCCL_IB_TC=26"),
    nccl("traffic class missing", r"NCCL_IB_TC=106 ?"),
    nccl("adapter missing in the list", r"(NCCL_IB_HCA=\S*mlx5_0),mlx5_1", r"\1"),
    nccl("adapter that no host has", r"(NCCL_IB_HCA=\S*mlx5_0),mlx5_1", r"\1,mlx5_7"),
    nccl("short timeout", r"NCCL_IB_TIMEOUT=\d+", "NCCL_IB_TIMEOUT=10"),
    nccl("long timeout", r"NCCL_IB_TIMEOUT=\d+", "NCCL_IB_TIMEOUT=25"),
    nccl("timeout out of range", r"NCCL_IB_TIMEOUT=\d+", "NCCL_IB_TIMEOUT=60"),
    nccl("misspelt variable", "NCCL_IB_TIMEOUT", "NCCL_IB_TIMEOUTS"),
    nccl("RoCE v1", "NCCL_IB_ROCE_VERSION_NUM=2", "NCCL_IB_ROCE_VERSION_NUM=1"),
    nccl("range of other addresses", r"NCCL_IB_ADDR_RANGE=\S+", "NCCL_IB_ADDR_RANGE=10.20.0.0/16"),
    nccl("family IPv6", "AF_INET", "AF_INT6"),
    nccl("sockets over loopback", r"(NCCL_SOCKET_IFNAME=\S*)eth0", r"\1lo"),
    nccl("sockets over an RDMA adapter", r"(NCCL_SOCKET_IFNAME=\S*)eth0", r"\1mlx5_0"),
    nccl("network Socket", "NCCL_NET=IB", "NCCL_NET=Socket"),
    nccl("rings across rails", "NCCL_CROSS_NIC=0", "NCCL_CROSS_NIC=1"),
    nccl("queue pairs out of range", r"NCCL_IB_QPS_PER_CONNECTION=\d+", "NCCL_IB_QPS_PER_CONNECTION=1024"),
    added("GID index 0", "NCCL_IB_GID_INDEX=0"),
    added("GID index 3", "NCCL_IB_GID_INDEX=3"),
    added("RDMA off", "NCCL_IB_DISABLE=1"),
    added("no retries", "NCCL_IB_RETRY_CNT=0"),
    added("control messages unmarked", "NCCL_IB_FIFO_TC=0"),
    added("unknown variable", "NCCL_IB_LANES=4"),
    added("GPUDirect off", "NCCL_NET_GDR_LEVEL=LOC"),
    added("NVLink off", "NCCL_P2P_DISABLE=1"),
    added("shared memory off", "NCCL_SHM_DISABLE=1"),
    added("relaxed ordering off", "NCCL_IB_PCI_RELAXED_ORDERING=0"),
    added("algorithm that does not exist", "NCCL_ALGO=Rings"),
    added("unknown network", "NCCL_NET_PLUGIN=ucx"),
    nccl("network misspelt", "NCCL_NET=IB", "NCCL_NET=ib0"),
    nccl("interfaces of two networks", r"(NCCL_SOCKET_IFNAME=\S*)eth0", r"\1eth9"),
    added("gloo over loopback", "GLOO_SOCKET_IFNAME=lo"),
    nccl("one queue pair", r"NCCL_IB_QPS_PER_CONNECTION=\d+", "NCCL_IB_QPS_PER_CONNECTION=1"),
    added("service level on RoCE", "NCCL_IB_SL=1"),
    added("adaptive routing without switch support", "NCCL_IB_ADAPTIVE_ROUTING=1"),
    added("partition on RoCE", "NCCL_IB_PKEY=5"),
    added("launches that wait", "NCCL_LAUNCH_MODE=GROUP"),
    added("sockets over IPv6", "NCCL_SOCKET_FAMILY=AF_INET6"),
    added("provider of libfabric", "FI_PROVIDER=efa"),
    added("topology of another machine", "NCCL_TOPO_FILE=/nowhere.xml"),
    added("kernels that wait", "CUDA_LAUNCH_BLOCKING=1"),
    added("port 2 of an adapter", "NCCL_IB_HCA==mlx5_0:2,mlx5_1:2"),
    added("torch's watchdog before NCCL's retries", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=20"),
    added("one block", "NCCL_MAX_CTAS=1"),
    added("adapters of all GPUs joined", "NCCL_NET_MERGE_LEVEL=SYS"),
    added("log of nothing", "NCCL_DEBUG_SUBSYS=NETT"),
)

PODS = (
    pods("no network of the adapters", "hostNetwork: true", "hostNetwork: false"),
    pods("no locked memory", r'"add": \["IPC_LOCK"\]', '"add": ["NET_ADMIN"]'),
    pods(
        "no device of RDMA",
        r', "rdma/hca_shared_devices_a": "1"(.*\n.*), "rdma/hca_shared_devices_a": "1"',
        r"\1",
    ),
    pods("name servers of the host", "dnsPolicy: ClusterFirstWithHostNet", "dnsPolicy: ClusterFirst"),
)

OPENSM = (
    opensm("no engine", "opensm.conf", r"^routing_engine.*\n"),
    opensm("engine of another shape", "opensm.conf", "ar_updn,updn", "lash"),
    opensm("engine misspelt", "opensm.conf", "ar_updn,updn", "ar_updwn"),
    opensm("engine that loops", "opensm.conf", "ar_updn,updn", "minhop"),
    opensm("no file of roots", "opensm.conf", r"^root_guid_file.*\n"),
    opensm("roots in another file", "opensm.conf", "/etc/opensm/root-guids", "/etc/opensm/roots"),
    opensm("partitions in another file", "opensm.conf", "/etc/opensm/partitions.conf", "/etc/opensm/other.conf"),
    opensm("QoS without lanes", "opensm.conf", "qos FALSE", "qos TRUE"),
    opensm("priority out of range", "opensm.conf", "qos FALSE", "qos FALSE\nsm_priority 16"),
    opensm("packets that wait dropped", "opensm.conf", "qos FALSE", "qos FALSE\nhead_of_queue_lifetime 0x0"),
    opensm("root missing", "root-guids", "0xb83fd20300000004\n"),
    opensm("root of another fabric", "root-guids", "0xb83fd20300000004", "0xb83fd20300000104"),
    opensm("root twice", "root-guids", "0xb83fd20300000004", "0xb83fd20300000003"),
    opensm("no root", "root-guids", r"(0x.*\n)+"),
    opensm("root by name", "root-guids", "0xb83fd20300000004", "compute-spine-4"),
    opensm("limited members", "partitions.conf", "defmember=full", "defmember=limited"),
    opensm("another default key", "partitions.conf", "Default=0x7fff", "Default=0x0001"),
    opensm("service level without QoS", "partitions.conf", "sl=0", "sl=5"),
    opensm("no broadcast group", "partitions.conf", "ipoib, "),
    opensm("no adapter a member", "partitions.conf", "ALL, "),
    opensm("no default partition", "partitions.conf", r"^Default.*\n"),
    opensm("manager not a member", "partitions.conf", "ALL, ALL_SWITCHES=full, SELF=full", "0xb83fd20300000104=full"),
    opensm("two switches of one name", "ib-node-name-map", '"compute-spine-4"', '"compute-spine-3"'),
    opensm("name that is not a switch", "ib-node-name-map", "0xb83fd20300000004", "0xb83fd20300000009"),
    opensm("cable of one end only", "topology.net", r'^\[4\]\t"h100-4 mlx5_0".*\n'),
    opensm("cables swapped", "topology.net", r'^\[1\]\t"h100-1 mlx5_0"\[1\]', '[1]\t"h100-1 mlx5_1"[1]'),
)

NVUE = (
    nvue("RoCE off", "qos roce state enabled", "qos roce state disabled"),
    nvue("RoCE lossy on one switch", "qos roce mode lossless", "qos roce mode lossy"),
    nvue("kmin above kmax", "min-threshold 1048576", "min-threshold 4194304", at=EVERY),
    nvue("thresholds in kilobytes", r"(max-threshold) 2097152\n(.*) 1048576", r"\1 2048\n\2 1024", at=EVERY),
    nvue("probability 0", "probability 5", "probability 0", at=EVERY),
    nvue("ECN off", "3 ecn enable", "3 ecn disable"),
    nvue(
        "ECN of another traffic class",
        r"congestion-control default-global traffic-class 3 (ecn|min-threshold|max-threshold|probability) (\w+)",
        r"congestion-control default-global traffic-class 5 \1 \2",
        at=EVERY,
    ),
    nvue("DSCP mapped to another priority", "dscp 26 switch-priority 3", "dscp 26 switch-priority 0"),
    nvue("trust of the VLAN tag", "trust both", "trust l2", at=EVERY),
    nvue("priority in another traffic class", "switch-priority 3 traffic-class 3", "switch-priority 3 traffic-class 0"),
    nvue("PFC of another priority", "pfc default-global switch-priority 3", "pfc default-global switch-priority 5"),
    nvue("PFC one way", "default-global rx enable", "default-global rx disable", at=EVERY),
    nvue("headroom for no cable", r"cable-length \d+", "cable-length 0", at=EVERY),
    nvue(
        "link pause",
        r"\Z",
        "nv set qos link-pause default-global rx enable\nnv set qos link-pause default-global tx enable\n",
        at=EVERY,
    ),
    nvue("profile that does not exist", r"\Z", "nv set interface swp1 qos pfc profile NONE\n"),
    nvue("shares over 100 %", "0 bw-percent 40", "0 bw-percent 60", at=EVERY),
    nvue("pools over 100 %", "default-lossy memory-percent 10", "default-lossy memory-percent 20", at=EVERY),
    nvue("no memory for lossless traffic", "roce-lossless memory-percent 90", "roce-lossless memory-percent 9", at=EVERY),
    nvue("watchdog off on a port", r"nv set interface swp1 qos pfc-watchdog.*\n"),
    nvue("MTU 1500", "swp33 link mtu 9216", "swp33 link mtu 1500"),
    nvue("MTU of one end", "swp33 link mtu 9216", "swp33 link mtu 9000"),
    nvue("speed of one end", "swp33 link speed 400G", "swp33 link speed 200G"),
    nvue("FEC off", r"\Z", "nv set interface swp33 link fec off\n"),
    nvue("port shut", "swp33 link state up", "swp33 link state down"),
    nvue("breakout without these ports", r"\Z", "nv set interface swp1 link breakout 2x\nnv set interface swp1s2 type swp\n"),
    nvue("address of another port", r"10\.10\.0\.0/31$", "10.10.0.2/31"),
    nvue("AS number of another leaf", "autonomous-system 4200000001", "autonomous-system 4200000002"),
    nvue("router ID of another leaf", r"router-id \S+", "router-id 10.255.128.2"),
    nvue("neighbor off", r"\Z", "nv set vrf default router bgp neighbor swp33 shutdown enabled\n"),
    nvue("neighbor missing", r"nv set vrf default router bgp neighbor swp33 .*\n(.*neighbor swp33 .*\n)?"),
    nvue("peer group that does not exist", "neighbor swp33 peer-group FABRIC", "neighbor swp33 peer-group fabric"),
    nvue("remote AS internal", "remote-as external", "remote-as internal"),
    nvue("BFD off, hold 180 s", r".*FABRIC bfd profile FABRIC\n([\s\S]*timers hold) 9", r"\1 180", at=EVERY),
    nvue("BFD's daemon off, hold 180 s", r"bfd state enabled([\s\S]*timers hold) 9", r"bfd state disabled\1 180", at=EVERY),
    nvue("BFD profile that does not exist", "bfd profile FABRIC$", "bfd profile fabric"),
    nvue("BFD of 10 ms", r"(min-[rt]x-interval) 300", r"\1 10", at=EVERY),
    nvue("one path", "multipaths ebgp 128", "multipaths ebgp 1"),
    nvue("AS paths not relaxed", "aspath-ignore enabled", "aspath-ignore disabled"),
    nvue(
        "adaptive routing off on an uplink",
        "swp33 router adaptive-routing state enabled",
        "swp33 router adaptive-routing state disabled",
    ),
    nvue("adaptive routing off", "nv set router adaptive-routing state enabled", "nv set router adaptive-routing state disabled"),
    nvue(
        "route map that denies all",
        r"\Z",
        "nv set vrf default router bgp peer-group FABRIC address-family ipv4-unicast policy outbound route-map NO\n"
        "nv set router policy route-map NO rule 10 action deny\n",
    ),
    nvue(
        "networks not announced",
        r"nv set .*aggregate-route 10\.10\..*\n([\s\S]*?)(nv set .* network 10\.10\..*\n)+",
        r"\1",
    ),
    nvue("hash without the source port", r"\Z", "nv set system forwarding ecmp-hash source-port disabled\n", at=EVERY),
    nvue("host name of another switch", "hostname rails-leaf-1", "hostname rails-leaf-2"),
    nvue("one network in the summary only", r"^nv set .* network 10\.10\.0\.2/31\n"),
    nvue("no AS number", r"^nv set router bgp autonomous-system.*\n"),
    nvue("numbered without an address", "neighbor swp33 type unnumbered", "neighbor swp33 type numbered"),
    nvue("paths that are never used", r"\Z", "nv set router bgp graceful-shutdown enabled\n"),
    nvue("static route that drops", r"\Z", "nv set vrf default router static 10.10.0.64/26 via blackhole type blackhole\n"),
    nvue("BGP off", r"vrf default router bgp state enabled", "vrf default router bgp state disabled"),
    nvue("no routes of IPv4", r"address-family ipv4-unicast state enabled", "address-family ipv4-unicast state disabled"),
    nvue("uplink in a bridge", r"\Z", "nv set interface swp33 bridge domain br_default access 10\n"),
    nvue("uplinks in a bond", r"\Z", "nv set interface bond1 bond member swp33-34\n"),
    nvue("port in another VRF", r"\Z", "nv set interface swp1 ipv4 vrf RED\n"),
    nvue("cage that is split", r"\Z", "nv set interface swp1 link breakout 4x\n"),
    nvue("policy required", r"\Z", "nv set vrf default router bgp ebgp-requires-policy enabled\n"),
    nvue(
        "ACL that drops RoCE",
        r"\Z",
        "nv set acl X type ipv4\nnv set acl X rule 10 match ip protocol udp\nnv set acl X rule 10 match ip udp dest-port 4791\n"
        "nv set acl X rule 10 action deny\nnv set interface swp1 acl X inbound\n",
    ),
    nvue(
        "prefix list that denies all",
        r"\Z",
        "nv set router policy prefix-list P rule 10 action deny\nnv set router policy prefix-list P rule 10 match any\n"
        "nv set vrf default router bgp peer-group FABRIC address-family ipv4-unicast policy outbound prefix-list P\n",
    ),
    nvue("weight of one uplink", r"\Z", "nv set vrf default router bgp neighbor swp33 address-family ipv4-unicast weight 100\n"),
    nvue("cable of another spine", r"rails-spine-1 swp1", "rails-spine-2 swp1"),
)

EOS = (
    eos("DSCP in another class", "qos map dscp 26 to traffic-class 3", "qos map dscp 26 to traffic-class 4"),
    eos("class in another queue", r"\nqos profile", "\nqos map traffic-class 3 to tx-queue 5\n!\nqos profile"),
    eos("PFC off", r"^   priority-flow-control on\n", "", at=EVERY),
    eos("PFC of another priority", "priority 3 no-drop", "priority 4 no-drop", at=EVERY),
    eos("PFC for notifications too", r"(priority 3 no-drop)", r"\1\n   priority-flow-control priority 6 no-drop", at=EVERY),
    eos("kmin above kmax", "minimum-threshold 1048576", "minimum-threshold 4194304", at=EVERY),
    eos(
        "thresholds in the wrong unit",
        r"1048576 bytes maximum-threshold 2097152 bytes",
        "1024 bytes maximum-threshold 2048 bytes",
        at=EVERY,
    ),
    eos("probability 0", "max-mark-probability 5", "max-mark-probability 0", at=EVERY),
    eos("ECN on the wrong queue", "uc-tx-queue 3", "uc-tx-queue 4", at=EVERY),
    eos("ECN missing", r"^      random-detect.*\n"),
    eos("shares over 100 %", "bandwidth percent 40", "bandwidth percent 60", at=EVERY),
    eos("trust of the VLAN tag", "qos trust dscp", "qos trust cos", at=EVERY),
    eos("profile that does not exist", "service-profile ROCE", "service-profile ROCEV2"),
    eos("profile missing on a port", r"^   service-profile ROCE\n"),
    eos("global pause", r"^   mtu 9214", "   flowcontrol receive on\n   mtu 9214"),
    eos("watchdog off", r"^priority-flow-control pause watchdog.*\n", "", at=EVERY),
    eos("watchdog polls too slowly", "polling-interval 0.200", "polling-interval 2", at=EVERY),
    eos("watchdog only notifies", "action drop", "action notify-only", at=EVERY),
    eos("MTU 1500", r"(Ethernet33/1\n(?:.*\n){2}   mtu) 9214", r"\1 1500"),
    eos("MTU missing", r"^   mtu 9214\n"),
    eos("speed of one end", r"(Ethernet33/1\n(?:.*\n){3}   speed) 400g-4", r"\1 200g-4"),
    eos("FEC off", r"^   error-correction encoding reed-solomon", "   no error-correction encoding"),
    eos("port shut", r"(interface Ethernet33/1\n.*\n)   no shutdown", r"\1   shutdown"),
    eos("address of another port", r"ip address 10\.10\.0\.0/31", "ip address 10.10.0.2/31"),
    eos("IPv6 off on an uplink", r"^   ipv6 enable\n"),
    eos("AS number of another leaf", "router bgp 4200000001", "router bgp 4200000002"),
    eos("router ID of another leaf", r"router-id \S+", "router-id 10.255.128.2"),
    eos("unused remote AS", r"Ethernet33/1 (.*) remote-as \d+", r"Ethernet33/1 \1 remote-as 65000"),
    eos(
        "BFD off, hold 180 s",
        r"^   neighbor FABRIC bfd\n   neighbor FABRIC bfd interval.*\n   neighbor FABRIC timers 3 9",
        "   neighbor FABRIC timers 60 180",
        at=EVERY,
    ),
    eos("paths at their default", r"^   maximum-paths.*\n", "", at=EVERY),
    eos(
        "AS paths not relaxed",
        r"^   maximum-paths 128 ecmp 128",
        "   no bgp bestpath as-path multipath-relax\n   maximum-paths 128 ecmp 128",
        at=EVERY,
    ),
    eos("not active for IPv4", r"^      neighbor FABRIC activate\n"),
    eos("group shut", "neighbor FABRIC bfd$", "neighbor FABRIC shutdown"),
    eos("neighbor missing", r"^   neighbor interface Ethernet33/1.*\n"),
    eos(
        "route map that denies all",
        r"^   neighbor FABRIC bfd$",
        "   neighbor FABRIC bfd\n   neighbor FABRIC route-map NO out\n!\nroute-map NO deny 10\n!\nrouter bgp 4200000001",
    ),
    eos("networks not announced", r"(^ +(network|aggregate-address) 10\.10\..*\n)([\s\S]*?)((^ +network 10\.10\..*\n)+)", r"\3"),
    eos("routing off", r"^ip routing.*\n"),
    eos(
        "hash without ports",
        r"\nrouter bgp",
        "\nip load-sharing trident fields ip source-ip destination-ip protocol\n!\nrouter bgp",
        at=EVERY,
    ),
    eos("dynamic load balancing off", r"^ip hardware fib load-balance.*\n"),
    eos("BFD of 10 ms", "interval 300 min-rx 300", "interval 10 min-rx 10", at=EVERY),
    eos("host name of another switch", "hostname rails-leaf-1", "hostname rails-leaf-2"),
    eos("one network in the summary only", r"^      network 10\.10\.0\.2/31\n"),
    eos("static route that drops", "^ip routing", "ip route 10.10.0.64/26 Null0\nip routing"),
    eos("loopback that is not there", r"^interface Loopback0\n   ip address .*\n"),
    eos("no IPv6 next hops", r"^      neighbor FABRIC next-hop.*\n"),
    eos("no router advertisements", r"^ipv6 unicast-routing\n"),
    eos("older model of routing", "model multi-agent", "model ribd"),
    eos("password at one end", "neighbor FABRIC peer group", r"neighbor FABRIC peer group\n   neighbor FABRIC password 7 abc"),
    eos(
        "prefix list of loopbacks alone",
        r"^router bgp([\s\S]*neighbor FABRIC activate\n)",
        r"ip prefix-list P\n   seq 10 permit 10.255.0.0/16 le 32\n!\nrouter bgp\1      neighbor FABRIC prefix-list P out\n",
    ),
    eos("cable of another spine", r"rails-spine-1 Ethernet1/1", "rails-spine-2 Ethernet1/1"),
)

# Additional settings of sites, or other notations.
HARMLESS = (
    sonic("time", ("NTP_SERVER/10.9.9.9", {"iburst": "on"})),
    sonic("accounts", ("TACPLUS_SERVER/10.9.9.8", {"priority": "1"}), ("AAA/authentication", {"login": "tacacs+,local"})),
    sonic("SNMP", ("SNMP/LOCATION", {"Location": "dc1"}), ("SNMP_COMMUNITY/public", {"TYPE": "RO"})),
    sonic("logs", ("SYSLOG_SERVER/10.9.9.7", {"port": "514"}), ("LOGGER/orchagent", {"LOGLEVEL": "NOTICE"})),
    sonic("description", ("PORT/Ethernet0/description", "rack 3, h100-1"), ("PORT/Ethernet16/description", "spare")),
    sonic("VLAN of management", ("VLAN/Vlan4000", {"vlanid": "4000"}), ("VLAN_INTERFACE/Vlan4000|192.168.4.1//24", {})),
    sonic("IPv6 loopback", ("LOOPBACK_INTERFACE/Loopback0|fc00::1//128", {})),
    sonic(
        "who may log in",
        ("ACL_TABLE/SSH", {"type": "CTRLPLANE", "services": ["SSH"]}),
        ("ACL_RULE/SSH|1", {"PACKET_ACTION": "DROP"}),
    ),
    sonic(
        "time zone", ("DEVICE_METADATA/localhost/timezone", "Europe/Berlin"), ("VERSIONS/DATABASE/VERSION", "version_202511_01")
    ),
    frr("comment", r"\A", "! checked by ops\n"),
    frr("log to a file", "log syslog informational", "log file /var/log/frr/frr.log\nlog timestamp precision 3"),
    frr("terminal", r"\Z", "line vty\n exec-timeout 10 0\nexit\npassword zebra\n"),
    frr(
        "lists that nobody uses", r"\Z", "ip prefix-list UNUSED seq 5 permit 10.0.0.0/8 le 32\nroute-map UNUSED permit 10\nexit\n"
    ),
    frr("order", r"( neighbor FABRIC advertisement-interval 0\n)( neighbor FABRIC timers 3 9\n)", r"\2\1"),
    frr("description of a port", "description rails-spine-1 Ethernet0", "description to spine 1 (rack 9)"),
    host("comment", "^set -euo pipefail", "set -euo pipefail\n# checked by ops"),
    host("rings", r"^failed=0$", "failed=0\nethtool -G ens1f0np0 rx 8192 tx 8192"),
    host("buffers of sockets", r"^failed=0$", "failed=0\nsysctl -w net.core.rmem_max=268435456"),
    host("address of management", r"^failed=0$", "failed=0\nip address replace 10.0.0.11/24 dev eno1"),
    unit("limit of a unit", "^Type=oneshot", "Type=oneshot\nTimeoutStartSec=120"),
    nccl("log of everything", "NCCL_DEBUG=WARN", "NCCL_DEBUG=INFO"),
    nccl("more queue pairs", "QPS_PER_CONNECTION=4", "QPS_PER_CONNECTION=8"),
    nvue("time", r"\Z", "nv set system ntp server 10.9.9.9\nnv set system timezone Europe/Berlin\n"),
    nvue("accounts", r"\Z", "nv set system aaa tacacs server 1 host 10.9.9.8\n"),
    nvue("logs", r"\Z", "nv set service syslog mgmt server 10.9.9.7 port 514\n"),
    nvue("description", "description 'h100-1 mlx5_0'", "description 'rack 3, h100-1'"),
    nvue("address of management", r"\Z", "nv set interface eth0 ipv4 address 10.0.0.9/24\n"),
    nvue("VLAN of management", r"\Z", "nv set bridge domain br_default vlan 4000\n"),
    nvue("unused port", r"\Z", "nv set interface swp5 type swp\nnv set interface swp5 link state down\n"),
    eos("SNMP", "^ip routing", "snmp-server location dc1\n!\nip routing"),
    eos("accounts", "^ip routing", "tacacs-server host 10.9.9.8 vrf MGMT key 7 0110\n!\nip routing"),
    eos("banner", "^ip routing", "banner login\nauthorised only\nEOF\n!\nip routing"),
    eos(
        "who may log in",
        "^ip routing",
        "ip access-list SSH\n   10 permit tcp any any eq ssh\n   20 deny ip any any\n!\nip routing",
    ),
    eos("VLAN of management", "^ip routing", "vlan 4000\n!\ninterface Vlan4000\n   ip address 192.168.4.1/24\n!\nip routing"),
    eos("counters", r"(interface Ethernet33/1\n)", r"\1   load-interval 5\n"),
    opensm("logs", "opensm.conf", "qos FALSE", "qos FALSE\nlog_file /var/log/opensm.log\nsm_priority 14"),
)

MUTATIONS = (*PODS, *OPENSM, *SONIC, *FRR, *HOSTS, *JOBS, *NVUE, *EOS)
