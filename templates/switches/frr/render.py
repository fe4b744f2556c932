"""Renders a switch's plan as `frr.conf`, and the settings of its kernel."""

from pathlib import Path, PurePosixPath

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.templates.kind import Files
from headway.templates.shell import comment
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.sysctl import SYSCTL, sysctl_conf
from headway.templates.switches.options import RoutingOptions
from headway.templates.switches.words import word
from headway.templates.template import fill

FILE = "frr.conf"
_TEMPLATE = Path(__file__).parent / f"{FILE}.j2"

# FRR's limit at compile time: `configure --enable-multipath=256` in Debian, 512 in SONiC. It refuses a line with more.
MAX_PATHS = 256
# Of upper tiers: all that they may have, and no default, which `show running-config` omits.
UPPER_PATHS = 255


def render(options: FrrOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Files:
    """Return a file for `vtysh -b` and one for sysctl. Raises ValueError when a name of the plan would leave its line."""
    return {PurePosixPath(FILE): frr_conf(options, switch, cluster), PurePosixPath(SYSCTL): sysctl_conf(switch, cluster)}


def frr_conf(options: RoutingOptions, switch: SwitchPlan, cluster: ClusterPlan, on_sonic: bool = False) -> str:
    """Return the switch's frr.conf; on SONiC the addresses are config_db.json's, and routes go to the ASIC through the FPM."""
    values = {
        "switch": switch,
        "cluster": cluster,
        "options": options,
        "on_sonic": on_sonic,
        "on_linux": not on_sonic,
        "keepalive_s": options.hold_s // 3,
        "addressed": [port for port in switch.ports if port.address],
        # A leaf has all of its uplinks from the first day; the upper tiers get more links when the fabric grows.
        "max_paths": (min(len(switch.uplinks), MAX_PATHS) or 1) if switch.role == "leaf" else UPPER_PATHS,
    }
    return fill(_TEMPLATE, word, comment, values)
