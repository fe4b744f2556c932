"""Runs a script as a worker: `python START headway.runner.boot [-m] SCRIPT ARGS...` (runner/start.py)."""

from headway.runner.boot.script import main

if __name__ == "__main__":
    main()
