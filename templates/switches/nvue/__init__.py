"""Switch OS `nvue`: Cumulus Linux from 5.15 on, by one `startup.yaml` of NVIDIA's configuration tool NVUE.

In: a `SwitchPlan` of a cluster's plan, and the site's base. Out: `startup.yaml`; `read.py` reads one back, or `nv set` commands.
Start reading: `render.py`.
"""

from headway.templates.kind import SwitchKind
from headway.templates.reading import Reading
from headway.templates.switches.nvue.check import check
from headway.templates.switches.nvue.options import NvueOptions
from headway.templates.switches.nvue.render import FILE, MOST_PATHS, judge, port_name, render
from headway.templates.switches.nvue.tree import read_tree


def _read(text: str) -> Reading:
    from headway.templates.switches.nvue.read import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


NVUE = SwitchKind(
    "Cumulus Linux",
    NvueOptions,
    FILE,
    "system|hostname",
    check,
    render,
    _read,
    # Linux, HOST_NAME_MAX.
    host_name_length=64,
    most_paths=MOST_PATHS,
    balancing=("ecmp", "adaptive"),
    vendor="NVIDIA",
    port_name=port_name,
    running="/etc/nvue.d/startup.yaml",
    read_base=read_tree,
    judge=judge,
    loading="`nv config replace` and `nv config apply --confirm` (docs/fabric.md, Load it on Cumulus Linux)",
)
