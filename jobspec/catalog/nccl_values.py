"""Lists the values that NCCL's variables take.

NVIDIA/nccl docs/userguide/source/env.rst and src/ of v2.30.7.
"""

import re
from collections.abc import Mapping

_LEVELS = frozenset({"LOC", "NVL", "PIX", "PXB", "P2C", "PXN", "PHB", "NODE", "SYS", *map(str, range(11))})
CHOICES: Mapping[str, tuple[str, ...]] = {
    "NCCL_ALGO": ("Ring", "Tree", "CollNet", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"),
    "NCCL_PROTO": ("LL", "LL128", "Simple"),
}
"""Algorithms and protocols of collectives, in any case."""
SUBSYSTEMS = (
    *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS", "BOOTSTRAP", "REG"),
    *("PROFILE", "RAS", "ALL"),
)
"""Subsystems in NCCL_DEBUG_SUBSYS, in any case (src/debug.cc)."""
_DEBUG = frozenset({"VERSION", "WARN", "INFO", "ABORT", "TRACE", "NONE"})

BOUNDS: Mapping[str, tuple[int, int]] = {
    "NCCL_IB_TIMEOUT": (0, 31),
    "NCCL_IB_RETRY_CNT": (0, 7),
    "NCCL_IB_TC": (-1, 255),
    "NCCL_IB_FIFO_TC": (-1, 255),
    "NCCL_IB_SL": (-1, 15),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128),
    "NCCL_CROSS_NIC": (0, 2),
    "NCCL_IB_ROCE_VERSION_NUM": (1, 2),
    "NCCL_IB_PCI_RELAXED_ORDERING": (0, 2),
    "NCCL_NET_GDR_READ": (-2, 1),
    "NCCL_IB_DISABLE": (0, 1),
    "NCCL_P2P_DISABLE": (0, 1),
    "NCCL_SHM_DISABLE": (0, 1),
    "NCCL_IB_SPLIT_DATA_ON_QPS": (0, 1),
}
"""Bounds of numbers that the code has (src/transport/net_ib, src/misc/param.cc), or that verbs has."""
WORDS: Mapping[str, tuple[frozenset[str], str]] = {
    "NCCL_NET_GDR_LEVEL": (_LEVELS, "LOC, PIX, PXB, PHB or SYS"),
    "NCCL_P2P_LEVEL": (_LEVELS, "LOC, NVL, PIX, PXB, PHB or SYS"),
    "NCCL_DEBUG": (_DEBUG, "VERSION, WARN, INFO or TRACE"),
    "NCCL_IB_ADDR_FAMILY": (frozenset({"AF_INET", "AF_INET6"}), "AF_INET or AF_INET6"),
    "NCCL_SOCKET_FAMILY": (frozenset({"AF_INET", "AF_INET6"}), "AF_INET or AF_INET6"),
    "NCCL_LAUNCH_MODE": (frozenset({"PARALLEL", "GROUP"}), "PARALLEL or GROUP"),
}
"""Words in capitals, and how a message lists them."""


def number_of(value: str) -> int | None:
    """Return the number as NCCL reads it, in tens or in hexadecimal; None for other text."""
    found = re.fullmatch(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)", value)
    if found is None:
        return None
    return int(value, 16) if "x" in value.lower() else int(value)


def unknown_choice(name: str, value: str) -> str | None:
    """Return the first algorithm or protocol in NCCL_ALGO or NCCL_PROTO that NCCL does not know, as it is written."""
    if name not in CHOICES:
        return None
    words = (word.strip().lstrip("^") for part in value.split(";") for word in part.rpartition(":")[2].split(","))
    return next((word for word in words if word and word.upper() not in {each.upper() for each in CHOICES[name]}), None)
