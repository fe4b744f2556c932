"""Finds the one word of a script that makes it run under headway without a job: `torchrun`, which becomes `headway torchrun`."""

import re

from msgspec import Struct

from headway.sbatch.syntax import Script, below

_WORD = re.compile(
    r"(?<![\w./-])(?P<word>(?:python[0-9.]*\s+(?:-u\s+)?-m\s+torch\.distributed\.(?:run|launch))|(?:[\w./${}-]*/)?torchrun)(?![\w-])"
)
_OURS = re.compile(r"headway\s+$")


class Edit(Struct, frozen=True):
    """A line of the script, and the same line with `headway torchrun`."""

    line: int
    before: str
    after: str


def one_word_change(script: Script) -> Edit | None:
    """Return the change of the line where torchrun is started; None where none is, or where headway is there already."""
    lines = script.source.splitlines()
    comments = {(each.start_point.row, each.start_point.column) for each in below(script.root, "comment")}
    for number, line in enumerate(lines):
        code = min((column for row, column in comments if row == number), default=len(line))
        found = _WORD.search(line[:code])
        if found is None or _is_only_named(line, found.start("word")):
            continue
        if _OURS.search(line[: found.start("word")]):
            return None
        after = f"{line[: found.start('word')]}headway torchrun{line[found.end('word') :]}"
        return Edit(number + 1, line, after)
    return None


def _is_only_named(line: str, start: int) -> bool:
    """Whether the word is an argument of something that prints or looks for it."""
    return re.match(r"\s*(echo|printf|which|command -v|type)\b", line) is not None and start > 0
