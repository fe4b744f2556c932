"""Reads cables that devices report: LLDP neighbors as lldpd prints them, and an InfiniBand fabric as `ibnetdiscover` does.

lldpd: `lldpcli show neighbors -f json` (lldpd src/client/json_writer.c: one object or a list of them, by name). ibnetdiscover(8).
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

# lldpd src/client/display.c, display_age.
_AGE = re.compile(r"(\d+) days?, (\d+):(\d+):(\d+)")


class SeenEnd(Struct, frozen=True):
    """An end of a cable: a device and the names that its port goes by, most reliable first."""

    device: str
    ports: tuple[str, ...]


class SeenCable(Struct, frozen=True):
    """A cable that a device reports, from its own end."""

    own: SeenEnd
    far: SeenEnd


class SeenCables(Struct, frozen=True):
    """The cables that a file reports, of which devices it would list all."""

    devices: frozenset[str]
    cables: tuple[SeenCable, ...]


def read_cables(text: str, device: str, guids: Mapping[str, str]) -> SeenCables:
    """Return the cables of a file: those of `device` where it is LLDP's. `guids` are names of switches by their GUID.

    Raises ValueError if the text is neither.
    """
    if text.lstrip().startswith(("{", "[")):
        return _lldp(text, device)
    return _ibnetdiscover(text, guids)


# --- LLDP -------------------------------------------------------------------------------------------------------------


def _lldp(text: str, device: str) -> SeenCables:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: it is not JSON: {error.msg}") from error
    if not isinstance(found, dict) or "lldp" not in found:
        raise ValueError("line 1: no `lldp` in it, so `lldpcli show neighbors -f json` has not written it")
    newest: dict[str, tuple[int, list[SeenEnd]]] = {}
    for port, row in _named(_part(found["lldp"], "interface")):
        if (far := _neighbor(row)) is not None:
            age_s = _age_s(row)
            least_s, ends = newest.setdefault(port, (age_s, []))
            if age_s < least_s:
                newest[port] = age_s, [far]
            elif age_s == least_s:
                ends.append(far)
    cables = [SeenCable(SeenEnd(device, (port,)), far) for port, (_, ends) in newest.items() for far in ends]
    return SeenCables(frozenset({device}), tuple(cables))


def _age_s(row: Any) -> int:
    """Return for how long the neighbor has been known; 0 if the row has no age. A neighbor is kept for its time to live (usually 120 s)
    after its cable was moved, next to the new one."""
    age = _AGE.fullmatch(str(row.get("age"))) if isinstance(row, dict) else None
    days, hours, minutes, seconds = (int(part) for part in age.groups()) if age else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _part(value: Any, key: str) -> Any:
    return value.get(key, []) if isinstance(value, dict) else []


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield names with what they name: lldpd writes one as an object, several as a list of objects with one key each."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield from each.items()


def _neighbor(row: Any) -> SeenEnd | None:
    """Return the other end as LLDP has it: the system's name, and its port by description and id."""
    chassis, port = _part(row, "chassis"), _part(row, "port")
    if not isinstance(chassis, dict) or not isinstance(port, dict) or not chassis:
        return None
    name = chassis["name"] if isinstance(chassis.get("name"), str) else next(iter(chassis))
    if name == "id":
        # a device that sends no name of its own: its address
        name = _part(chassis["id"], "value")
    number, text = _part(port, "id"), port.get("descr")
    names = [text, number.get("value") if isinstance(number, dict) else None]
    # A host's full name has its domain behind it.
    return SeenEnd(str(name), tuple(str(each) for each in names if each))


# --- InfiniBand -------------------------------------------------------------------------------------------------------

_DEVICE = re.compile(r'(Switch|Ca|Hca|Rt)\s+\d+\s+"([^"]+)"(?:\s*#\s*"([^"]*)")?')
_PORT = re.compile(r'\[(\d+)\](?:\([0-9a-f]+\))?\s+"([^"]+)"\[(\d+)\]')


def _ibnetdiscover(text: str, guids: Mapping[str, str]) -> SeenCables:
    """Return every cable once from each end. A switch is known by its GUID or its description; an adapter by its description, which
    rdma-ndd makes of the host and the device."""
    names: dict[str, SeenEnd | str] = {}
    rows: list[tuple[str, str, str, str]] = []
    own = ""
    for line in text.splitlines():
        if device := _DEVICE.match(line):
            own, description = device[2], device[3] or device[2]
            names[own] = guids.get(f"0x{own[2:]}", description) if device[1] == "Switch" else _adapter(description)
        elif (port := _PORT.match(line)) and own:
            rows.append((own, port[1], port[2], port[3]))
    if not names:
        raise ValueError("line 1: no `Switch` and no `Ca` in it, so `ibnetdiscover` has not written it")
    cables = [SeenCable(_end(names, a, a_port), _end(names, b, b_port)) for a, a_port, b, b_port in rows]
    return SeenCables(frozenset(name for name in names.values() if isinstance(name, str)), tuple(cables))


def _adapter(description: str) -> SeenEnd:
    host, _, device = description.partition(" ")
    return SeenEnd(host, (device,))


def _end(names: Mapping[str, SeenEnd | str], device: str, port: str) -> SeenEnd:
    found = names.get(device, device)
    return found if isinstance(found, SeenEnd) else SeenEnd(found, (port,))
