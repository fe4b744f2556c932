"""Runs an unmodified script as a worker; import hooks add heartbeats and checksums of what it saves.

In: the script's command line and the environment that agent/launch.py makes.
Out: heartbeats, events for the agent, `shared/saved/*.jsonl`.
Start reading: `script.py` (entry), `hooks.py` (which module gets which hook), `heartbeat.py`, `files.py` and `saved.py` (checksums
and damaged files).
"""

from headway.runner.boot.hooks import prepare
from headway.runner.boot.script import main

__all__ = ["main", "prepare"]
