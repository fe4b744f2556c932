"""Suggests the known name that a misspelt one is probably meant to be."""

from collections.abc import Iterable, Mapping

# Other programs' names of fields that are elsewhere here, by the section where they are looked for and their name here.
_ELSEWHERE: Mapping[tuple[str, str], str] = {
    **{
        ("TrainingJob", name): "set `gpus` of a node group in the cluster; a job sets `nodes`"
        for name in ("gpus", "gpus_per_node", "num_gpus", "procs", "nproc_per_node")
    },
    ("Layout", "dp"): "write `dp_shard` for ranks that share one copy of the model, `dp_replicate` for copies",
}


def called_elsewhere(section: str, name: str) -> str | None:
    """Return the hint for a field that the section does not have and other programs do."""
    return _ELSEWHERE.get((section, name))


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar of `known`, or None when none is as near as `cutoff` (difflib's ratio, 1 for the same)."""
    from difflib import get_close_matches  # noqa: PLC0415 (only a mistake needs it)

    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str], what: str) -> str:
    """Return a hint: the nearest of `known`, or all of them, which are `what`."""
    names = list(known)
    beginning = [each for each in names if name and each.lower().startswith(name.lower())]
    near = beginning[0] if len(beginning) == 1 else None if beginning else nearest(name, names)
    if len(beginning) > 1:
        return f"write one of {listed(beginning)}"
    if near is not None:
        return f"did you mean `{near}`?"
    return f"known {what}: {listed(names)}" if names else f"no {what} are defined"


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
