"""Reads what an `opensm.conf` configures, including one that `opensm --create-config` wrote.

Each line is a name and the rest of the line as its value; `#` begins a comment (linux-rdma/opensm opensm/osm_subnet.c).
"""

from headway.templates.reading import Reading, Setting

# Settings that any opensm.conf in force has at least one of.
_KNOWN = frozenset(
    {"routing_engine", "sweep_interval", "qos", "partition_config_file", "subnet_prefix", "sm_priority", "root_guid_file"}
)


def read(text: str) -> Reading:
    """Return every setting; ValueError if the text is not an opensm.conf. `(null)` is a setting that is not set."""
    settings: dict[str, Setting] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, _, value = line.partition("#")[0].strip().partition(" ")
        if name and value.strip() != "(null)":
            settings[name] = Setting(value.strip(), number)
    if not settings.keys() & _KNOWN:
        raise ValueError("line 1: no `routing_engine`, `qos` or `subnet_prefix` in it, so this is not an opensm.conf")
    return Reading(settings)
