"""Runs a module of headway as `__main__`, as `python -m` does, but without the working folder and this file's in sys.path.

`python -P` would keep both out too, but Python 3.10 does not have it, and a script and its children would see the flag.

In a bundle (`headway bundle`) headway is the bundle's, whatever else is installed. The packages that it needs come last in sys.path, so
that no package of an image is hidden.
"""

import os
import sys

START = __file__
# The index of the module in a worker's command: python -u START MODULE.
MODULE = 3
OLDEST = (3, 10)
# Without them nothing starts; a bundle has them for some Pythons and machines.
NEEDED = ("msgspec", "xxhash")


def enter_bundle(root: str) -> None:
    """Use the bundle at `root`. Raises SystemExit if it does not fit this Python."""
    import importlib.util  # noqa: PLC0415  not before the path is right
    import platform  # noqa: PLC0415

    own = f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}"
    sys.path += [f"{root}/lib/{own}", f"{root}/lib/any"]
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if sys.version_info < OLDEST or missing:
        has = ", ".join(sorted(os.listdir(f"{root}/lib")))  # noqa: PTH208
        sys.exit(f"headway: {root} has nothing for this Python, {own} ({sys.executable}); it has {has}")
    package = f"{root}/headway"
    spec = importlib.util.spec_from_file_location("headway", f"{package}/__init__.py", submodule_search_locations=[package])
    assert spec is not None  # noqa: S101
    assert spec.loader is not None  # noqa: S101
    sys.modules["headway"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["headway"])


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # before anything is imported
    bundle = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    if os.path.exists(f"{bundle}/bundle.json"):  # noqa: PTH110
        enter_bundle(bundle)
    import runpy

    module = sys.argv[1]
    # Runpy sets it to the file of the module.
    sys.argv[:2] = ["-m"]
    runpy._run_module_as_main(module)  # type: ignore[attr-defined]  # what python calls
