"""Splits a shell script, a systemd unit or a file of `NAME=VALUE` into its simple commands, each word with its line.

Nothing is expanded: `$NAME` stays unchanged. Quotes that do not close on their line are letters, so that no text is
refused.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from msgspec import Struct

# The quoting pieces of a word. `$(...)` in double quotes may have quotes of its own.
_QUOTED = r"""\\.|'[^'\n]*'|"(?>\\.|\$\([^()\n]*\)|[^"\\\n])*+\""""
_EXPANDED = r"\$\(\([^()\n]*\)\)|\$\([^()\n]*\)|\$\{[^{}\n]*\}|`[^`\n]*`"
_TOKEN = re.compile(
    rf"""
      (?P<space>(?:[^\S\n]|\\\n)+)
    | (?P<comment>\#[^\n]*|(?m:^);(?!;)[^\n]*)
    | (?P<redirect>(?P<stream>[0-9]*|&)(?P<way><<<|<<-?|<>|<|>>|>\||>)(?P<copy>&?))
    | (?P<end>\|\|?|[\n;&()])
    | (?P<word>(?>\\\n|{_QUOTED}|{_EXPANDED}|[^\s;&|()<>])+)
    """,
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(rf"(?P<joined>\\\n)|(?P<quoted>{_QUOTED})|{_EXPANDED}", re.DOTALL)
_ESCAPED = re.compile(r"""\\(?:\n|(["\\$`]))""")

_KEYWORDS = {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "}", "time"}
_SHELLS = {"sh", "bash", "dash", "ksh", "zsh"}


class ShellCommand(Struct, frozen=True):
    """`words` without quotes. `target`: the file of its output. `piped`: its input is the previous command's output."""

    words: tuple[str, ...]
    lines: tuple[int, ...]
    target: str | None = None
    piped: bool = False

    @property
    def line(self) -> int:
        return self.lines[0]


def commands(text: str, line: int = 1) -> Iterator[ShellCommand]:
    """Yield the commands in the order of the text, whose first line has this number; the command in `sh -c` follows its
    caller."""
    words: list[tuple[str, int]] = []
    target, piped, redirect = None, False, ""
    for token in _TOKEN.finditer(text.replace("\r\n", "\n") + "\n\n"):
        if token["word"] is not None:
            word = _PIECE.sub(_without_quotes, token["word"])
            if not redirect:
                words.append((word, line))
            elif redirect == ">":
                target = word
            redirect = ""
        elif token["redirect"] is not None:
            redirect = _redirect(token)
        elif token["end"] is not None:
            yield from _command(words, target, piped)
            words, target, piped, redirect = [], None, token["end"] == "|", ""
        line += token[0].count("\n")


def _redirect(token: re.Match[str]) -> str:
    """Return `>` if the next word is the file of standard output."""
    is_output = token["way"] in {">", ">>", ">|"} and token["stream"] in {"", "1", "&"} and not token["copy"]
    return ">" if is_output else "other"


def _command(words: list[tuple[str, int]], target: str | None, piped: bool) -> Iterator[ShellCommand]:
    while words and words[0][0] in _KEYWORDS:
        words = words[1:]
    if not words:
        return
    yield ShellCommand(tuple(word for word, _ in words), tuple(line for _, line in words), target, piped)
    shell = next((index for index, (word, _) in enumerate(words) if word.rpartition("/")[2] in _SHELLS), len(words))
    for (option, _), (script, line) in pairwise(words[shell + 1 :]):
        if re.fullmatch(r"-[a-z]*c", option):
            yield from commands(script, line)
            return


def _without_quotes(piece: re.Match[str]) -> str:
    quoted = piece["quoted"]
    if piece["joined"]:
        return ""
    if quoted is None:
        return piece[0]
    if quoted[0] == '"':
        return _ESCAPED.sub(lambda escaped: escaped[1] or "", quoted[1:-1])
    return quoted[1:] if quoted[0] == "\\" else quoted[1:-1]
