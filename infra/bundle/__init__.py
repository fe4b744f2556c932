"""Makes the runtime bundle: a folder with the runner and what it needs, for every Python and machine that an image may have.

In: this installation of headway, and the wheels that `wheels.sha256` pins, from the package index or from a folder.
Out: `headway-<version>-<hash>/`, whose name is the hash of what it holds:

* `headway/`: the runner, and the library `headway.checkpoint`;
* `lib/cp311-x86_64/` and so on: the wheels for that Python and machine; `lib/any/`: those for all;
* `bundle.json`: the hash of every file.

`runner/start.py` starts a module from it.
Start reading: `make_bundle`.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from msgspec import Struct

import headway

SCHEMA = "headway.bundle/1"
LOCK = Path(__file__).with_name("wheels.sha256")
ANY = "any"
# 48 bits are enough for the bundles of one version.
HASH_DIGITS = 12
# 1980, before which no zip file goes: a copy in an archive is the same, too.
_TIME_S = 315_532_800
# What the runner needs of headway. The language and the templates need more than a bundle has.
_MODULES = ("__init__.py", "checkpoint.py", "runs.py")


class BundleError(Exception):
    """There is no bundle; the message has what to do."""


class Wheel(Struct, frozen=True):
    """A pinned wheel, by its file's name: `name-version-python-abi-platforms.whl`."""

    file: str
    sha256: str

    @property
    def requirement(self) -> str:
        """As pip reads it: the version and the only file that may be installed."""
        name, number, *_ = self.file.split("-")
        return f"{name}=={number} --hash=sha256:{self.sha256}"

    @property
    def tags(self) -> tuple[str, str, tuple[str, ...]]:
        """Python, ABI and platforms."""
        python, abi, platforms = self.file.removesuffix(".whl").split("-")[2:]
        return python, abi, tuple(platforms.split("."))

    @property
    def target(self) -> str:
        """The folder below `lib` that start.py adds for an interpreter."""
        python, _, platforms = self.tags
        if platforms == ("any",):
            return ANY
        return f"{python}-{'aarch64' if platforms[0].endswith('aarch64') else 'x86_64'}"


def pinned() -> tuple[Wheel, ...]:
    """Return the wheels of a bundle, by folder."""
    rows = (line.split() for line in LOCK.read_text().splitlines())
    return tuple(sorted((Wheel(file, digest) for digest, file in rows), key=lambda wheel: (wheel.target, wheel.file)))


def make_bundle(
    folder: Path, wheels: Path | None, report: Callable[[str], None], only: Collection[str] = ()
) -> tuple[Path, bool]:
    """Make the bundle below `folder`; return its path, and whether it is new. Without the folder `wheels`, pip downloads them.

    `only` names the Pythons and machines that it is for; all without a name. `report` gets a line for each slow step.
    Raises BundleError, and OSError if `folder` cannot be written; leaves no half of a bundle.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-bundle-", dir=folder) as scratch:
        place, downloads = Path(scratch) / "bundle", Path(scratch) / "wheels"
        for target, group in groupby(pinned(), lambda wheel: wheel.target):
            found = tuple(group)
            if only and target not in (ANY, *only):
                continue
            if wheels is None:
                report(f"downloading wheels for {target}")
                _download(found, downloads)
            for wheel in found:
                _unpack(_verified(wheel, downloads if wheels is None else wheels), place / "lib" / target)
        _copy_headway(place / "headway")
        files = {path.relative_to(place).as_posix(): _sha256(path.read_bytes()) for path in sorted(_files(place))}
        record = {"schema": SCHEMA, "headway": version("headway"), "files": files}
        text = json.dumps(record, indent=1, sort_keys=True).encode() + b"\n"
        (place / "bundle.json").write_bytes(text)
        bundle = folder.resolve() / f"headway-{record['headway']}-{_sha256(text)[:HASH_DIGITS]}"
        if bundle.exists():
            verify_bundle(bundle)
            return bundle, False
        _make_alike(place)
        place.rename(bundle)
    return bundle, True


def verify_bundle(bundle: Path) -> None:
    """Compare every file with bundle.json, and that with the name. Raises BundleError."""
    hint = "delete it, and make it again by `headway bundle`"
    try:
        text = (bundle / "bundle.json").read_bytes()
        expected: Mapping[str, str] = json.loads(text)["files"]
        if _sha256(text)[:HASH_DIGITS] != bundle.name.rpartition("-")[2]:
            raise BundleError(f"{bundle}/bundle.json is not what the folder's name says; {hint}")
        found = {path.relative_to(bundle).as_posix(): _sha256(path.read_bytes()) for path in _files(bundle)}
    except (OSError, ValueError, KeyError) as error:
        raise BundleError(f"{bundle} cannot be read as a bundle: {error}; {hint}") from error
    del found["bundle.json"]
    changed = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if changed:
        raise BundleError(f"{bundle} has changed: {', '.join(changed[:3])}{', ...' if len(changed) > 3 else ''}; {hint}")


def _download(wheels: Iterable[Wheel], folder: Path) -> None:
    """Have pip download the wheels of one folder, by their versions and hashes."""
    if find_spec("pip") is None:
        raise BundleError(
            f"{sys.executable} has no pip to download wheels with; install it (`python3 -m ensurepip`), "
            f"or fetch the files of {LOCK} by other means and name their folder with `--wheels`"
        )
    wheels = tuple(wheels)
    python, abi, platforms = wheels[0].tags
    folder.mkdir(exist_ok=True)
    asked = folder / "requirements.txt"
    asked.write_text("".join(f"{wheel.requirement}\n" for wheel in wheels))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", f"--requirement={asked}", f"--dest={folder}"]
    if platforms != ("any",):
        command += ["--implementation=cp", f"--python-version={python.removeprefix('cp')}", f"--abi={abi}"]
        command += [f"--platform={platform}" for platform in platforms]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR: ")), "ERROR: pip failed")
        raise BundleError(
            f"wheels could not be downloaded: {why.removeprefix('ERROR: ')}; where there is no package index, fetch the files of "
            f"{LOCK} elsewhere and name their folder with `--wheels`"
        )


def _verified(wheel: Wheel, folder: Path) -> Path:
    path = folder / wheel.file
    if not path.is_file():
        raise BundleError(f"{folder} has no {wheel.file}; {LOCK} lists the files of a bundle")
    if (found := _sha256(path.read_bytes())) != wheel.sha256:
        raise BundleError(f"{path} has the SHA-256 {found}, expected {wheel.sha256}; download it again")
    return path


def _unpack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        # None of them has scripts or headers, which would be in `*.data`.
        archive.extractall(target, [name for name in archive.namelist() if ".data/" not in name])


def _copy_headway(target: Path) -> None:
    package = Path(headway.__file__).parent
    modules = [*map(Path, _MODULES), *(path.relative_to(package) for path in (package / "runner").rglob("*.py"))]
    for module in modules:
        (target / module).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package / module, target / module)


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files but what Python has compiled."""
    return (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")


def _make_alike(folder: Path) -> None:
    """Give every file the mode and time that it has in all bundles; every user may read it."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (_TIME_S, _TIME_S))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
