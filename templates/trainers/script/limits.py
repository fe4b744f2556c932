"""Determines which parts of a layout a script supports: those that its arguments contain."""

from headway.templates.kind import Limited
from headway.templates.trainers.script.arguments import names_in
from headway.templates.trainers.script.options import ScriptOptions

_DEGREES = ("pp", "dp_replicate", "cp", "tp", "ep", "virtual_stages")
_CHOICES = (("layout", "sharding"), ("layout", "sequence_parallel"), ("layout", "schedule"), ("recompute",))
_WHY = "is not given it"

# Fields that a script implements only if an argument contains them: otherwise degrees must be 1 and others omitted.
_UNTOLD: Limited = {**{("layout", degree): ((1,), _WHY) for degree in _DEGREES}, **dict.fromkeys(_CHOICES, ((), _WHY))}


def limits(options: ScriptOptions) -> Limited:
    """Return the fields that no argument contains, with their only value."""
    told = {name for argument in options.argv for name in names_in(argument)}
    return {path: limit for path, limit in _UNTOLD.items() if ".".join(path) not in told}
