"""Formats terminal output: counts, bars, tables with the columns that fit, and progress lines."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from headway.jobspec.problem import wrapped
from headway.jobspec.suggest import listed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BAR = 24
"""Width in cells of a full bar."""

_PIPE_WIDTH = 130
# Between two columns of `table`.
_GAP = 2


def has_colour(stream: TextIO, when: str = "auto") -> bool:
    """Whether to print in colour: `always`, `never`, or `auto`. For `auto` the variables NO_COLOR (no-color.org) and FORCE_COLOR decide,
    then whether the stream is a terminal that is not `dumb`."""
    if when != "auto":
        return when == "always"
    if os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("FORCE_COLOR", "")
    if forced:
        return forced != "0"
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def add_color(parser: argparse.ArgumentParser) -> None:
    """The option `--color`, as `has_colour` reads it."""
    parser.add_argument(
        "--color",
        choices=["auto", "always", "never"],
        default="auto",
        help="colour the text; auto: on a terminal, unless NO_COLOR is set, or with FORCE_COLOR (default: %(default)s)",
    )


def width_of(stream: TextIO) -> int | None:
    """The columns of the terminal, or those that COLUMNS sets for it; None for a file or a pipe, whose readers search whole lines."""
    if not stream.isatty():
        return None
    import shutil  # noqa: PLC0415 (a check in CI has no terminal)

    return shutil.get_terminal_size().columns


def stdout_console() -> "Console":
    """A console on stdout, 130 columns wide where that is no terminal; what it prints reads without colour."""
    from rich.console import Console  # noqa: PLC0415 (only what people read needs it)

    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def print_line(console: "Console", text: str, hang: int = 0, style: str | None = None) -> None:
    """A line of text as it is; on a terminal wrapped between words to its width, further lines `hang` columns to the right."""
    shown = wrapped(text, console.width if console.is_terminal else None, " " * hang)
    console.print(shown, markup=False, soft_wrap=True, style=style)


def bar(share: float, console: "Console", cells: int = BAR) -> str:
    """A bar as long as the share of `cells`; of `#` where the console's encoding has no blocks."""
    block = "█" if console.encoding.startswith("utf") else "#"
    return block * round(cells * min(1.0, max(0.0, share)))


class StopError(Exception):
    """The verb ends with this exit code; the message is for people, and empty if everything is printed already."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


def fail(message: str, code: int) -> int:
    """Print the error on stderr; return `code`, with which the verb exits."""
    print(f"error: {message}", file=sys.stderr)
    return code


def progress(text: str) -> None:
    """Report slow work on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        print(f"{text} ...", file=sys.stderr)


def print_table(console: "Console", rows: Sequence[Mapping[str, str]], texts: Sequence[str], dispensable: Sequence[str]) -> None:
    """The rows with their keys as the heads of columns: numbers to the right, the columns called `texts` to the left.

    A console that is too narrow for all gets none of the dispensable columns that stand in the way, the first of them first.
    """
    table, missing = fitted_table(console.width, rows, texts, dispensable)
    console.print(table)
    if missing:
        console.print(f"  too narrow for {listed(missing)}", markup=False)


def fitted_table(
    width: int, rows: Sequence[Mapping[str, str]], texts: Sequence[str], dispensable: Sequence[str]
) -> tuple["Table", list[str]]:
    """The same table, for so many columns, and the names of the columns that it omits."""
    shown = _fitted(rows, dispensable, width)
    return _table(shown, texts), [name for name in rows[0] if name not in shown[0] and name.strip()]


def _table(rows: Sequence[Mapping[str, str]], texts: Sequence[str]) -> "Table":
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    found = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, _GAP - 1, 0, 0))
    for name in rows[0]:
        found.add_column(name.strip(), justify="left" if name in texts else "right", no_wrap=True)
    for row in rows:
        found.add_row(*row.values())
    return found


def _fitted(rows: Sequence[Mapping[str, str]], dispensable: Sequence[str], width: int) -> list[dict[str, str]]:
    found = [dict(row) for row in rows]
    for name in dispensable:
        if _width(found) <= width:
            break
        for row in found:
            row.pop(name, None)
    return found


def _width(rows: Sequence[Mapping[str, str]]) -> int:
    widest = [max(len(name.strip()), *(len(row[name]) for row in rows)) for name in rows[0]]
    return sum(widest) + _GAP * (len(widest) - 1)
