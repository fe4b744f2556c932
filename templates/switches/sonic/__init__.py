"""Switch OS `sonic`: ports, queues, PFC and ECN in `config_db.json`, BGP in an `frr.conf` of its own.

In: a `SwitchPlan` of a cluster's plan, and the site's base. Out: the two files; `read.py` reads a config_db.json back.
Start reading: `render.py`; `device.py` finds the hardware, hardware.yaml has its facts.
"""

from headway.templates.kind import SwitchKind
from headway.templates.reading import Reading
from headway.templates.switches.sonic.base import judge, read_base
from headway.templates.switches.sonic.check import check
from headway.templates.switches.sonic.options import SonicOptions
from headway.templates.switches.sonic.render import FILE, FRR_FILE, MAX_PATHS, render


def _read(text: str) -> Reading:
    from headway.templates.switches.sonic.read import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


SONIC = SwitchKind(
    "SONiC",
    SonicOptions,
    FILE,
    "DEVICE_METADATA|localhost|hostname",
    check,
    render,
    _read,
    (FRR_FILE,),
    # sonic-types.yang, hostname.
    host_name_length=63,
    most_paths=MAX_PATHS,
    running="/etc/sonic/config_db.json",
    read_base=read_base,
    judge=judge,
    loading="`config reload` on the switch (docs/fabric.md, Load it on SONiC)",
)
