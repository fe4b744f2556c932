"""Writes rendered files to disk, each file atomically, or compares them with the existing ones."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from msgspec import Struct

IsOurs = Callable[[PurePosixPath], bool]


class FileDifference(Struct, frozen=True):
    """A file that is not as rendered: `missing`, `changed` or `extra`."""

    path: PurePosixPath
    what: str


def write_tree(
    root: Path, files: Mapping[PurePosixPath, str], trees: Iterable[PurePosixPath], is_ours: IsOurs = lambda _: True
) -> list[FileDifference]:
    """Make the folders `trees` below `root` hold `files` and nothing else for which `is_ours`; files elsewhere stay.

    None of the folders may be `blocked`. Returns the differences before.
    """
    differences = compare_tree(root, files, trees, is_ours)
    remove_files(root, [difference.path for difference in differences if difference.what == "extra"])
    for tree in trees:
        _remove_empty(root / tree, root)
    for difference in differences:
        if difference.what != "extra":
            write_file(root / difference.path, files[difference.path])
    return differences


def remove_files(root: Path, files: Iterable[PurePosixPath]) -> None:
    """Remove the files, and the folders around them, up to `root`, that are empty then."""
    for file in files:
        (root / file).unlink()
        _remove_empty((root / file).parent, root)


def compare_tree(
    root: Path, files: Mapping[PurePosixPath, str], trees: Iterable[PurePosixPath], is_ours: IsOurs = lambda _: True
) -> list[FileDifference]:
    """Return how the folders `trees` below `root` differ from `files`, by path; extra files count where `is_ours`."""
    found = {path for tree in trees for path in files_below(root, tree)}
    extra = [FileDifference(path, "extra") for path in found - files.keys() if is_ours(path)]
    missing = [FileDifference(path, "missing") for path in files.keys() - found]
    changed = [FileDifference(path, "changed") for path in files.keys() & found if not _holds(root / path, files[path])]
    return sorted(extra + missing + changed, key=lambda difference: difference.path)


def files_below(root: Path, tree: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield files and links of the folder, relative to `root`."""
    for path in (root / tree).rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield PurePosixPath(path.relative_to(root).as_posix())


def blocked(root: Path, tree: PurePosixPath) -> Path | None:
    """Return a path that blocks the folder: a file in its place or above it, or below `root` a symbolic link."""
    below = [root.joinpath(*tree.parts[: depth + 1]) for depth in range(len(tree.parts))]
    for path in (*reversed(root.parents), root, *below):
        if os.path.lexists(path) and (not path.is_dir() or (path in below and path.is_symlink())):
            return path
    return None


def write_file(path: Path, text: str) -> None:
    """Write `text` to `path` atomically: a reader finds the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(text.encode())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _holds(path: Path, text: str) -> bool:
    return not path.is_symlink() and path.is_file() and path.read_bytes() == text.encode()


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove empty folders below `folder`, then itself and its parents, up to `root`."""
    below = sorted((path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()), reverse=True)
    above = (path for path in (folder, *folder.parents) if path.is_relative_to(root) and path != root)
    for path in (*below, *above):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
