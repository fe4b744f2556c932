"""The known name that a misspelt one was probably meant to be."""

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar of `known`, or None when none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 (only a mistake needs it)

    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str], what: str) -> str:
    """A hint: the nearest of `known`, or all of them, which are `what`."""
    names = list(known)
    near = nearest(name, names)
    if near is not None:
        return f"did you mean `{near}`?"
    return f"known {what}: {listed(names)}" if names else f"there are no {what}"


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
