"""Renders the kernel settings of a Linux switch as a file of /etc/sysctl.d, and reads one back.

Linux Documentation/networking/ip-sysctl.rst.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.templates.reading import Fault, Reading, Setting
from headway.templates.shell import comment

SYSCTL = "sysctl.d/90-headway.conf"

_HASH = "net.ipv4.fib_multipath_hash_policy"
# A comment -> settings and their values.
_SETTINGS: Mapping[str, Mapping[str, int]] = {
    "Packets go from port to port.": {"net.ipv4.ip_forward": 1, "net.ipv6.conf.all.forwarding": 1},
    "The path follows from addresses and ports: by addresses alone, all flows of two hosts take one.": {
        _HASH: 1,
        "net.ipv6.fib_multipath_hash_policy": 1,
    },
    "A path whose link is down is not chosen.": {
        "net.ipv4.conf.all.ignore_routes_with_linkdown": 1,
        "net.ipv4.conf.default.ignore_routes_with_linkdown": 1,
    },
    "The way back of a flow may be another one of the equal paths.": {
        "net.ipv4.conf.all.rp_filter": 0,
        "net.ipv4.conf.default.rp_filter": 0,
    },
}


def sysctl_conf(switch: SwitchPlan, cluster: ClusterPlan) -> str:
    """Return the file for `sysctl --system`."""
    head = f"# {comment(switch.name)} on {comment(cluster.name)}. Rendered by headway; edit the cluster's spec, not this file.\n"
    parts = (
        f"\n# {reason}\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())
        for reason, settings in _SETTINGS.items()
    )
    return head + "".join(parts)


def read(text: str) -> Reading:
    """Return every setting; ValueError, with the line, if one has no value."""
    settings: dict[str, Setting] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if words and words[0] not in "#;":
            name, equals, value = words.partition("=")
            if not equals:
                raise ValueError(f"line {number}: no `NAME = VALUE`")
            settings[name.strip().removeprefix("-").replace("/", ".")] = Setting(value.strip(), number)
    return Reading(settings, faults=partial(_faults, settings))


def _faults(settings: Mapping[str, Setting]) -> Iterator[Fault]:
    values = {name: setting.value for name, setting in settings.items()}
    if values.get("net.ipv4.ip_forward") == "0":
        yield Fault("HW838", "net.ipv4.ip_forward", "forwarding is off; the switch drops every packet between its ports", "set 1")
    if values.get("net.ipv4.ip_forward") == "1" and values.get(_HASH, "0") == "0":
        message = "UDP ports do not take part in the choice among equal paths; all queue pairs of two hosts take one link"
        yield Fault("HW835", _HASH if _HASH in values else "net.ipv4.ip_forward", message, f"set `{_HASH} = 1`")
    for name, value in values.items():
        if name.startswith("net.ipv4.conf.") and name.endswith(".rp_filter") and value == "1":
            message = (
                "strict reverse-path filtering drops what comes in by another equal path than the way back; connections time out"
            )
            yield Fault("HW850", name, message, "set 0, or 2")
