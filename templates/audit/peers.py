"""Finds the odd one out: a device, or a port in use, whose settings differ from those of all others of its kind."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from headway.templates.audit.finding import Finding
from headway.templates.audit.machines import role_of
from headway.templates.reading import Reading, Traits

# One of four may be the odd one; of three, one port in ten may be another kind of port.
_FEWEST = 4
_LISTED = 3
_ABSENT = "absent"
_EFFECT = "one port or switch that treats packets otherwise is enough to slow down every collective"


def check_peers(readings: Mapping[str, Reading], fabrics: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a warning for each file and port that alone has another value than all others; devices of one operating system are compared.

    `fabrics`: file -> its fabric, if that is another one than that of the collectives; each fabric is compared with itself.
    """
    by_kind: dict[tuple[str, str, str | None], dict[str, Traits]] = {}
    for file, reading in readings.items():
        if reading.device is not None:
            found = reading.traits()
            by_kind.setdefault((reading.device.os, found.format, fabrics.get(file)), {})[file] = found
    for traits in by_kind.values():
        roles = {file: _role(file, readings[file]) for file in traits}
        count = Counter(roles.values())
        # The only spine differs from leaves in what its tier is for, such as the number of its ports.
        alone = {file for file, role in roles.items() if role is not None and count[role] == 1}
        odd = [each for each in _odd({(file, ""): each.device for file, each in traits.items()}) if each[0][0] not in alone]
        odd += _odd({(file, port): own for file, each in traits.items() for port, own in each.ports.items()})
        for (file, port), differences in odd:
            shown = [_shown(key, ours, theirs) for key, ours, theirs in differences[:_LISTED]]
            more = f" and {len(differences) - _LISTED} more" if len(differences) > _LISTED else ""
            where = f"{port}: " if port else ""
            message = f"{where}{', '.join(shown)}{more}, unlike all others; {_EFFECT}"
            key, value, _ = differences[0]
            place = key.replace("|*|", f"|{port}|") if "|*|" in key else _port_key(port, key)
            yield Finding(
                "HW847",
                file,
                place if value != _ABSENT else _parent(place),
                message,
                "make it like the others, if this is not meant",
                doubtful=True,
            )


def _role(file: str, reading: Reading) -> str | None:
    device = reading.device
    return None if device is None else device.role or role_of(device.name or PurePosixPath(file).parent.name)


def _odd(members: Mapping[tuple[str, str], Mapping[str, str]]) -> list[tuple[tuple[str, str], list[tuple[str, str, str]]]]:
    """Return the members that alone differ from all others, each with its keys, its values and the others'."""
    if len(members) < _FEWEST:
        return []
    # Most ports of a fabric share one mapping, and there are hundreds of thousands of them.
    alike = Counter(map(id, members.values()))
    distinct = {id(own): own for own in members.values()}
    counts: dict[str, Counter[str]] = {}
    for place, own in distinct.items():
        for key, value in own.items():
            counts.setdefault(key, Counter())[value] += alike[place]
    wanted = {key: (value, count) for key, values in counts.items() for value, count in values.most_common(1)}
    unequal = {key for key, (_, count) in wanted.items() if count == len(members) - 1}
    strange = {key for key, values in counts.items() if sum(values.values()) == 1}
    odd: dict[int, list[tuple[str, str, str]]] = {}
    for place, own in distinct.items() if unequal or strange else ():
        differing = [(key, own.get(key, _ABSENT), wanted[key][0]) for key in unequal if own.get(key) != wanted[key][0]]
        differing += [(key, own[key], _ABSENT) for key in strange & own.keys()]
        if differing:
            odd[place] = sorted(differing)
    return [(member, odd[id(own)]) for member, own in members.items() if id(own) in odd]


def _shown(key: str, ours: str, theirs: str) -> str:
    return f"`{key}` is {_clipped(ours)} and not {_clipped(theirs)}"


def _clipped(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:37]}..."


def _port_key(port: str, key: str) -> str:
    if not port:
        return key
    return f"interface|{port}|{key}" if "|" in key else f"interface {port}|{key}"


def _parent(key: str) -> str:
    return key.rpartition("|")[0] or key
