"""Vendors' defaults and published configurations have no error: a false one would cost a reader's trust in all others.

The texts follow the forms and numbers of the named sources; none is a copy.
"""

import json
from pathlib import Path

import pytest

from headway.cli.read_back import compare, harms
from headway.jobspec.problem import Problem
from headway.templates.cluster import recognized
from headway.templates.switches.sonic.headroom import asic_of, headroom

DATA = Path("/work/shared/data/sonic-hwsku")

# docs.nvidia.com cumulus-linux-515, RDMA over Converged Ethernet, and Border Gateway Protocol, "BGP Unnumbered".
CUMULUS = """nv set system hostname leaf01
nv set interface lo ip address 10.10.10.1/32
nv set interface swp1-4,swp51-52 link mtu 9216
nv set interface swp1 ip address 10.1.0.0/31
nv set interface swp2 ip address 10.1.0.2/31
nv set qos roce
nv set qos roce mode lossless
nv set router bgp autonomous-system 65101
nv set router bgp router-id 10.10.10.1
nv set vrf default router bgp peer-group underlay remote-as external
nv set vrf default router bgp neighbor swp51 peer-group underlay
nv set vrf default router bgp neighbor swp51 type unnumbered
nv set vrf default router bgp neighbor swp52 peer-group underlay
nv set vrf default router bgp neighbor swp52 type unnumbered
nv set vrf default router bgp address-family ipv4-unicast redistribute connected
nv set router adaptive-routing state enabled
nv set interface swp51-52 router adaptive-routing state enabled
"""

# The same guide, Quality of Service: ECN on three traffic classes, PFC by a profile, packet trimming without PFC.
CUMULUS_QOS = """nv set interface swp1-4 link state up
nv set qos pfc my_pfc_ports switch-priority 3
nv set qos pfc my_pfc_ports tx enable
nv set qos pfc my_pfc_ports rx enable
nv set qos mapping default-global trust both
nv set interface swp1-4 qos pfc profile my_pfc_ports
nv set qos congestion-control my-red-profile traffic-class 1,2,3 min-threshold 40000
nv set qos congestion-control my-red-profile traffic-class 1,2,3 max-threshold 200000
nv set interface swp1,swp2 qos congestion-control profile my-red-profile
"""
CUMULUS_TRIMMING = """nv set qos roce mode lossy-multi-tc
nv set system forwarding packet-trim remark dscp port-level
nv set interface swp1-16 qos remark profile lossy-multi-tc-host-group
nv set interface swp17-32 qos remark profile lossy-multi-tc-network-group
"""

# /etc/nvue.d/startup.yaml of the same guide's unnumbered example.
CUMULUS_YAML = """- header:
    model: VX
    nvue-api-version: nvue_v1
    rev-id: 1.0
    version: Cumulus Linux 5.13.0
- set:
    interface:
      lo: {ip: {address: {10.10.10.101/32: {}}}, type: loopback}
      swp1-2: {link: {state: {up: {}}}, type: swp}
    qos: {roce: {mode: lossless, state: enabled}}
    router: {bgp: {autonomous-system: 65199, router-id: 10.10.10.101, state: enabled}}
    vrf:
      default:
        router:
          bgp:
            address-family: {ipv4-unicast: {redistribute: {connected: {state: enabled}}, state: enabled}}
            neighbor:
              swp1: {peer-group: underlay, type: unnumbered}
              swp2: {peer-group: underlay, type: unnumbered}
            peer-group: {underlay: {remote-as: external}}
            state: enabled
"""


def arista(name: str, queue: str, thresholds: str) -> str:
    """EOS 4.36's RoCE guide: leaf and spine with different thresholds, and no watchdog; Arista's "AI Network Fabric Deployment Guide"."""
    return f"""! device: {name} (DCS-7060X6-64PE, EOS-4.36.0F)
!
hostname {name}
!
qos map dscp 26 to traffic-class 3
qos map dscp 48 to traffic-class 6
!
qos profile ROCE
   priority-flow-control on
   priority-flow-control priority 3 no-drop
   !
   {queue} 1
      no priority
      bandwidth percent 5
   !
   {queue} 3
      no priority
      bandwidth percent 95
      random-detect ecn {thresholds} max-mark-probability 100 weight 0
   !
   {queue} 6
      priority strict
!
interface Ethernet1
   no switchport
   mtu 9214
   qos trust dscp
   service-profile ROCE
   {queue} 3
      random-detect ecn count
!
ip routing
!
end
"""


ARISTA = {
    "leaf": arista("Leaf-1", "uc-tx-queue", "minimum-threshold 256 kbytes maximum-threshold 512 kbytes"),
    "spine": arista("Spine-1", "tx-queue", "minimum-threshold 512 kbytes maximum-threshold 768 kbytes"),
    "segments": arista("Leaf-2", "uc-tx-queue", "minimum-threshold 2000 segments maximum-threshold 10000 segments"),
    # Microsoft's and others' storage ports: PFC by the port itself.
    "storage": """hostname tor1
!
interface Ethernet9/1
   description azl-node-01
   mtu 9214
   dcbx mode ieee
   switchport trunk allowed vlan 711
   switchport mode trunk
   priority-flow-control on
   priority-flow-control priority 3 no-drop
   spanning-tree portfast edge
!
""",
    # aristanetworks/avd, eos_designs: an underlay with its default timers.
    "avd": """hostname dc1-leaf1a
!
interface Ethernet1
   description P2P_dc1-spine1_Ethernet1
   no shutdown
   mtu 1500
   no switchport
   ip address 10.255.255.1/31
!
interface Ethernet2
   description P2P_dc1-spine2_Ethernet1
   no shutdown
   mtu 1500
   no switchport
   ip address 10.255.255.3/31
!
interface Loopback0
   ip address 10.255.0.3/32
!
ip routing
!
route-map RM-CONN-2-BGP permit 10
   match ip address prefix-list PL-LOOPBACKS-EVPN-OVERLAY
!
router bgp 65101
   router-id 10.255.0.3
   no bgp default ipv4-unicast
   maximum-paths 4 ecmp 4
   neighbor IPv4-UNDERLAY-PEERS peer group
   neighbor IPv4-UNDERLAY-PEERS send-community
   neighbor 10.255.255.0 peer group IPv4-UNDERLAY-PEERS
   neighbor 10.255.255.0 remote-as 65100
   neighbor 10.255.255.2 peer group IPv4-UNDERLAY-PEERS
   neighbor 10.255.255.2 remote-as 65100
   redistribute connected route-map RM-CONN-2-BGP
   !
   address-family ipv4
      neighbor IPv4-UNDERLAY-PEERS activate
!
""",
}

# NVIDIA's and clouds' published job variables: Oracle's H100 script (GID 3, DSCP 10), AWS's EFA, Google's A3 Mega.
JOBS = {
    "oci": "export NCCL_IB_GID_INDEX=3 NCCL_IB_TC=41 NCCL_IB_SL=0 NCCL_IB_TIMEOUT=22\n"
    "export NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_HCA==mlx5_0,mlx5_1\n",
    "efa": "export FI_PROVIDER=efa NCCL_SOCKET_IFNAME=^docker,lo NCCL_DEBUG=INFO NCCL_PROTO=simple\n",
    "google": "NCCL_CROSS_NIC=0\nNCCL_ALGO=Ring,Tree\nNCCL_PROTO=Simple\nNCCL_MIN_NCHANNELS=4\nNCCL_FASTRAK_NUM_FLOWS=2\n"
    "NCCL_NET_GDR_LEVEL=PIX\n"
    "NCCL_TUNER_PLUGIN=libnccl-tuner.so\nNCCL_NVLS_ENABLE=0\nNCCL_P2P_PXN_LEVEL=0\nNCCL_BUFFSIZE=8388608\n",
    "dgx": "NCCL_IB_HCA=mlx5\nNCCL_DEBUG=INFO\nNCCL_IB_TIMEOUT=20\nNCCL_VERSION=2.27.3\n",
}

# NVIDIA's and Debian's ways of setting up a host: enterprise-support.nvidia.com "RoCE configuration"; a sysctl.d file of a multi-rail host.
HOSTS = {
    "mlnx": "mlnx_qos -i ens1 --trust dscp --pfc 0,0,0,1,0,0,0,0\ncma_roce_mode -d mlx5_0 -p 1 -m 2\ncma_roce_tos -d mlx5_0 -t 106\n"
    "echo 1 > /sys/class/net/ens1/ecn/roce_np/enable/3\necho 1 > /sys/class/net/ens1/ecn/roce_rp/enable/3\n",
    "sysctl": "net.ipv4.conf.all.rp_filter = 2\nnet.ipv4.conf.all.arp_ignore = 1\nnet.ipv4.conf.all.arp_announce = 2\n",
}


def problems(text: str, name: str = "file") -> list[Problem]:
    reader = recognized(text)
    assert reader is not None
    found = {name: reader(text)}
    return [*harms(found), *compare(found, None)]


PUBLISHED = {
    "cumulus": CUMULUS,
    "cumulus-qos": CUMULUS_QOS,
    "cumulus-trimming": CUMULUS_TRIMMING,
    "cumulus-yaml": CUMULUS_YAML,
    **ARISTA,
    **JOBS,
    **HOSTS,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configuration_has_no_error(name: str) -> None:
    assert [problem for problem in problems(PUBLISHED[name]) if problem.is_error] == []


def test_leaf_and_spine_of_one_guide_have_no_common_error() -> None:
    found = {}
    for name in ("leaf", "spine"):
        reader = recognized(ARISTA[name])
        assert reader is not None
        found[f"{name}.cfg"] = reader(ARISTA[name])
    assert [problem for problem in (*harms(found), *compare(found, None)) if problem.is_error] == []


@pytest.mark.parametrize("hwsku", ["ACS-SN5400", "ACS-SN5600", "Mellanox-SN5600-O128"])
def test_default_tables_of_sonic_have_no_error(hwsku: str) -> None:
    if not DATA.is_dir():
        pytest.skip(f"needs {DATA}")
    tables = json.loads((DATA / "expected-qos-buffers.json").read_text())[hwsku]
    platform = "x86_64-nvidia_sn5400-r0" if "5400" in hwsku else "x86_64-nvidia_sn5600-r0"
    tables["DEVICE_METADATA"] = {
        "localhost": {"hwsku": hwsku, "platform": platform, "buffer_model": "dynamic", "hostname": "sonic"}
    }
    # Rows of an unnamed port represent the template's other ports.
    for name, rows in tables.items():
        if isinstance(rows, dict):
            tables[name] = {key: row for key, row in rows.items() if key and not key.startswith("|")}
    assert [problem for problem in problems(json.dumps(tables, indent=1)) if problem.is_error] == []


def test_headroom_matches_the_published_tables_of_nvidia() -> None:
    """device/mellanox/x86_64-nvidia_sn5600-r0/ACS-SN5600/pg_profile_lookup.ini, with packets of 1024 and 64 bytes only: within 1 KiB."""
    asic = asic_of("x86_64-nvidia_sn5600-r0")
    assert asic is not None
    # Mb/s, metres, lanes -> size, xon, xoff
    published = {
        (100_000, 5, 4): (133_120, 19_456, 113_664),
        (200_000, 5, 4): (150_528, 19_456, 131_072),
        (400_000, 5, 4): (250_880, 19_456, 231_424),
        (400_000, 40, 4): (303_104, 19_456, 283_648),
        (800_000, 5, 8): (304_128, 38_912, 257_024),
    }
    for (mbps, metres, lanes), (size, xon, xoff) in published.items():
        found = headroom(asic, mbps, metres, lanes, 1024, 100)
        assert (found.xon, found.xoff) == (xon, xoff)
        assert abs(found.size - size) <= 1024


def test_headroom_is_smaller_with_fewer_small_packets() -> None:
    asic = asic_of("x86_64-nvidia_sn5400-r0")
    assert asic is not None
    half, worst = (headroom(asic, 400_000, 40, 4, 1024, percent).xoff for percent in (50, 100))
    assert (half, worst) == (117_760, 283_648)
    with pytest.raises(ValueError, match="no pause time"):
        headroom(asic, 300_000, 40, 4, 1024, 100)
