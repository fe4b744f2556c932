"""Addresses of nodes with a network each: one for Slurm's own messages, and one that their names lead to."""

# The bridge and all addresses are in namespaces that nobody else sees.
_MANAGEMENT, _DATA = "10.77.0", "10.78.0"
CONTROLLER = f"{_MANAGEMENT}.1"
# Of the controller, whose network namespace the clients enter.
BRIDGE = f"""
set -e
ip link set lo up
ip link add lan type bridge
ip address add {CONTROLLER}/24 dev lan
ip link set lan up
"""
# An address that no card has: packets to it are lost silently.
NOWHERE = "02:00:00:00:00:01"


def management(index: int) -> str:
    """Return the address of node `index` (from 1) that slurm.conf has."""
    return f"{_MANAGEMENT}.{index + 10}"


def data(index: int) -> str:
    """Return the address of node `index` in /etc/hosts."""
    return f"{_DATA}.{index + 10}"
