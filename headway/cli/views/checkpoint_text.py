"""Prints the lines of the checkpoint reader as text for people."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from headway.cli.checkpoint_process import Line
from headway.cli.terminal import print_table, stdout_console
from headway.report.units import count, moment, size

NOTHING = "-"
_WHEN = "committed (UTC)"


def print_error(line: Line) -> None:
    print(f"error: {line['reason']}", file=sys.stderr)


# --- ls ---------------------------------------------------------------------------------------------------------------


def print_list(lines: Iterable[Line]) -> None:
    """A table, newest first; what was never committed below."""
    found = list(lines)
    checkpoints = [line for line in found if line["what"] == "checkpoint"]
    committed = [line for line in checkpoints if line["made_at"] is not None]
    if checkpoints:
        shown = [*reversed(committed), *(line for line in checkpoints if line["made_at"] is None)]
        print_table(
            stdout_console(),
            [_row(line) for line in shown],
            ("tiers", "committed", "state"),
            ("generation", "bytes", "committed"),
        )
    elif not any(line["what"] == "error" for line in found):
        print("no checkpoint yet")
    for line in found:
        if line["what"] == "damaged":
            print(
                f"error: the chain is damaged: {line['reason']}; run `headway checkpoint adopt` to see what can be done",
                file=sys.stderr,
            )
        elif line["what"] == "error":
            print_error(line)


def _row(line: Line) -> Mapping[str, str]:
    return {
        "step": NOTHING if line["step"] is None else f"{line['step']:,}",
        "generation": NOTHING if line["generation"] is None else str(line["generation"]),
        "tiers": " ".join(line["tiers"]) or NOTHING,
        "bytes": NOTHING if line["bytes"] is None else size(line["bytes"]),
        _WHEN: NOTHING if line["made_at"] is None else moment(line["made_at"])[:16],
        "state": ", ".join(line["states"]),
    }


# --- verify -----------------------------------------------------------------------------------------------------------


def print_verified(lines: Iterable[Line]) -> None:
    """A line for each checkpoint, and below it each file that was refused."""
    refused: set[str] = set()
    with _progress() as show:
        for line in lines:
            match line["what"]:
                case "progress":
                    show(line["done"], line["of"])
                case "refused":
                    if line["checkpoint"] not in refused:
                        print(f"{line['checkpoint']}: refused")
                    refused.add(line["checkpoint"])
                    print(f"  {line['name']}: {line['reason']}")
                case "verified":
                    print(f"{line['checkpoint']}: every byte verified ({size(line['bytes'])} of tensors)")
                case "error":
                    print_error(line)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console  # noqa: PLC0415 (only what people read needs it)
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verify", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


# --- diff -------------------------------------------------------------------------------------------------------------


def print_differences(lines: Iterable[Line]) -> None:
    """A line for each difference, then their number."""
    for line in lines:
        match line["what"]:
            case "difference":
                print(f"{line['kind']:8} {line['name']}  {_difference(line)}")
            case "compared":
                found = count(line["differences"], "difference") if line["differences"] else "no difference"
                print(f"{count(line['tensors'], 'tensor')} and the objects compared: {found}")
            case "error":
                print_error(line)


def _difference(line: Line) -> str:
    match line["kind"]:
        case "added":
            return str(line["new"])
        case "removed":
            return str(line["old"])
        case "values":
            apart = "not finite" if line["max_abs"] is None else f"{line['max_abs']:.3g}"
            return f"largest difference {apart}, {line['equal']:,} of {line['elements']:,} elements equal"
        case _:
            before, after = (NOTHING if value is None else value for value in (line["old"], line["new"]))
            return f"{before} -> {after}"


# --- export, import, adopt --------------------------------------------------------------------------------------------


def print_exported(lines: Iterable[Line]) -> None:
    for line in lines:
        if line["what"] == "exported":
            print(f"{line['file']}  {size(line['bytes'])}")
        elif line["what"] == "error":
            print_error(line)


def print_imported(lines: Iterable[Line]) -> None:
    for line in lines:
        if line["what"] == "imported":
            print(f"{line['run']}: {count(line['tensors'], 'tensor')}, {size(line['bytes'])}, as {line['checkpoint']}")
        elif line["what"] == "error":
            print_error(line)


def print_adoption(lines: Iterable[Line], name: str) -> None:
    """Print what was found, what would be done, and what was done."""
    last = None
    for line in lines:
        match line["what"]:
            case "found" if line["refused"]:
                print(f"{line['directory']}  refused: {line['refused']['name']}: {line['refused']['reason']}")
            case "found":
                print(f"{line['directory']}  verified")
            case "plan":
                last = line
                print(f"{line['damaged']}; {count(line['records'], 'record')} can be read")
            case "adopted":
                last = None
                print(f"the chain was moved to {line['moved_to']} and rebuilt; newest: {line['newest'] or 'none'}")
            case "error":
                print_error(line)
    if last is not None:
        what = count(last["checkpoints"], "checkpoint")
        print(f"`headway checkpoint adopt {name} --yes` moves the chain aside and rebuilds it with {what}")
