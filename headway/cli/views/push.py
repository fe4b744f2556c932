"""Shows the differences of switches, the steps of a push as they happen, and the result for each switch."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from msgspec import Struct, field
from msgspec.structs import asdict
from rich.console import Console
from rich.status import Status

from headway.cli.terminal import has_colour
from headway.templates.switches.frr.change import FrrChange

_COLOURS = {"-": "31", "+": "32"}


class SwitchResult(Struct):
    """The result for a switch, as JSON has it: `state` is `unchanged`, `differs`, `refused`, or that of a `PushOutcome`."""

    switch: str
    state: str
    reason: str = ""
    removed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    diff: str = ""


class PushView:
    """Prints differences on stdout, with `as_json` on stderr, and steps on stderr; `results` are the switches so far."""

    def __init__(self, as_json: bool) -> None:
        self.results: dict[str, SwitchResult] = {}
        self._as_json = as_json
        self._stream: TextIO = sys.stderr if as_json else sys.stdout
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None

    def unchanged(self, name: str) -> None:
        """Show that a switch is as it should be."""
        self.results[name] = SwitchResult(name, "unchanged")
        print(f"{name}: no change", file=self._stream)

    def differs(self, name: str, change: FrrChange, before: str) -> None:
        """Show the difference between a switch's configuration, which `before` names, and the rendered one."""
        text = change.shown(name, before, "rendered")
        removed, added = ([" | ".join((*line.blocks, str(line))) for line in lines] for lines in (change.removed, change.added))
        self.results[name] = SwitchResult(name, "differs", removed=removed, added=added, diff=text)
        print(_coloured(text) if has_colour(self._stream) else text, file=self._stream)

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Show the steps in one line of a terminal while the block runs."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status("") as self._status:
            yield
        self._status = None

    def step(self, place: str, text: str) -> None:
        """Show what happens now, in the line of the terminal, or in one of its own."""
        if self._status is not None:
            self._status.update(f"{place}: {text}")
        else:
            print(f"headway: {place}: {text}", file=sys.stderr)

    def ended(self, name: str, state: str, reason: str = "") -> None:
        """Record how a switch has ended, and show it without a reason, which is an error that is shown in another place."""
        result = self.results[name]
        result.state, result.reason = state, reason
        if not reason:
            self._console.print(f"{name}: {state}", markup=False, soft_wrap=True)

    def print_json(self) -> None:
        """Print the results as a JSON list, if that was asked for."""
        if self._as_json:
            print(json.dumps([asdict(result) for result in self.results.values()], indent=2))


def _coloured(text: str) -> str:
    lines = (f"\x1b[{_COLOURS[line[0]]}m{line}\x1b[0m" if line[:1] in _COLOURS else line for line in text.split("\n"))
    return "\n".join(lines)
