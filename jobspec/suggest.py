"""Suggests the known name that a misspelt one is probably meant to be."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

# The names that a hint lists at most.
_LISTED = 12
_ALIKE = 5
# The names that a message lists at most.
_SOME = 4
_SHORTEST = 3
# The entries of a folder that are looked at.
_ENTRIES = 1000
_DIGITS = re.compile(r"\d")


class Hint(NamedTuple):
    """The remedy of a problem. `fix` is the exact YAML text that replaces the problem's place, if there is one; `after` is what is to be
    done elsewhere once it has."""

    text: str
    fix: str | None = None
    after: str | None = None

    @property
    def whole(self) -> str:
        """The remedy with what is to be done after it."""
        return self.text if self.after is None else f"{self.text}; {self.after}"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.7) -> str | None:
    """Return the most similar of `known`, or None when none is as near as `cutoff` (difflib's ratio, 1 for the same).

    Names with other digits are other things: `qwen3-1.7b` is not a misspelt `qwen2.5-7b`, but `GH200-96` may be a misspelt `GH20-96`.
    """
    from difflib import get_close_matches  # noqa: PLC0415 (only a mistake needs it)

    by_lower = {candidate.lower(): candidate for candidate in known if _same_digits(candidate, name)}
    matches = get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    found = matches[0] if matches else next((each for each in by_lower if _one_letter_apart(name.lower(), each)), None)
    return None if found is None else by_lower[found]


def _same_digits(name: str, other: str) -> bool:
    """Return whether the digits of one are those of the other, perhaps with some left out."""
    few, many = sorted((_DIGITS.findall(name), _DIGITS.findall(other)), key=len)
    remaining = iter(many)
    return all(digit in remaining for digit in few)


def _one_letter_apart(name: str, other: str) -> bool:
    """Return whether one letter more, less or another makes the two the same, if they have at least three: `lap` and `lab`."""
    shorter, longer = sorted((name, other), key=len)
    at = next((index for index, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(shorter))
    # Two letters that are exchanged: `kye` and `key`.
    if len(name) == len(other) > at + 1 and name != other and name[:at] + name[at + 1] + name[at] + name[at + 2 :] == other:
        return len(name) >= _SHORTEST and at > 0
    rest = longer[at + 1 :]
    # Of the shortest names, the first letter is the name: `cpu` and `gpu`.
    if len(shorter) == _SHORTEST and at == 0:
        return False
    return len(shorter) >= _SHORTEST and rest in (shorter[at:], shorter[at + 1 :])


def file_like(folder: Path, name: str) -> str | None:
    """Return the path of a file below `folder` that `name`, which is none, is meant to be: misspelt, in a wrong folder, or in the folder
    that it names."""
    wanted = Path(name)
    try:
        if (folder / wanted).is_dir():
            inside = sorted(each.name for each in (folder / wanted).iterdir() if each.is_file())
            return (wanted / inside[0]).as_posix() if len(inside) == 1 else None
        parent = folder / wanted.parent
        if parent.is_dir():
            near = nearest(wanted.name, sorted(each.name for each in parent.iterdir() if each.is_file())[:_ENTRIES])
            return None if near is None else (wanted.parent / near).as_posix()
        if (folder / wanted.name).is_file():
            return wanted.name
        homes = sorted(each.name for each in folder.iterdir() if (each / wanted.name).is_file())[:_ENTRIES]
        near = nearest(wanted.parent.name, homes)
        return None if near is None else f"{near}/{wanted.name}"
    except (OSError, ValueError):
        return None


def similar(name: str, known: Iterable[str]) -> Hint | None:
    """Return a hint: the nearest of `known`, or those that begin like it; None where none resembles it."""
    names = list(known)
    beginning = [each for each in names if name and each.lower().startswith(name.lower())]
    beginning = [each for each in beginning if each.lower() == name.lower()] or beginning
    near = beginning[0] if len(beginning) == 1 else None if beginning else nearest(name, names)
    if near is not None:
        return Hint(f"did you mean `{near}`?", near)
    return Hint(f"write {joined_or([f'`{each}`' for each in beginning[:_LISTED]])}") if beginning else None


def known_in(text: str, known: Iterable[str]) -> Hint | None:
    """Return the hint for a name with words around it, as in `NVIDIA ConnectX-7 400GbE`; None if it has no known one, or several."""
    found = [each for each in known if re.search(rf"(?<![A-Za-z0-9]){re.escape(each)}(?![A-Za-z0-9])", text, re.IGNORECASE)]
    longest = [each for each in found if not any(each != other and each.lower() in other.lower() for other in found)]
    return Hint(f"did you mean `{longest[0]}`?", longest[0]) if len(longest) == 1 else None


def did_you_mean(name: str, known: Iterable[str], what: str, likely: str | None = None) -> Hint:
    """Return a hint: the nearest of `known`, or those that resemble it, which are `what`. Where none does, the `likely` one is meant."""
    names = list(known)
    if (found := similar(name, names)) is not None:
        return found
    if not names:
        return Hint(f"no {what} are defined")
    if likely is not None:
        return Hint(f"write `{likely}`; known {what}: {listed(names[:_LISTED])}", likely)
    if len(names) <= _LISTED:
        return Hint(f"known {what}: {listed(names)}")
    return Hint(f"the most similar of {len(names)} {what}: {listed(_most_alike(name, names))}")


def _most_alike(name: str, names: Sequence[str]) -> list[str]:
    from difflib import SequenceMatcher  # noqa: PLC0415 (only a mistake needs it)

    return sorted(names, key=lambda each: -SequenceMatcher(None, name.lower(), each.lower()).ratio())[:_ALIKE]


def listed(names: Iterable[str]) -> str:
    """Return the names in backticks with commas between them."""
    return ", ".join(f"`{name}`" for name in names)


def listed_some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - _SOME} more" if len(names) > _SOME else ""
    return listed(names[:_SOME]) + more


def joined_or(parts: Sequence[str]) -> str:
    """Return the parts as alternatives: `a, b or c`."""
    return " or ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def joined_and(parts: Sequence[str]) -> str:
    """Return the parts as a list: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def as_clause(sentence: str) -> str:
    """Return its first sentence without its full stop and capital; `CPU cores` keeps its own."""
    sentence = sentence.partition(". ")[0]
    first = sentence[:1] if any(each.isupper() for each in sentence.partition(" ")[0][1:]) else sentence[:1].lower()
    return first + sentence[1:].rstrip(".")
