"""Switch OS `sonic`: ports, queues, PFC and ECN in `config_db.json`, BGP in an `frr.conf` of its own.

In: a `SwitchPlan` of a cluster's plan, and the site's base. Out: the two files; `read.py` reads a config_db.json back.
Start reading: `render.py`; `device.py` finds the hardware, hardware.yaml has its facts.
"""

from collections.abc import Mapping
from typing import Any

from headway.jobspec.plan import SwitchPlan
from headway.templates.kind import SwitchKind
from headway.templates.reading import Reading
from headway.templates.switches.sonic.check import check
from headway.templates.switches.sonic.options import SonicOptions
from headway.templates.switches.sonic.render import FILE, FRR_FILE, render


def _read(text: str) -> Reading:
    from headway.templates.switches.sonic.read import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


def _base(options: SonicOptions, switch: SwitchPlan) -> str | None:
    if options.base is None:
        return None
    return options.base.replace("{switch}", switch.name).replace("{role}", switch.role)


def _with_bases(options: SonicOptions, bases: Mapping[str, Any]) -> SonicOptions:
    return options.with_bases(bases)


SONIC = SwitchKind(
    SonicOptions, FILE, "DEVICE_METADATA|localhost|hostname", check, render, _read, (FRR_FILE,), _base, _with_bases
)
