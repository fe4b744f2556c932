"""Reads what an `opensm.conf` configures, including one that `opensm --create-config` wrote.

Each line is a name and the rest of the line as its value; `#` begins a comment (linux-rdma/opensm opensm/osm_subnet.c).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from headway.templates.reading import Fault, Reading, Setting, SubnetView

# Those that opensm 3.3.23 lists in the file it creates (linux-rdma/opensm opensm/osm_opensm.c); then those of NVIDIA's build.
_ENGINES = frozenset({"minhop", "updn", "dnup", "file", "ftree", "lash", "dor", "torus-2QoS", "nue", "dfsssp", "sssp"})
_OF_NVIDIA = frozenset(
    {"ar_updn", "ar_ftree", "ar_torus", "ar_dor", "ar_minhop", "pqft", "kdor-hc", "kdor-ghc", "chain", "auto", "no_fallback"}
)
# IBA 1.4: a LID mask control of 3 bits; a timeout of 5 bits, 4.096 us x 2^n.
_MOST_LMC = 7
_SLOW_TIMEOUT = 21

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
    return Reading(settings, subnet=SubnetView("opensm.conf"), faults=partial(_faults, settings))


def _faults(settings: Mapping[str, Setting]) -> Iterator[Fault]:
    """Yield what fails or loops on any fat tree. Settings that opensm writes as `(null)`, or with its defaults, are none."""
    values = {name: setting.value for name, setting in settings.items()}
    engines = [each.strip() for each in values.get("routing_engine", "").split(",") if each.strip()]
    for engine in engines:
        if engine not in _ENGINES | _OF_NVIDIA:
            message = (
                f"neither opensm nor NVIDIA's build documents the routing engine {engine}, and both skip what they do not know"
            )
            # A vendor's build may have more of them.
            yield Fault("HW870", "routing_engine", message, "use `ar_updn,updn`, or `ftree` for a full fat tree", doubtful=True)
    if not engines and values.get("root_guid_file"):
        message = (
            "there are roots, and no `routing_engine`; opensm takes minhop, whose paths turn down and up again after a lost cable"
        )
        yield Fault("HW870", "root_guid_file", message, "set `routing_engine ar_updn,updn`", doubtful=True)
    if engines and set(engines) <= {"lash", "torus-2QoS", "nue"}:
        message = f"{engines[0]} is for meshes and tori; on a fat tree it uses few of the equal paths, and links idle"
        yield Fault("HW870", "routing_engine", message, "use `ar_updn,updn`, or `ftree` for a full fat tree", doubtful=True)
    if engines and set(engines) <= {"minhop", "dor", "file"}:
        message = (
            f"{engines[0]} lets paths turn down and up again; after a lost cable credits may loop, and the fabric stands still"
        )
        yield Fault("HW870", "routing_engine", message, "use `ar_updn,updn`, or `ftree` for a full fat tree", doubtful=True)
    if {"updn", "ar_updn"} & set(engines) and not values.get("root_guid_file"):
        message = (
            "Up/Down has no `root_guid_file`, and guesses the roots by distances; after a lost spine it may take a leaf for one"
        )
        yield Fault("HW870", "routing_engine", message, "list the GUIDs of the top tier in `root_guid_file`", doubtful=True)
    for name, is_harmful, effect, hint in _HARMS:
        value = values.get(name)
        if value is not None and is_harmful(value):
            yield Fault("HW870", name, f"`{name}` is {value}; {effect}", hint, doubtful=name not in {"lmc"})


def _number(value: str) -> int | None:
    try:
        return int(value, 0)
    except ValueError:
        return None


def _at_least(bound: int) -> Callable[[str], bool]:
    return lambda value: (number := _number(value)) is not None and number >= bound


_HARMS: tuple[tuple[str, Callable[[str], bool], str, str], ...] = (
    ("lmc", _at_least(_MOST_LMC + 1), "InfiniBand has at most 7, and opensm does not start with it", "set 0"),
    (
        "sm_priority",
        _at_least(16),
        "InfiniBand has 0 to 15, and another manager may take over",
        "set 15 on the first manager, and less on others",
    ),
    (
        "transaction_timeout",
        lambda value: (number := _number(value)) is not None and number < 50,
        "opensm gives up on a device that answers late, and takes it out of the fabric",
        "set 200",
    ),
    (
        "head_of_queue_lifetime",
        lambda value: (number := _number(value)) is not None and number < 0x10,
        "switches drop packets that wait for less than a third of a second, as they do behind a busy receiver",
        "set 0x12",
    ),
    (
        "force_link_speed",
        lambda value: _number(value) not in (0, 15),
        "links come up with a lower speed than their cables have",
        "set 15",
    ),
    (
        "sweep_interval",
        lambda value: _number(value) == 0,
        "opensm does not look at the fabric by itself, and a change without a trap stays unrouted",
        "set 10",
    ),
    (
        "sweep_on_trap",
        lambda value: value.upper() == "FALSE",
        "a lost cable is routed around at the next sweep only, and NCCL's retries may run out",
        "set TRUE",
    ),
    (
        "subnet_timeout",
        _at_least(_SLOW_TIMEOUT),
        "clients wait for seconds before they ask the subnet manager again; the start of large jobs takes minutes",
        "set 18",
    ),
    (
        "max_op_vls",
        lambda value: _number(value) == 1,
        "ports have one virtual lane; collectives and everything else wait in one queue, and service levels do nothing",
        "set 5",
    ),
    (
        "packet_life_time",
        lambda value: (number := _number(value)) is not None and number < 0x10,
        "switches drop packets that wait for less than a third of a second, as they do behind a busy receiver",
        "set 0x12",
    ),
    (
        "subnet_prefix",
        lambda value: _number(value) == 0,
        "GIDs have no prefix, and connections by GID fail",
        "set 0xfe80000000000000",
    ),
)
