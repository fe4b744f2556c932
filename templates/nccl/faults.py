"""Finds what harms a training run in a job's NCCL variables alone: unknown names, values that NCCL does not take, and parts turned off.

Values: NVIDIA/nccl docs/userguide/source/env.rst and src/ of v2.30.7.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from msgspec import Struct

from headway.jobspec.catalog.nccl_values import BOUNDS, CHOICES, SUBSYSTEMS, WORDS, number_of, unknown_choice
from headway.jobspec.catalog.table import rows
from headway.jobspec.suggest import nearest
from headway.templates.reading import Fault, Setting

_LIST = re.compile(r"[\^=]{0,2}[A-Za-z0-9_.:\-]+(,[\^=]{0,2}[A-Za-z0-9_.:\-]+)*,?")
# Networks of NCCL and of the plugins of NVIDIA, AWS, Google and Microsoft, up to a version at the end.
_NETWORKS = re.compile(
    r"(ib|socket|ibext(_v\d+)?|sharp|aws libfabric|libfabric|fastrak|gib|gpudirecttcpx(_v\d+)?|ucx|ucx-ib|spcx|nccl rdma plugin)(_v\d+)?",
    re.IGNORECASE,
)
# Folders of the images of Azure, Oracle and Google, whose topology files are of their machines.
_PROVIDERS = ("/opt/microsoft/", "/opt/oci", "/opt/oracle", "/opt/google", "/usr/local/gib", "/opt/amazon", "/opt/aws")


class _Harm(Struct, frozen=True):
    """Values of a variable that cost a job something, by a predicate, and what."""

    is_meant: Callable[[str], bool]
    effect: str
    hint: str
    doubtful: bool = False


def _is(*values: str) -> Callable[[str], bool]:
    return lambda value: value.strip().upper() in values


def _below(bound: int) -> Callable[[str], bool]:
    return lambda value: value.strip().isdecimal() and int(value) < bound


def _above(bound: int) -> Callable[[str], bool]:
    return lambda value: value.strip().isdecimal() and int(value) > bound


_LEAVE = "leave it out"
_UNLESS = "leave it out, unless you are looking for a fault"
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_RDMA_OFF = "NCCL uses no RDMA adapter, and collectives between nodes run over TCP at a tenth of the speed"
_HARMS: Mapping[str, tuple[_Harm, ...]] = {
    "NCCL_IB_RETRY_CNT": (
        _Harm(_below(3), "one lost packet or a path that changes ends the job", "leave it out: the default is 7"),
    ),
    "NCCL_IB_TIMEOUT": (
        _Harm(_is("0"), "a retransmission never starts, and one lost packet hangs the job", "set 20"),
        _Harm(
            _below(14), "packets that wait in a congested queue are sent again, and the retries run out: the job ends", "set 20"
        ),
        _Harm(_below(18), "a path that changes for a second exhausts the retries, and the job ends", "set 20", doubtful=True),
        _Harm(_above(22), "one lost packet idles the job for half a minute or more before it is sent again", "set 20"),
    ),
    "NCCL_IB_GID_INDEX": (
        _Harm(
            _is("0", "1", "2"),
            "the first GIDs are link-local or RoCE v1, which no router forwards: connections between nodes fail",
            "leave it out, and set NCCL_IB_ROCE_VERSION_NUM=2; NCCL finds the index by it",
            doubtful=True,
        ),
        _Harm(
            lambda value: value.strip() not in {"", "-1", "0", "1", "2"},
            "the index differs from host to host with the order of addresses; where it is another GID, connections fail",
            "leave it out, and set NCCL_IB_ADDR_RANGE; NCCL 2.21 and later finds the index",
            doubtful=True,
        ),
    ),
    "NCCL_IB_ROCE_VERSION_NUM": (
        _Harm(_is("1"), "RoCE v1 has no IP header: no router forwards it, and no switch sees its DSCP", "set 2"),
    ),
    "NCCL_IB_PCI_RELAXED_ORDERING": (
        _Harm(
            _is("0"),
            "in virtual machines and behind a busy root complex, adapters reach half of their speed",
            _LEAVE,
            doubtful=True,
        ),
    ),
    "NCCL_IB_QPS_PER_CONNECTION": (
        _Harm(
            _above(16),
            "each adapter holds so many queue pairs that its cache misses, and small messages slow down",
            "set 4",
            doubtful=True,
        ),
    ),
    "NCCL_IB_FIFO_TC": (
        _Harm(
            _is("0"),
            "the messages by which receivers grant buffers have DSCP 0: they wait behind, and are dropped with, ordinary traffic",
            _LEAVE,
        ),
    ),
    "NCCL_IB_TC": (
        _Harm(
            _is("0"),
            "RDMA packets have DSCP 0: switches treat them as ordinary traffic, and drop them",
            "set DSCP << 2 of the lossless class",
        ),
    ),
    "NCCL_IB_MERGE_NICS": (
        _Harm(
            _is("0"),
            "the ports of a dual-port adapter are two adapters, and the GPU next to them uses one of them",
            _LEAVE,
            doubtful=True,
        ),
    ),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (
        _Harm(_is("0"), "a rank whose collective fails waits without a limit, and the job hangs", _LEAVE, doubtful=True),
    ),
    "CUDA_LAUNCH_BLOCKING": (
        _Harm(
            _is("1"),
            "each kernel waits for the one before it, and no collective runs next to computation",
            _UNLESS,
            doubtful=True,
        ),
    ),
    "NCCL_MIN_NCHANNELS": (
        _Harm(_above(32), "so many blocks of a GPU copy data that computation waits for them", _LEAVE, doubtful=True),
    ),
    "NCCL_P2P_NET_CHUNKSIZE": (
        _Harm(_below(1 << 16), "messages are so small that adapters do not reach their speed", _LEAVE, doubtful=True),
    ),
    "NCCL_IB_ECE_ENABLE": (
        _Harm(_is("0"), "adapters do not agree on selective retransmission and congestion control", _LEAVE, doubtful=True),
    ),
    "NCCL_NET_GDR_READ": (
        _Harm(
            _is("0"), "data that a GPU sends goes through host memory", "leave it out: NCCL decides by the machine", doubtful=True
        ),
    ),
    "NCCL_LAUNCH_MODE": (
        _Harm(
            _is("GROUP"),
            "the GPUs of a process wait for each other before each collective",
            "leave it out, unless one process has several GPUs",
            doubtful=True,
        ),
    ),
    "NCCL_TOPO_FILE": (
        _Harm(
            lambda value: not value.startswith(_PROVIDERS),
            "NCCL takes the machine from this file and not from the node; where it is another machine's, or is missing, GPUs use "
            "adapters behind another root complex",
            "leave it out, unless it is of the provider of these virtual machines",
            doubtful=True,
        ),
    ),
    "NCCL_GRAPH_FILE": (
        _Harm(
            lambda value: True,
            "rings and trees are those of the file, whatever GPUs and adapters the job has",
            _LEAVE,
            doubtful=True,
        ),
    ),
    "NCCL_NET_SHARED_BUFFERS": (
        _Harm(
            _is("0"), "each connection has its buffers, and large jobs run out of GPU memory or of registrations", _LEAVE, True
        ),
    ),
    "NCCL_NTHREADS": (_Harm(_below(256), "few threads of a GPU copy data, and its adapters idle", _LEAVE, doubtful=True),),
    "NCCL_NCHANNELS_PER_NET_PEER": (
        _Harm(_above(32), "each pair of ranks has so many connections that adapters run out of queue pairs", _LEAVE, True),
    ),
    "NCCL_P2P_DISABLE": (
        _Harm(_is("1"), "the GPUs of a node exchange data through host memory, not over NVLink", _UNLESS, doubtful=True),
    ),
    "NCCL_P2P_LEVEL": (
        _Harm(_is("LOC", "0"), "the GPUs of a node exchange data through host memory, not over NVLink", _UNLESS, doubtful=True),
    ),
    "NCCL_SHM_DISABLE": (
        _Harm(_is("1"), "ranks of a node without a direct path use the network for each other's data", _UNLESS, doubtful=True),
    ),
    "NCCL_NVLS_ENABLE": (
        _Harm(_is("0"), "NVSwitches do not reduce data, and collectives within a node take longer", _UNLESS, doubtful=True),
    ),
    "NCCL_PXN_DISABLE": (
        _Harm(
            _is("1"),
            "messages to another rail cross the spines, and not NVLink to the GPU on that rail",
            _UNLESS,
            doubtful=True,
        ),
    ),
    "NCCL_IB_RETURN_ASYNC_EVENTS": (
        _Harm(
            _is("0"),
            "NCCL does not end a job whose adapter fails, and its ranks hang until a watchdog does",
            _LEAVE,
            doubtful=True,
        ),
    ),
    "NCCL_NET_GDR_LEVEL": (
        _Harm(_is("LOC", "0"), "adapters read and write host memory, not that of GPUs (GPUDirect RDMA is off)", _UNLESS),
    ),
    "NCCL_CROSS_NIC": (
        _Harm(
            _is("1"),
            "rings change rails, and their packets cross the spines that a rail-optimized fabric spares them",
            "set 0 on rails, or leave it out",
            doubtful=True,
        ),
    ),
    "NCCL_DEBUG": (
        _Harm(
            _is("TRACE"),
            "every operation of every rank writes lines, and the log's file system slows the job",
            "set WARN or INFO",
            doubtful=True,
        ),
    ),
    "NCCL_BUFFSIZE": (
        _Harm(
            _below(1 << 20), "buffers are smaller than what an adapter has in flight, and its link idles", _LEAVE, doubtful=True
        ),
    ),
    "NCCL_MAX_CTAS": (
        _Harm(_below(4), "few blocks of a GPU copy data, and neither NVLink nor the adapters are busy", _LEAVE, doubtful=True),
    ),
    "NCCL_NET_MERGE_LEVEL": (
        _Harm(
            _is("PHB", "NODE", "SYS"),
            "adapters of several GPUs are joined to one, and its traffic takes rails that are far from a GPU",
            "leave it out: only the ports of one adapter are joined then",
            doubtful=True,
        ),
    ),
    "NCCL_MAX_NCHANNELS": (
        _Harm(_below(4), "few blocks of a GPU copy data, and neither NVLink nor the adapters are busy", _LEAVE, doubtful=True),
    ),
    "NCCL_DMABUF_ENABLE": (_Harm(_is("0"), "without nvidia-peermem loaded GPUDirect RDMA is off", _LEAVE, doubtful=True),),
}


@cache
def _variables() -> Mapping[str, list[str]]:
    return {kind: [f"NCCL_{name}" for name in names] for kind, names in rows("variables").items() if kind != "torch"}


@cache
def _known() -> tuple[str, ...]:
    return (*_variables()["integer"], *_variables()["string"])


def faults(settings: Mapping[str, Setting]) -> Iterator[Fault]:
    """Yield the faults of the variables; values that a shell inserts are unknown."""
    for name, setting in settings.items():
        if name.startswith("NCCL_") or name in _INTERFACES or name in _HARMS:
            yield from _of_name(name) if name.startswith("NCCL_") else ()
            if "$" not in setting.value and "`" not in setting.value and not setting.value.startswith("valueFrom"):
                yield from _of_value(name, setting.value.strip())
    yield from _together(settings)


def _of_name(name: str) -> Iterator[Fault]:
    if name in _known() or name.startswith(tuple(_variables()["others"])):
        return
    if name in _variables()["removed"]:
        message = "NCCL no longer reads this variable; the job runs as if it were not set"
        yield Fault("HW860", name, f"`{name}`: {message}", "remove it", doubtful=True)
        return
    likely = nearest(name, _known(), 0.9)
    if likely is not None:
        message = f"NCCL reads no `{name}`, and ignores it without a word; the job runs with the default of `{likely}`"
        yield Fault("HW860", name, message, f"did you mean `{likely}`?")
    else:
        message = f"NCCL 2.30 reads no `{name}`; unless a plugin does, the job runs as if it were not set"
        yield Fault("HW860", name, message, "check the name in NCCL's documentation", doubtful=True)


def _of_value(name: str, value: str) -> Iterator[Fault]:
    number = number_of(value)
    if name in _variables()["integer"] and value and number is None and name not in WORDS:
        message = f"`{name}` is `{value}`, which is not a number; NCCL ignores it and uses its default"
        yield Fault("HW861", name, message, "set a number")
        return
    if name in BOUNDS and number is not None:
        lowest, highest = BOUNDS[name]
        if not lowest <= number <= highest:
            message = (
                f"`{name}` is {value}, and {lowest} to {highest} are possible; connections fail, or use other bits than are meant"
            )
            yield Fault("HW861", name, message, f"set {lowest} to {highest}")
            return
    words, wanted = WORDS.get(name, (frozenset[str](), ""))
    if words and value and value.upper() not in words:
        message = f"`{name}` is `{value}`, which NCCL does not know; it uses its default"
        yield Fault("HW861", name, message, f"set {wanted}")
    if name == "NCCL_IB_DISABLE" and value == "1":
        yield Fault("HW862", name, f"`{name}` is 1: {_RDMA_OFF}", _UNLESS, doubtful=True)
    if name in {"NCCL_ALGO", "NCCL_PROTO"} and value:
        yield from _chosen(name, value)
    if name == "NCCL_DEBUG_SUBSYS":
        yield from _subsystems(name, value)
    for harm in _HARMS.get(name, ()):
        if value and harm.is_meant(value):
            yield _harmful(name, value, harm)
            break
    yield from _of_text(name, value)


def _of_text(name: str, value: str) -> Iterator[Fault]:
    """Find names of interfaces, networks and adapters that are none."""
    if name in _INTERFACES:
        yield from _interface(name, value)
    if name == "NCCL_NET" and value and not _NETWORKS.fullmatch(value):
        message = (
            f"`{name}` is `{value}`, which neither NCCL nor a plugin that headway knows offers; NCCL ends if no plugin has it"
        )
        yield Fault("HW861", name, message, "set IB, Socket, or the name that the plugin documents", doubtful=True)
    if name == "NCCL_IB_HCA" and value and not _LIST.fullmatch(value):
        message = (
            f"`{name}` is `{value}`, which is not a list of adapters; NCCL finds none of them, and falls back to TCP or ends"
        )
        yield Fault("HW865", name, message, "set `=mlx5_0,mlx5_1`")
    ports = [each for each in value.split(",") if re.fullmatch(r"[\^=]*mlx5\w*:[2-9]", each)] if name == "NCCL_IB_HCA" else []
    if ports:
        message = f"`{name}` has {ports[0]}, and each port of mlx5 is an adapter with port 1; NCCL finds no such port, and the rail idles"
        yield Fault("HW865", name, message, "leave the number of the port out")
    if name == "NCCL_IB_ADDR_RANGE" and value and not re.fullmatch(r"[0-9a-fA-F.:]+/\d{1,3}", value):
        message = f"`{name}` is `{value}`, which is not a network; NCCL finds no GID in it, and no connection is made"
        yield Fault("HW861", name, message, "set a network: 10.10.0.0/16")


def _harmful(name: str, value: str, harm: _Harm) -> Fault:
    message = f"`{name}` is {value}: {harm.effect}"
    if name in {"NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"}:
        return Fault("HW864", name, message, harm.hint, harm.doubtful)
    if name in {"NCCL_IB_GID_INDEX", "NCCL_IB_ROCE_VERSION_NUM"}:
        return Fault("HW863", name, message, harm.hint, harm.doubtful)
    if name in {
        "NCCL_CROSS_NIC",
        "NCCL_IB_FIFO_TC",
        "NCCL_IB_TC",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_DEBUG",
        "NCCL_BUFFSIZE",
        "NCCL_MAX_NCHANNELS",
        "NCCL_LAUNCH_MODE",
        "NCCL_MIN_NCHANNELS",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_IB_ECE_ENABLE",
        "CUDA_LAUNCH_BLOCKING",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_TOPO_FILE",
        "NCCL_GRAPH_FILE",
        "NCCL_NET_SHARED_BUFFERS",
        "NCCL_NTHREADS",
        "NCCL_NCHANNELS_PER_NET_PEER",
    }:
        return Fault("HW867", name, message, harm.hint, harm.doubtful)
    return Fault("HW862", name, message, harm.hint, harm.doubtful)


def _subsystems(name: str, value: str) -> Iterator[Fault]:
    unknown = next(
        (word for word in value.lstrip("^").split(",") if word.strip() and word.strip().upper() not in SUBSYSTEMS), None
    )
    if unknown is not None:
        message = (
            f"`{name}` has `{unknown}`, which is not a subsystem of NCCL; the log may not have the lines that explain a failure"
        )
        yield Fault("HW861", name, message, f"use {', '.join(SUBSYSTEMS)}", doubtful=True)


def _chosen(name: str, value: str) -> Iterator[Fault]:
    unknown = unknown_choice(name, value)
    words = [word.strip().lstrip("^").upper() for part in value.split(";") for word in part.rpartition(":")[2].split(",")]
    if name == "NCCL_PROTO" and unknown is None and "SIMPLE" not in words and "^" not in value:
        message = (
            f"`{name}` is {value}: large messages do without the protocol that fills a link, or whose order the adapter must keep"
        )
        yield Fault("HW862", name, message, _LEAVE, doubtful=True)
    if unknown is not None:
        message = f"`{name}` has `{unknown.upper()}`, which NCCL does not know; the first collective ends with an error"
        yield Fault("HW861", name, message, f"use {', '.join(CHOICES[name])}")


def _interface(name: str, value: str) -> Iterator[Fault]:
    if value.startswith("^"):
        return
    names = value.lstrip("=").split(",")
    if any(each in {"lo", "lo0"} or each.startswith(("docker", "veth", "virbr", "br-")) for each in names if each):
        message = f"`{name}` is {value}: other nodes cannot reach this interface, and the job hangs when it starts"
        yield Fault("HW866", name, message, "set the management interface of all nodes: `=eth0`")
    elif any(each.startswith(("mlx5_", "bnxt_re", "ionic_", "rdma", "ib_")) for each in names):
        message = f"`{name}` is {value}: these are RDMA adapters, not network interfaces; NCCL finds no socket interface and ends"
        yield Fault("HW866", name, message, "set the name that `ip link` shows: `=eth0`")


def _together(settings: Mapping[str, Setting]) -> Iterator[Fault]:
    """Find variables that undo each other."""
    values = {name: setting.value.strip() for name, setting in settings.items()}
    family, network = values.get("NCCL_IB_ADDR_FAMILY", "").upper(), values.get("NCCL_IB_ADDR_RANGE", "")
    if family and network and (family == "AF_INET6") != (":" in network):
        message = (
            f"`NCCL_IB_ADDR_FAMILY` is {family}, and {network} is of the other family; NCCL finds no GID, and connections fail"
        )
        yield Fault("HW863", "NCCL_IB_ADDR_FAMILY", message, "set the family of the adapters' addresses")
    if values.get("NCCL_NET", "").lower() == "socket" and values.get("NCCL_IB_HCA"):
        message = f"`NCCL_NET` is Socket beside `NCCL_IB_HCA`: {_RDMA_OFF}"
        yield Fault("HW862", "NCCL_NET", message, "leave out the one that is not meant")
    yield from _of_transport(values)
    yield from _of_roce(values)
    sockets = {name: values[name].lstrip("=") for name in _INTERFACES if values.get(name)}
    if len(set(sockets.values())) > 1 and not any(value.startswith("^") or "$" in value for value in sockets.values()):
        ours, theirs = (sockets[name] for name in _INTERFACES)
        if theirs not in ours.split(",") and not theirs.startswith(ours):
            message = (
                f"NCCL's sockets take {ours}, and gloo's {theirs}; where one of them does not reach all nodes, the job hangs when it "
                "starts"
            )
            yield Fault("HW866", "NCCL_SOCKET_IFNAME", message, "set one management interface for both", doubtful=True)
    rounds = number_of(values.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", ""))
    timeout = number_of(values.get("NCCL_IB_TIMEOUT", "20"))
    retries = number_of(values.get("NCCL_IB_RETRY_CNT", "7"))
    if rounds is not None and timeout is not None and retries is not None and 0 < timeout < 32:
        waits = 4.096e-6 * 2**timeout * retries
        if 0 < rounds < waits:
            message = (
                f"the watchdog of torch ends a rank after {rounds} s, but NCCL sends lost packets again for {waits:.0f} s; "
                "a job ends that the network would have carried on"
            )
            yield Fault("HW840", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", message, f"set {int(waits) + 60} or more")


def _of_transport(values: Mapping[str, str]) -> Iterator[Fault]:
    """Find variables of a plugin next to `NCCL_NET=IB`, which is NCCL's own transport."""
    if values.get("NCCL_NET", "").upper() != "IB":
        return
    plugin = values.get("NCCL_NET_PLUGIN", "")
    if plugin and plugin.lower() != "none":
        message = f"`NCCL_NET` is IB, which is NCCL's own transport, so that the plugin `{plugin}` carries nothing"
        yield Fault("HW862", "NCCL_NET_PLUGIN", message, "leave out the one that is not meant", doubtful=True)
    if values.get("FI_PROVIDER"):
        message = (
            f"`FI_PROVIDER` is {values['FI_PROVIDER']}, which libfabric reads, and `NCCL_NET` is IB, which does without it; one of "
            "them is of another cluster"
        )
        yield Fault("HW862", "FI_PROVIDER", message, "leave out the one that is not meant", doubtful=True)


def _of_roce(values: Mapping[str, str]) -> Iterator[Fault]:
    """Find what InfiniBand has and RoCE does not, in an environment whose GIDs are IP addresses."""
    if not values.keys() & {"NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ADDR_FAMILY"}:
        return
    if (number_of(values.get("NCCL_IB_SL", "0")) or 0) > 0 and "NCCL_IB_TC" in values:
        message = (
            f"`NCCL_IB_SL` is {values['NCCL_IB_SL']} on RoCE, where adapters take it for the 802.1p priority; packets may leave by "
            "another queue than their DSCP has"
        )
        yield Fault("HW867", "NCCL_IB_SL", message, "leave it out: NCCL_IB_TC has the class", doubtful=True)
    if number_of(values.get("NCCL_IB_PKEY", "0")):
        message = (
            f"`NCCL_IB_PKEY` is {values['NCCL_IB_PKEY']}, and RoCE has one partition, at index 0; adapters refuse the queue pair, and "
            "connections fail"
        )
        yield Fault("HW861", "NCCL_IB_PKEY", message, "leave it out")
    if values.get("NCCL_COLLNET_ENABLE") == "1":
        message = (
            "`NCCL_COLLNET_ENABLE` is 1 on RoCE: SHARP reduces in switches of InfiniBand alone; NCCL looks for a plugin in vain"
        )
        yield Fault("HW867", "NCCL_COLLNET_ENABLE", message, "leave it out", doubtful=True)
    if values.get("NCCL_SOCKET_FAMILY", "").upper() == "AF_INET6" and values.get("NCCL_IB_ADDR_FAMILY", "").upper() == "AF_INET":
        message = (
            "sockets take IPv6 and adapters IPv4; where the management interface has no IPv6 address, the job ends when it starts"
        )
        yield Fault("HW866", "NCCL_SOCKET_FAMILY", message, "leave it out, unless the management network has IPv6", doubtful=True)
