"""Reads what a script or a systemd unit configures on each adapter: a `headway-qos`, or one written by hand.

It reads iproute2's `dcb`, NVIDIA's `mlnx_qos` and `cma_roce_tos`, and numbers written into mlx5's files. Variables are
not followed: such a number is unknown, and such an adapter is `host`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from headway.templates.commands import ShellCommand, commands
from headway.templates.hosts.view import NO_QOS, faults, host_view, traits
from headway.templates.reading import QosView, Reading, Setting

_PRIORITIES = range(8)
_DSCPS = range(64)

# systemd's, before a command.
_EXEC = re.compile(r"^Exec\w+=[-@:+!]*")

# The end of a command without an adapter, such as those inside of `set_qos`.
_HOST = "host"

_PROGRAMS = {
    *(
        "dcb",
        "mlnx_qos",
        "cma_roce_tos",
        "cma_roce_mode",
        "ethtool",
        "ip",
        "sysctl",
        "setpci",
        "mlxconfig",
        "echo",
        "printf",
        "tee",
    ),
    *("set_qos", "set_address", "expect_address", "setting", "cma_tos", "if_there", "either"),
}
# Of /proc/sys/net/ipv4/conf/INTERFACE, as sysctl names them.
_SYSCTL = re.compile(
    r"net[./]ipv4[./](?:conf[./]([^./=]+)[./])?(rp_filter|arp_ignore|arp_announce|arp_filter|fib_multipath_hash_policy|ip_forward)"
)

# The long names of mlnx_qos, and its options and those of cma_roce_tos that take a value.
_MLNX_QOS = {"-i": "--interface", "-f": "--pfc"}
_VALUED = re.compile(
    r"(--(?:interface|pfc|trust|dscp2prio|prio_tc|tsa|tcbw|ratelimit|dcbx|cable_len|prio2buffer|buffer_size)|-[a-zA-Z])=?(.*)"
)

_FACTS = {"dscp-prio": "priority of DSCP", "prio-pfc": "PFC of priority"}
_OUR_FACTS = {*_FACTS.values(), "DSCP that marks", "priority that marks", "congestion control of priority"}

# A function's argument; only headway-qos's calls are followed.
_PARAMETER = re.compile(r"\$\{?[0-9]\}?")

# A headway-qos of another fabric than the scale-out one, whose RDMA is not that of collectives.
_FABRIC = re.compile(r"^fabric=([a-z0-9-]+)$", re.MULTILINE)
_PREFIX = "headway-qos-$fabric:"


class _End(Struct):
    """An adapter after the previous commands. `is_classed`: one of them set its classes of traffic."""

    settings: dict[str, Setting] = field(default_factory=dict)
    is_classed: bool = False


class _Change(Struct, frozen=True):
    """Sets `key` to `value`; without a value it is reset, and with a `|` at its end so are all that begin with it."""

    end: str
    key: str
    value: str | None


def read(text: str) -> Reading:
    """Return the settings, and one view per adapter; ValueError, with the line, if no command sets QoS.

    In a headway-qos script the settings of all its adapters are the same, and have no adapter in their keys. One for another fabric than
    the scale-out one names that fabric, and marks the traffic of storage.
    """
    called = [replace(command, words=_sysctl(command.words) or _call(command.words)) for command in commands(text)]
    adapters = [(command.words[1], command.line) for command in called if _is_set_qos(command.words)]
    ends = _ends(called)
    if not adapters and not ends:
        raise ValueError(
            "line 1: neither a command that sets up an adapter (dcb, mlnx_qos, cma_roce_tos, ip, sysctl) nor a write to an mlx5 file"
        )
    views = {end: _view(state) for end, state in ends.items() if (end != _HOST or not adapters) and _has_classes(state)}
    views.update({adapter: _our_view(ends.get(_HOST, _End())) for adapter, _ in adapters})
    settings = {
        key if end == _HOST else f"{end}|{key}": setting for end, state in ends.items() for key, setting in state.settings.items()
    }
    settings.update({f"adapter|{index}": Setting(adapter, line) for index, (adapter, line) in enumerate(adapters)})
    fabric = _fabric_of(text)
    if fabric is not None:
        views = {end: _of_storage(view) for end, view in views.items()}
    return Reading(
        settings,
        views,
        device=replace(host_view(settings), fabric=fabric),
        faults=partial(faults, settings, views),
        traits=partial(traits, settings),
    )


def _fabric_of(text: str) -> str | None:
    """Return the fabric that a headway-qos names as its adapters', which only those of other fabrics than the scale-out one do."""
    found = _FABRIC.search(text)
    return found[1] if found is not None and _PREFIX in text else None


def _of_storage(view: QosView) -> QosView:
    """Return the view of an adapter whose RDMA is that of storage."""
    return replace(view, marks={"storage" if kind == "collectives" else kind: dscp for kind, dscp in view.marks.items()})


# --- commands ---------------------------------------------------------------------------------------------------------


def _call(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first known program, by its name, and its arguments: without `sudo`, `ExecStart=` and the like."""
    names = [_EXEC.sub("", word).rpartition("/")[2] for word in words]
    start = next((index for index, name in enumerate(names) if name in _PROGRAMS), len(words))
    return (*names[start : start + 1], *words[start + 1 :])


def _sysctl(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a line of a sysctl.conf, `NAME = VALUE`, as the command that sets it; empty for other words."""
    name, _, value = "".join(words).partition("=")
    return ("sysctl", "-w", f"{name}={value}") if value and _SYSCTL.fullmatch(name.lstrip("-")) else ()


def _has_classes(end: _End) -> bool:
    """Return whether a command set QoS there, and not addresses and the like alone."""
    return end.is_classed or any(not key.startswith(NO_QOS) for key in end.settings)


def _is_set_qos(words: tuple[str, ...]) -> bool:
    return len(words) == 2 and words[0] == "set_qos" and _is_literal(words[1])


def _is_literal(name: str) -> bool:
    return re.fullmatch(r"[\w.:-]+", name, re.ASCII) is not None


def _named(name: str) -> str:
    return name if _is_literal(name) else _HOST


def _ends(found: list[ShellCommand]) -> dict[str, _End]:
    ends: dict[str, _End] = {}
    shown = ""
    for command in found:
        for change in _changes(command, shown):
            _apply(change, ends.setdefault(change.end, _End()), command)
        shown = command.words[-1] if command.words[:1] in {("echo",), ("printf",)} else ""
    return {end: state for end, state in ends.items() if state.is_classed or state.settings.keys() - {"pause|rx", "pause|tx"}}


def _apply(change: _Change, end: _End, command: ShellCommand) -> None:
    end.is_classed |= command.words[0] in {"dcb", "mlnx_qos"}
    if change.value is None:
        for key in [key for key in end.settings if key == change.key or (change.key[-1] == "|" and key.startswith(change.key))]:
            del end.settings[key]
    elif _is_unknown(change.value):
        end.settings.setdefault(change.key, Setting(change.value, command.line))
    else:
        end.settings[change.key] = Setting(change.value, command.line)


def _is_unknown(value: str) -> bool:
    return "$" in value or "`" in value


def _changes(command: ShellCommand, shown: str) -> Iterator[_Change]:
    """Yield the settings of the command, given the words that it gets through a pipe."""
    yield from _of_program(command.words)
    match command.words:
        case ("cma_tos", adapter, value):
            yield _Change(_named(adapter), "default_roce_tos", value)
        case ("expect_address", adapter, address):
            yield _Change(_named(adapter), "address-expected", address)
        case ("if_there", file, value) | ("either", file, _, value):
            yield from _of_file(file, value)
        case ("echo" | "printf", *_, value) if command.target is not None and not _PARAMETER.fullmatch(value):
            yield from _of_file(command.target, value)
        case ("tee", *files) if command.piped and shown:
            for file in files:
                yield from _of_file(file, shown)


def _of_program(words: tuple[str, ...]) -> Iterator[_Change]:
    match words:
        case ("dcb", *arguments):
            yield from _of_dcb(arguments)
        case ("mlnx_qos", *arguments):
            yield from _of_mlnx_qos(_options(arguments))
        case ("cma_roce_tos" | "cma_roce_mode" as name, *arguments):
            options = dict(_options(arguments))
            option, key = ("-t", "default_roce_tos") if name == "cma_roce_tos" else ("-m", "roce_mode")
            if option in options:
                yield _Change(_named(options.get("-d", "")), key, options[option])
        case ("set_address", adapter, address, gateway, table):
            for name, value in (("address", address), ("gateway", gateway), ("table", table)):
                yield _Change(_named(adapter), name, value)
        case ("setting", device, name, value):
            yield _Change(_named(device), name, value)
        case ("ip", *arguments):
            yield from _of_ip(arguments)
        case ("setpci", *arguments):
            yield from _of_setpci(arguments)
        case ("sysctl" | "mlxconfig", *arguments):
            yield from _of_assignments(arguments)
        case ("ethtool", option, device, *rest):
            yield from _of_ethtool(option, _named(device), rest)


def _of_assignments(arguments: list[str]) -> Iterator[_Change]:
    """Yield sysctl's `NAME=VALUE` of interfaces, and mlxconfig's."""
    for word in arguments:
        name, _, value = word.lstrip("-").partition("=")
        if value and (found := _SYSCTL.fullmatch(name)):
            device = found[1] or "all"
            yield _Change(_HOST if device in {"all", "default"} else _named(device), found[2], value)
        elif value and name.isupper():
            yield _Change(_HOST, f"mlxconfig|{name}", value)


def _of_ethtool(option: str, end: str, rest: list[str]) -> Iterator[_Change]:
    pairs = list(zip(rest[::2], rest[1::2], strict=False))
    if option in {"-A", "--pause"}:
        for way, state in pairs[:2]:
            yield _Change(end, f"pause|{way}", state)
    elif option == "-s":
        for name, value in pairs:
            yield _Change(end, f"link|{name}", value)
    elif option == "--set-fec" and rest[:1] == ["encoding"] and len(rest) > 1:
        yield _Change(end, "fec", rest[1])


def _of_ip(arguments: list[str]) -> Iterator[_Change]:
    """Yield addresses, MTU, state, and routes and rules with a table; what a variable has is not known."""
    arguments = [word for word in arguments if word not in {"-4", "-6", "-br"}]
    match arguments:
        case ("link", "set", *words):
            device = next((word for word in words if word not in {"dev", "up", "down", "mtu"} and not word.isdecimal()), "")
            for name, value in zip(words, [*words[1:], ""], strict=False):
                if name == "mtu":
                    yield _Change(_named(device), "mtu", value)
            if "up" in words or "down" in words:
                yield _Change(_named(device), "up", "no" if "down" in words else "yes")
        case ("address" | "addr" | "a", "add" | "replace", address, "dev", device, *_) if not _is_unknown(address):
            yield _Change(_named(device), f"address|{address}", address)
        case ("route" | "r" | "ro", "add" | "replace", target, *words):
            yield from _of_route(target, dict(pairwise(words)))
        case ("rule" | "ru", "add", *words):
            pairs = dict(pairwise(words))
            table, source = pairs.get("lookup", pairs.get("table", "")), pairs.get("from", "")
            priority = next((pairs[each] for each in ("priority", "pref", "preference", "prio") if each in pairs), "")
            if priority.isdecimal():
                yield _Change(_HOST, "rule-priority", priority)
            if _is_unknown(table):
                yield _Change(_HOST, f"way|{table}|rule", "rule")
            elif table and source and not _is_unknown(source):
                yield _Change(_HOST, f"rule|{source}", table)


def _of_route(target: str, pairs: Mapping[str, str]) -> Iterator[_Change]:
    via, table = pairs.get("via", ""), pairs.get("table", "main")
    if _is_unknown(via + table + target):
        yield _Change(_HOST, f"way|{table}", "route")
        if table == "main" and not _is_unknown(target):
            yield _Change(_HOST, f"fabric|{target}", target)
    elif via:
        yield _Change(_named(pairs.get("dev", "")), f"route|{table}|{target}", via)


def _of_setpci(arguments: list[str]) -> Iterator[_Change]:
    device = dict(_options(arguments)).get("-s", "")
    for word in arguments:
        register, _, value = word.partition("=")
        if value and "." in register and not _is_unknown(value):
            yield _Change(_named(device) if device else _HOST, f"setpci|{register.lower()}", value.partition(":")[0])


def _of_dcb(arguments: list[str]) -> Iterator[_Change]:
    """Yield those of `dcb app` and `dcb pfc`, whatever options precede them."""
    while arguments and arguments[0] not in {"app", "pfc", "ets"}:
        arguments = arguments[1:]
    match arguments:
        case ("app", "flush", "dev", device, *selectors) if not selectors or "dscp-prio" in selectors:
            yield _Change(_named(device), "dscp-prio|", None)
            yield _Change(_named(device), "trust", None)
        case ("app", "add" | "replace" | "del" as verb, "dev", device, *parameters):
            for dscp, priority in _pairs(parameters, "dscp-prio"):
                yield from _of_dscp(_named(device), dscp, None if verb == "del" else priority)
        case ("ets", "set", "dev", device, *parameters):
            for number, share in _pairs(parameters, "tc-bw"):
                yield _Change(_named(device), f"tc-bw|{number}", share)
        case ("pfc", "set", "dev", device, *parameters):
            for priority, state in _pairs(parameters, "prio-pfc"):
                if priority == "all":
                    yield _Change(_named(device), "prio-pfc|", None)
                yield _Change(_named(device), f"prio-pfc|{priority}", state)


def _pairs(parameters: list[str], name: str) -> Iterator[tuple[str, str]]:
    """Yield the `KEY:VALUE` words after the parameter of this name."""
    current = ""
    for word in parameters:
        key, colon, value = word.partition(":")
        if not colon:
            current = word
        elif current == name:
            yield key, value


def _of_dscp(end: str, dscp: str, priority: str | None) -> Iterator[_Change]:
    number = _dscp(dscp)
    key = f"dscp-prio|{dscp if number is None else number}"
    yield _Change(end, key, priority)


def _of_mlnx_qos(options: list[tuple[str, str]]) -> Iterator[_Change]:
    end = _named(next((value for name, value in options if name == "--interface"), ""))
    for name, value in options:
        match name, value.split(","):
            case "--trust", _:
                if value == "pcp":
                    yield _Change(end, "dscp-prio|", None)
                yield _Change(end, "trust", value)
            case "--pfc", states if len(states) == 1:
                yield _Change(end, "prio-pfc|all", value)
            case "--pfc", states:
                yield _Change(end, "prio-pfc|all", None)
                for priority, state in enumerate(states[:8]):
                    yield _Change(end, f"prio-pfc|{priority}", state)
            case "--tcbw", shares if len(shares) > 1:
                for number, share in enumerate(shares[:8]):
                    yield _Change(end, f"tc-bw|{number}", share)
            case "--dscp2prio", ["set", dscp, priority]:
                yield from _of_dscp(end, dscp, priority)
            case "--dscp2prio", ["del", dscp, _]:
                yield from _of_dscp(end, dscp, "0")


def _options(arguments: list[str]) -> list[tuple[str, str]]:
    """Return each option with a value, by its long name if it has one: `-i eth0`, `-ieth0`, `--pfc LIST`, `--pfc=LIST`."""
    options, waiting = [], ""
    for word in arguments:
        found = _VALUED.fullmatch(word)
        name = _MLNX_QOS.get(found[1], found[1]) if found else ""
        if found and found[2]:
            options.append((name, found[2]))
        elif waiting and not found:
            options.append((waiting, word))
        waiting = name if found and not found[2] else ""
    return options


def _of_file(file: str, value: str) -> Iterator[_Change]:
    """Yield the content of a mlx5 file, by the end of its path: the start may be a variable."""
    match ["", *file.split("/")]:
        case [*_, adapter, "tc", port, "traffic_class"]:
            yield _Change(_named(adapter), f"tc/{port}/traffic_class", value)
        case [*_, adapter, "ports", _, "default_roce_mode"]:
            yield _Change(_named(adapter), "roce_mode", value)
        case [*_, "sys", "net", "ipv4", "conf", device, "rp_filter" | "arp_ignore" | "arp_announce" as name]:
            yield _Change(_HOST if device in {"all", "default"} else _named(device), name, value)
        case [*_, adapter, "ports", _, "default_roce_tos"]:
            yield _Change(_named(adapter), "default_roce_tos", value)
        case [*_, device, "ecn", "roce_np" | "roce_rp" as side, "enable", priority]:
            yield _Change(_named(device), f"ecn/{side}/enable/{priority}", value)
        case [*_, "roce_np" | "roce_rp" as side, "enable", priority]:
            yield _Change(_HOST, f"ecn/{side}/enable/{priority}", value)
        case [*_, device, "ecn", "roce_np", "cnp_dscp" | "cnp_802p_prio" as name]:
            yield _Change(_named(device), f"ecn/roce_np/{name}", value)
        case [*_, "roce_np", "cnp_dscp" | "cnp_802p_prio" as name]:
            yield _Change(_HOST, f"ecn/roce_np/{name}", value)
        case [*_, device, "cc_params", "np_cnp_dscp"]:
            yield _Change(_named(device), "ecn/roce_np/cnp_dscp", value)
        case [*_, device, "cc_params", "np_cnp_prio"]:
            yield _Change(_named(device), "ecn/roce_np/cnp_802p_prio", value)


# --- views ------------------------------------------------------------------------------------------------------------


def _our_view(end: _End) -> QosView:
    """Return the view of an adapter that `set_qos` sets up: what it does not name is off."""
    view = _view(end)
    return replace(
        view, reacts={priority: view.reacts.get(priority, False) for priority in _PRIORITIES}, says=frozenset(_OUR_FACTS)
    )


def _view(end: _End) -> QosView:
    values = {key: value for key, setting in end.settings.items() if (value := _number(setting.value)) is not None}
    tos = values.get("default_roce_tos", values.get("tc/1/traffic_class"))
    marks = {} if tos is None else {"collectives": (tos & 0xFF) >> 2}
    if "ecn/roce_np/cnp_dscp" in values:
        marks["cnp"] = values["ecn/roce_np/cnp_dscp"]
    return QosView(
        marks=marks,
        marks_priority={"cnp": values["ecn/roce_np/cnp_802p_prio"]} if "ecn/roce_np/cnp_802p_prio" in values else {},
        priorities=_priorities(end.settings, values),
        pfc=_pfc(end.settings),
        reacts=dict(_reacts(values)),
        says=frozenset(_must_say(end)),
    )


def _must_say(end: _End) -> Iterator[str]:
    """Yield the facts that a set of classes requires, except those that the commands take from variables."""
    for kind, fact in _FACTS.items():
        of_it = [f"{key}{setting.value}" for key, setting in end.settings.items() if key.startswith(kind)]
        if end.is_classed and not any(map(_is_unknown, of_it)):
            yield fact


def _priorities(settings: Mapping[str, Setting], values: Mapping[str, int]) -> dict[int, int]:
    """Return the priorities. mlx5 gives each DSCP its upper three bits once it trusts a packet's DSCP."""
    trusted = settings.get("trust")
    priorities = {dscp: dscp >> 3 for dscp in _DSCPS} if trusted is not None and trusted.value == "dscp" else {}
    return priorities | {
        int(key.partition("|")[2]): value for key, value in values.items() if re.fullmatch(r"dscp-prio\|[0-9]+", key)
    }


def _pfc(settings: Mapping[str, Setting]) -> dict[int, bool]:
    """Return PFC of each priority: the setting for all of them, then the individual ones."""
    default = settings.get("prio-pfc|all")
    stated = {priority: settings.get(f"prio-pfc|{priority}", default) for priority in _PRIORITIES}
    return {
        priority: setting.value in {"on", "1"}
        for priority, setting in stated.items()
        if setting is not None and not _is_unknown(setting.value)
    }


def _reacts(values: Mapping[str, int]) -> Iterator[tuple[int, bool]]:
    """Yield the priorities with a setting. Both sides have to be on: the one that answers marks, and the one that slows down."""
    for priority in _PRIORITIES:
        sides = [values.get(f"ecn/{side}/enable/{priority}") for side in ("roce_np", "roce_rp")]
        if any(side is not None for side in sides):
            yield priority, all(side == 1 for side in sides)


def _dscp(word: str) -> int | None:
    """Parse a number, or a name of /etc/iproute2/rt_dsfield: CS3, AF31, EF."""
    named = re.fullmatch(r"CS([0-7])|AF([1-4])([1-3])|(EF)", word)
    if named is None:
        return _number(word)
    if named[4]:
        return 46
    return int(named[1]) << 3 if named[1] else int(named[2]) << 3 | int(named[3]) << 1


def _number(text: str) -> int | None:
    """Parse a number like iproute2 and the kernel: 0x is hexadecimal, a leading 0 octal."""
    if not re.fullmatch(r"0[xX][0-9a-fA-F]{1,8}|0[0-7]{0,9}|[1-9][0-9]{0,8}", text):
        return None
    base = 16 if text[1:2] in {"x", "X"} else 8 if text[0] == "0" else 10
    return int(text, base)
