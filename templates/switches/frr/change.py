"""Compares two configurations of FRR line by line, and keeps the lines of the site: order, comments and defaults make no difference.

In: the text of `show running-config` and a rendered `frr.conf`. Out: an `FrrChange`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from headway.templates.natural import natural
from headway.templates.switches.frr.check import judge
from headway.templates.switches.frr.read import PlacedCommand, placed_commands

# Lines that `show running-config` omits where they are as `frr defaults datacenter` or the kernel of a router has them, seen with FRR 8.4.4
# (bgpd/bgp_vty.c, FRR_CFG_DEFAULT; bfdd/bfdd_nb_config.c; vtysh prints its own setting where vtysh.conf has it).
_DEFAULTS = re.compile(
    r"(service integrated-vtysh-config|ip forwarding|ipv6 forwarding)=yes"
    r"|router bgp [^|]+\|bgp (log-neighbor-changes|network import-check)=yes"
    r"|router bgp [^|]+\|bgp ebgp-requires-policy=no"
    r"|bfd\|profile [^|]+\|(detect-multiplier=3|(receive|transmit)-interval=300)"
)
# vtysh prints the version, and the host's name in place of the file's.
_OF_HOST = re.compile(r"frr version .*|hostname .*")
_SECRET = re.compile(r"\b(password|key-string|authentication-key|md5|secret)((?: \d)?) \S.*")
_HIDDEN = r"\1\2 ***"

# A block without commands, which FRR may keep when the last one is removed.
_EMPTY = re.compile(r"interface .*|bfd")

_PROFILE_OF_BFD = "|bfd profile"
# Blocks that may have only defaults in them.
_EMPTY_BLOCK = re.compile(r"(profile|route-map|router) .+")
# Blocks whose end has their name.
_NAMED_EXITS = frozenset({"address-family", "vrf", "vni"})
# Kinds of blocks, in the order in which a file has them; other commands are before them.
_ORDER = ("interface ", "bfd", "router ")


class FrrLine(NamedTuple):
    """A command below the commands of its blocks, the outer one first."""

    blocks: tuple[str, ...]
    words: str

    @property
    def place(self) -> tuple[str, ...]:
        """The commands from the outermost block to this line."""
        return (*self.blocks, self.words)

    def __str__(self) -> str:
        return _SECRET.sub(_HIDDEN, self.words)


class FrrChange(Struct, frozen=True):
    """The lines that only one of two configurations has."""

    removed: tuple[FrrLine, ...]
    added: tuple[FrrLine, ...]

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)

    def shown(self, name: str, before: str, after: str) -> str:
        """Return the change as a unified diff, whose context is the blocks around each changed line. Passwords are hidden."""
        signs = {**dict.fromkeys(self.removed, "-"), **dict.fromkeys(self.added, "+")}
        around = {FrrLine(line.blocks[:depth], line.blocks[depth]) for line in signs for depth in range(len(line.blocks))}
        headers = {line.place for line in around}
        lines = sorted({*signs, *around}, key=lambda line: (_position(line, headers), signs.get(line) == "+"))
        text = [f"{signs.get(line, ' ')}{' ' * len(line.blocks)}{line}" for line in lines]
        return "\n".join([f"--- {name} ({before})", f"+++ {name} ({after})", *text, ""])


def _position(line: FrrLine, headers: set[tuple[str, ...]]) -> list[tuple[int, int, list[tuple[int, str]]]]:
    """Return what to sort a line by, below its blocks: commands come before inner blocks, and `no` does not count."""
    found = []
    for depth, words in enumerate(line.place):
        rank = next((index for index, start in enumerate(_ORDER, 1) if words.startswith(start)), 0) if depth == 0 else 0
        found.append((rank, int(line.place[: depth + 1] in headers), natural(words.removeprefix("no "))))
    return found


def change(before: str, after: str) -> FrrChange:
    """Return the lines that make one configuration into another. Both have `frr defaults datacenter`, or their other lines are compared
    as if they had."""
    old, new = normal_lines(before), normal_lines(after)
    return FrrChange(_without(old, new), _without(new, old))


def _without(lines: Iterable[FrrLine], others: Iterable[FrrLine]) -> tuple[FrrLine, ...]:
    there = frozenset(others)
    return tuple(line for line in lines if line not in there)


def normal_lines(text: str) -> list[FrrLine]:
    """Return the lines of a configuration that `show running-config` prints too, each once."""
    commands = placed_commands(text)
    profiles = _with_profile(commands)
    lines = (_line(command) for command in commands if not _is_implied(command, profiles))
    filled = {command.blocks[0] for command in commands if command.blocks}
    return list(dict.fromkeys(line for line in lines if line.blocks or line.words in filled or not _EMPTY.fullmatch(line.words)))


def _line(command: PlacedCommand) -> FrrLine:
    return FrrLine(command.blocks, command.words)


def _with_profile(commands: Iterable[PlacedCommand]) -> set[str]:
    """Return the paths of the neighbors that have a profile of BFD."""
    return {command.key.removesuffix(_PROFILE_OF_BFD) for command in commands if command.key.endswith(_PROFILE_OF_BFD)}


def _is_implied(command: PlacedCommand, profiles: set[str]) -> bool:
    if not command.blocks and _OF_HOST.fullmatch(command.words):
        return True
    # FRR adds `neighbor X bfd` to `neighbor X bfd profile P`.
    if command.value == "yes" and command.key.endswith("|bfd") and command.key.removesuffix("|bfd") in profiles:
        return True
    return _DEFAULTS.fullmatch(f"{command.key}={command.value}") is not None


# --- the whole file ---------------------------------------------------------------------------------------------------


def value_of(text: str, key: str) -> str | None:
    """Return the value of a command outside of all blocks, such as `hostname` or `frr defaults`."""
    return next((command.value for command in placed_commands(text) if command.key == key), None)


def with_site_lines(rendered: str, running: str) -> str:
    """Return the rendered file with the lines of `running` that the site decides and the file does not have: logs, terminals, passwords,
    and the management interface."""
    known = {command.key for command in placed_commands(rendered) if not command.blocks}
    kept = [text for command, text in _outermost(running) if command.key not in known and _is_of_site(command)]
    if not kept:
        return rendered
    return "\n!\n".join([f"{rendered.rstrip()}\n!\n! Of the site, as the switch had them.", *kept, ""])


def reload_text(running: str, wanted: str) -> str:
    """Return the wanted configuration in the words of the running one, for `frr-reload.py`.

    It compares texts: of a rendered file it would set again every line that FRR does not print, and remove `neighbor X bfd`, which FRR
    prints in addition, so that BFD goes down and up at each reload.
    """
    profiles = _with_profile(placed_commands(wanted))
    implied = [_line(command) for command in placed_commands(running) if _is_implied(command, profiles)]
    below: dict[tuple[str, ...], list[str]] = {}
    lines = normal_lines(wanted)
    blocks = {line.place for line in lines}
    for line in dict.fromkeys([*(line for line in implied if not line.blocks or line.blocks in blocks), *lines]):
        below.setdefault(line.blocks, []).append(line.words)
    return "".join(f"{line}\n" for line in _printed(below, ()))


def _printed(below: Mapping[tuple[str, ...], Sequence[str]], block: tuple[str, ...]) -> Iterator[str]:
    indent = " " * len(block)
    for words in below.get(block, ()):
        yield f"{indent}{words}"
        if (*block, words) in below or _EMPTY_BLOCK.fullmatch(words):
            yield from _printed(below, (*block, words))
            kind = words.split()[0]
            yield f"{indent}exit-{kind}" if kind in _NAMED_EXITS else f"{indent}exit"


def _is_of_site(command: PlacedCommand) -> bool:
    return judge(command.key) is None and not _OF_HOST.fullmatch(command.words)


def _outermost(text: str) -> Iterator[tuple[PlacedCommand, str]]:
    """Yield each command outside of blocks with its text, to the end of its block."""
    lines = text.splitlines()
    outer = [command for command in placed_commands(text) if not command.blocks]
    ends = [*(later.line for _, later in pairwise(outer)), len(lines) + 1]
    for command, end in zip(outer, ends, strict=True):
        yield command, "\n".join(_stripped(lines[command.line - 1 : end - 1]))


def _stripped(lines: Sequence[str]) -> list[str]:
    """Return the lines of a command without the comments, and the `end` of the text, behind it."""
    found = list(lines)
    while len(found) > 1 and found[-1].strip() in {"", "!", "end"}:
        found.pop()
    return found
