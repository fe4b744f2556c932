"""Runs a module of headway as `__main__`, as `python -m` does, but without the working folder and this file's in sys.path.

For a process that becomes a user's script: `python -P` would keep both out too, but the script and its children would see the flag.
"""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # before anything is imported
    import runpy

    module = sys.argv[1]
    # Runpy sets it to the file of the module.
    sys.argv[:2] = ["-m"]
    runpy._run_module_as_main(module)  # type: ignore[attr-defined]  # what python calls
