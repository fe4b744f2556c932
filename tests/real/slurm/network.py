"""Gives nodes addresses in separate networks: one for Slurm's own messages, and one that their names resolve to."""

# The bridge and all addresses are in namespaces that are invisible elsewhere.
_MANAGEMENT, _DATA = "10.77.0", "10.78.0"
CONTROLLER = f"{_MANAGEMENT}.1"
# The controller's address, whose network namespace the clients enter.
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
    """Return the address of node `index` (from 1) in slurm.conf."""
    return f"{_MANAGEMENT}.{index + 10}"


def data(index: int) -> str:
    """Return the address of node `index` in /etc/hosts."""
    return f"{_DATA}.{index + 10}"
