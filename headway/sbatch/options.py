"""Reads the options of sbatch, srun and the launchers from their words."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from headway.sbatch.text import EMPTY, Text, names, text

# sbatch(1) and srun(1) of Slurm 24.05; a letter that both have means the same in both, but for srun's -l, -u and -X.
SHORT = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "I": "immediate",
    "i": "input",
    "J": "job-name",
    "K": "kill-on-bad-exit",
    "k": "no-kill",
    "L": "licenses",
    "l": "label",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "s": "oversubscribe",
    "S": "core-spec",
    "t": "time",
    "u": "unbuffered",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
FLAGS = names(
    """
    contiguous disable-stdout-job-summary exact get-user-env hold ignore-pbs label no-container-entrypoint no-container-mount-home
    container-mount-home container-entrypoint container-remap-root no-container-remap-root container-writable container-readonly
    no-kill no-requeue overcommit overlap parsable preserve-env pty quiet reboot requeue spread-job stepmgr test-only unbuffered
    use-min-nodes verbose external-launcher disable-status
    """
)
# With a value only behind `=`.
MAYBE = names(
    """
    exclusive oversubscribe nice kill-on-bad-exit immediate propagate get-user-env resv-ports
    """
)


class Option(Struct, frozen=True):
    """An option by its long name, as it was written, on a line of the script. The value of a switch is empty."""

    name: str
    value: Text
    written: str
    line: int = 0


class Command(Struct, frozen=True):
    """The options of a command, and the words behind them."""

    options: tuple[Option, ...]
    rest: tuple[Text, ...]

    def last(self, *names: str) -> Option | None:
        """Return the last of the options of these names: of two, it counts."""
        return next((option for option in reversed(self.options) if option.name in names), None)


def of_slurm(words: Sequence[Text], line: int = 0) -> Command:
    """Read the options of sbatch or srun at the beginning of the words."""
    return _read(words, SHORT, FLAGS, MAYBE, line)


def read_options(
    words: Sequence[Text], short: Mapping[str, str], flags: Collection[str], line: int = 0, normal: bool = True
) -> Command:
    """Read the options of another program: those with one letter by the table, long ones with a value unless they are flags."""
    return _read(words, short, flags, frozenset(), line, normal)


def directives(line_text: str, line: int) -> tuple[Option, ...] | None:
    """Read the options of a line `#SBATCH ...`; None if its quotes are not closed."""
    try:
        words = shlex.split(line_text)
    except ValueError:
        return None
    # A `#` in a word is a part of it: `--container-image=REGISTRY#NAME`.
    comment = next((index for index, word in enumerate(words) if word.startswith("#")), len(words))
    words = words[:comment]
    found = of_slurm([text(word) for word in words], line)
    more = tuple(Option("", EMPTY, word.shown, line) for word in found.rest)
    return (*found.options, *more)


def _read(
    words: Sequence[Text],
    short: Mapping[str, str],
    flags: Collection[str],
    maybe: Collection[str],
    line: int,
    normal: bool = False,
) -> Command:
    found: list[Option] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word.literal == "--":
            at += 1
            break
        if not word.starts("-") or word.literal == "-":
            break
        at += 1
        written = word.shown
        if word.starts("--"):
            name_text, value = word.removeprefix("--").partition("=")
            name = name_text.shown
        else:
            letters = word.removeprefix("-")
            first = letters.shown[:1]
            name = short.get(first, first)
            value = letters.removeprefix(first) if letters.removeprefix(first).parts else None
            if value is not None and value.starts("="):
                value = value.removeprefix("=")
            if value is not None and name in flags:
                # `-lu`: several switches in one word.
                found += [Option(short.get(letter, letter), EMPTY, written, line) for letter in letters.shown]
                continue
            # `-rdzv_backend`: Python's launchers take long names behind one dash as well.
            if normal and value is not None and len(letters.shown) > 2 and first not in short:
                name_text, value = letters.partition("=")
                name = name_text.shown
        name = name.replace("_", "-")
        if value is None and name not in flags and name not in maybe and at < len(words) and not _is_option(words[at]):
            value = words[at]
            written = f"{written} {value.shown}"
            at += 1
        found.append(Option(name, value or EMPTY, written, line))
    return Command(tuple(found), tuple(words[at:]))


def _is_option(word: Text) -> bool:
    return word.literal is not None and re.match(r"--?[A-Za-z]", word.shown) is not None
