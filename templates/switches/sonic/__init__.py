"""SONiC as a switch's operating system: ports, queues, PFC, ECN and BGP in one `config_db.json`."""

from headway.templates.kind import SwitchKind
from headway.templates.reading import Reading
from headway.templates.switches.sonic.check import check
from headway.templates.switches.sonic.options import SonicOptions
from headway.templates.switches.sonic.render import FILE, render


def _read(text: str) -> Reading:
    from headway.templates.switches.sonic.read import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


SONIC = SwitchKind(SonicOptions, FILE, check, render, _read)
