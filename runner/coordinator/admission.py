"""Admits nodes to an attempt (torchrun on several nodes): assigns each a node index and sends it the run."""

import json
import secrets
import shlex
from collections.abc import Mapping
from typing import Any

from headway.runner.contract import RunConfig, RunDirectory
from headway.runner.launches import Launch
from headway.runner.posix import create_exclusive, write_atomic


class Admission:
    """Node indexes that were handed out stay so, whichever coordinator did it. Node 0 has made the run and never asks."""

    def __init__(self, config: RunConfig, directory: RunDirectory) -> None:
        self._config, self._directory = config, directory

    def admit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to `enter`: the index that was asked for, else the lowest that was never used. Raises OSError when the store cannot be
        used."""
        if self._directory.verdict.exists():
            # Its port is about to be free for the next run.
            return {"ended": True}
        launch = Launch.of(self._directory)
        if (why := self._refusal(body, launch)) is not None:
            return {"refused": why}
        asked = body.get("node")
        node = self._next(body) if asked is None else int(asked)
        path, content = self._prove(node)
        return {
            "node": node,
            "attempt": self._directory.attempt,
            "run": self._config.run,
            "root": str(self._directory.root),
            "proof": [path, content],
            "run_json": self._directory.run_json.read_text(),
            "handle": self._directory.handle.read_text(),
            "code": None if launch is None else launch.command.code,
        }

    def _refusal(self, body: Mapping[str, Any], launch: Launch | None) -> str | None:
        if (procs := body.get("procs")) not in (None, self._config.procs_per_slot):
            return f"it has {procs} processes per node; the run has {self._config.procs_per_slot}"
        if launch is None:
            return None
        said, known = body.get("command") or {}, launch.command.entry()
        if (what := next((what for what, value in known.items() if said.get(what) != value), None)) is None:
            return None
        shown = shlex.join(launch.command.words)
        return f"another command is running there, `{shown}` as run `{self._config.run}`: this node's differs in {what}"

    def _next(self, body: Mapping[str, Any]) -> int:
        folder = self._directory.entered(0).parent
        folder.mkdir(parents=True, exist_ok=True)
        record = json.dumps({"host": body.get("host")}).encode() + b"\n"
        node = 1
        while self._directory.node(node).exists() or not create_exclusive(self._directory.entered(node), record):
            node += 1
        return node

    def _prove(self, node: int) -> tuple[str, str]:
        """A file that only a node with the same store can read: its path below the run directory, and what is in it."""
        content = secrets.token_hex(16)
        path = self._directory.entered(node).with_suffix(".proof")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content.encode())
        return str(path.relative_to(self._directory.root)), content
