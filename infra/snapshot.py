"""Keeps the code of a run: the files of one git commit as an archive that has the commit's name.

The files are those that a checkout has, with those of submodules and of git's filters (LFS); `git archive` would omit what
.gitattributes marks as `export-ignore`.
"""

import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_SUBMODULE = "160000"
_SHOWN = 3


class SnapshotError(Exception):
    """There is no archive; the message has what to do."""


def make_snapshot(folder: Path, commit: str, archives: Path) -> str:
    """Archive the commit of the repository around `folder` as `archives/<commit>.tar`, unless it is there.

    Return the archive's path, and behind a `#` the path of `folder` in it, where that is not its root. `HEAD` has to be what is in
    `folder`: raises SnapshotError for edited and for new files, and for a commit that is not there; OSError if `archives` cannot be
    written.
    """
    root = Path(_git(folder, "rev-parse", "--show-toplevel", why=f"{folder} is in no git repository"))
    prefix = _git(folder, "rev-parse", "--show-prefix").rstrip("/")
    absent = f"commit {commit} is not in {root}; fetch it: git fetch origin {commit}"
    if commit == "HEAD":
        absent = f"{root} has no commit; commit the job and its code"
        _check_clean(root)
    found = _git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", why=absent)
    if prefix and not _git(root, "ls-tree", found, prefix):
        raise SnapshotError(f"`{prefix}` is not in commit {found}; submit from a folder that is")
    archive = archives.resolve() / f"{found}.tar"
    if not archive.exists():
        archives.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-code-", dir=archives) as scratch:
            tree, written = Path(scratch) / "tree", Path(scratch) / archive.name
            _check_out(root, found, tree, Path(scratch) / "index")
            _write(written, tree, int(_git(root, "show", "--no-patch", "--format=%ct", found)))
            written.chmod(0o644)
            written.rename(archive)
    return f"{archive}#{prefix}" if prefix else str(archive)


def _check_clean(root: Path) -> None:
    """Raise SnapshotError if `root` holds anything but its commit, a submodule at another commit for example."""
    status = _git(root, "status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=none", strip=False)
    if changed := [line[3:] for line in status.split("\0") if line[2:3] == " "]:
        shown = ", ".join(f"`{path}`" for path in changed[:_SHOWN]) + (
            f" and {len(changed) - _SHOWN} more" if changed[_SHOWN:] else ""
        )
        raise SnapshotError(
            f"{root} differs from its commit: {shown}; commit the changes, put them aside (git stash -u), "
            "or list what is no code in .gitignore"
        )


def _check_out(repository: Path, commit: str, target: Path, index: Path) -> None:
    """Write the files of the commit and of its submodules to `target`; the repository's own index and files stay as they are."""
    environment = {"GIT_INDEX_FILE": str(index)}
    index.unlink(missing_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    _git(repository, "read-tree", commit, more=environment)
    _git(repository, "checkout-index", "--all", "--force", f"--prefix={target}/", more=environment)
    for path, number in _submodules(repository, commit):
        has = f"{repository}/{path} does not have its commit {number}; get it: git submodule update --init --recursive"
        if not (repository / path / ".git").exists():
            raise SnapshotError(has)
        _git(repository / path, "cat-file", "-e", number, why=has)
        _check_out(repository / path, number, target / path, index)


def _submodules(repository: Path, commit: str) -> Iterator[tuple[str, str]]:
    """Yield path and commit of each."""
    for line in _git(repository, "ls-tree", "-r", "-z", commit, strip=False).split("\0"):
        facts, _, path = line.partition("\t")
        if facts.startswith(_SUBMODULE):
            yield path, facts.split()[2]


def _write(archive: Path, tree: Path, time_s: int) -> None:
    """Write the folder as an archive whose bytes depend on nothing else."""

    def alike(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = time_s
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as written:
        for path in sorted(tree.iterdir()):
            # In the order of names.
            written.add(path, path.name, filter=alike)


def _git(folder: Path, *words: str, why: str | None = None, more: Mapping[str, str] | None = None, strip: bool = True) -> str:
    """Return what git prints. Raises SnapshotError with `why`, or with git's message."""
    # A hook of another repository may have called this.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_DIR", "GIT_INDEX", "GIT_WORK"))}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env={**own, **(more or {})},
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
    except FileNotFoundError:
        raise SnapshotError("git is not installed here; install it, or set HEADWAY_CODE to an archive made elsewhere") from None
    if done.returncode != 0:
        raise SnapshotError(why or f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip() if strip else done.stdout
