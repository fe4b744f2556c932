"""Switch OS `eos`: Arista EOS, by one `startup-config`.

In: a `SwitchPlan` of a cluster's plan, and the site's base. Out: `startup-config`; `read.py` reads one back, or a running configuration.
Start reading: `render.py`.
"""

from headway.templates.kind import SwitchKind
from headway.templates.reading import Reading
from headway.templates.switches.eos.blocks import judge, read_blocks
from headway.templates.switches.eos.check import check
from headway.templates.switches.eos.options import EosOptions
from headway.templates.switches.eos.render import FILE, MOST_PATHS, port_name, render


def _read(text: str) -> Reading:
    from headway.templates.switches.eos.read import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


EOS = SwitchKind(
    "Arista EOS",
    EosOptions,
    FILE,
    "hostname",
    check,
    render,
    _read,
    host_name_length=63,
    most_paths=MOST_PATHS,
    balancing=("ecmp", "dlb"),
    vendor="Arista",
    port_name=port_name,
    running="the output of `show running-config`",
    read_base=read_blocks,
    judge=judge,
    loading="a configuration session with `commit timer` (docs/fabric.md, Load it on Arista EOS)",
)
