"""FRR as a switch's routing: BGP on unnumbered links, in one integrated `frr.conf`."""

from headway.templates.kind import SwitchKind
from headway.templates.switches.frr.check import check
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.read import read
from headway.templates.switches.frr.render import FILE, render

FRR = SwitchKind(FrrOptions, FILE, check, render, read)
