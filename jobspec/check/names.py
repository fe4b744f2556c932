"""Names that must differ within a list."""

from collections.abc import Iterator, Sequence

from headway.jobspec.document import Path
from headway.jobspec.problem import Problem


def check_unique(document: str, path: Path, key: str | None, names: Sequence[str]) -> Iterator[Problem]:
    """A problem for each name that stands before in the list at `path`; `key` is the name's field in an item, if it has one."""
    for index, name in enumerate(names):
        if name in names[:index]:
            place = (*path, index) if key is None else (*path, index, key)
            yield Problem("HW209", document, place, f"`{name}` is used twice in `{path[-1]}`", "give each a name of its own")
