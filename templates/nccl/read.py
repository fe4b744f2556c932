"""What a job's environment tells NCCL about QoS: `nccl.env`, an nccl.conf, a batch script that exports variables."""

import re
import shlex
from collections.abc import Iterator

from headway.templates.reading import QosView, Reading, Setting

_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Z][A-Z0-9_]*)=(.*)")


def read(text: str) -> Reading:
    """Every variable that the text sets, the last time counting; the DSCP is what stands in NCCL_IB_TC above its two ECN bits.

    ValueError when it sets none.
    """
    settings = dict(_variables(text))
    if not settings:
        raise ValueError("line 1: no `NAME=VALUE` in it")
    traffic_class = settings.get("NCCL_IB_TC")
    value = _integer(traffic_class.value) if traffic_class else None
    view = QosView(marks={} if value is None else {"collectives": value >> 2})
    return Reading(settings, {"NCCL": view})


def _variables(text: str) -> Iterator[tuple[str, Setting]]:
    for number, line in enumerate(text.splitlines(), 1):
        found = _ASSIGNMENT.match(line)
        if found:
            yield found[1], Setting(_value(found[2]), number)


def _value(text: str) -> str:
    """What a shell would assign; as it stands where the quotes do not close."""
    try:
        return "".join(shlex.split(text, comments=True)[:1])
    except ValueError:
        return text.strip()


def _integer(text: str) -> int | None:
    """NCCL reads its numbers by strtoll with base 0 (src/misc/param.cc)."""
    try:
        return int(text, 0)
    except ValueError:
        return None
