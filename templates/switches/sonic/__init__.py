"""SONiC as a switch's operating system: ports, queues, PFC, ECN and BGP in one `config_db.json`."""

from headway.templates.kind import SwitchKind
from headway.templates.switches.sonic.check import check
from headway.templates.switches.sonic.options import SonicOptions
from headway.templates.switches.sonic.read import read
from headway.templates.switches.sonic.render import FILE, render

SONIC = SwitchKind(SonicOptions, FILE, check, render, read)
