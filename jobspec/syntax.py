"""Explains errors of YAML's syntax: what is wrong in the words of a reader, where it begins, and how to mend it.

libyaml reports the place where reading had to stop, which may be the end of the file for a quote that is not closed on line 3.
"""

import json
import re
from typing import NamedTuple

import yaml

from headway.jobspec.credentials import starred
from headway.jobspec.document import Span

_TAB = "\t"
_NO_BREAK = "\u00a0"
_FLOW = re.compile(r"did not find expected ',' or '([\]}])'")
_HINT = "indent with spaces, put a space after `:` and quote texts that contain `: ` or ` #`"
# A range of more names is not written out.
_MOST_NAMES = 64
_ITEM = 'close the list, and quote an item with braces between brackets: `"--tp={layout.tp}"`'


class Explained(NamedTuple):
    """An error in words. `fix` replaces the text at `place`, if it is known."""

    message: str
    hint: str
    place: Span | None
    fix: str | None = None


def explain(error: yaml.YAMLError, lines: list[str]) -> Explained:
    """Return the error of the text with these lines, at its cause."""
    what = str(getattr(error, "problem", None) or "not YAML")
    context = str(getattr(error, "context", None) or "")
    here, begin = _place(getattr(error, "problem_mark", None)), _place(getattr(error, "context_mark", None))
    found = None
    if here is not None and here.line < len(lines):
        found = _conflict(lines) or _indent(lines[: here.line + 1]) or _tab(lines, here)
        found = found or _by_kind(what, context, lines, here, begin)
    if found is not None and found.place is not None and _has_credential(lines[found.place.line]):
        found = Explained(found.message, _HINT, found.place)
    if found is not None:
        return found._replace(message=f"the text is not YAML: {found.message}")
    if what == "could not find expected ':'":
        here = begin or here
    return Explained(f"the text is not YAML: {what}" + (f" {context}" if context else ""), _HINT, here)


def _has_credential(line: str) -> bool:
    """Return whether the line gives a value to a secret's name; its syntax is wrong, so the colon may be too."""
    spaced = re.sub(r"\s*[:=]\s*", ": ", line)
    return starred(spaced) != spaced


def _place(mark: yaml.Mark | None) -> Span | None:
    return None if mark is None else _at(mark.line, mark.column)


def _at(line: int, column: int, length: int = 1) -> Span:
    return Span(line, column, line, column + length)


def _conflict(lines: list[str]) -> Explained | None:
    """Explain the conflict markers of git."""
    signs = ("<" * 7, ">" * 7, "=" * 7)
    marked = next((n for n, line in enumerate(lines) if line.startswith(signs) and re.match(r"<{7} |>{7} |={7}$", line)), None)
    if marked is None:
        return None
    hint = "keep one of the two sides, and remove the lines with `<<<<<<<`, `=======` and `>>>>>>>`"
    return Explained("the file has conflict markers of a merge", hint, _at(marked, 0, len(lines[marked].rstrip())))


def _indent(lines: list[str]) -> Explained | None:
    """Explain no-break spaces in an indentation, which look like spaces."""
    for number, line in enumerate(lines):
        indent = re.match(rf"[ {_NO_BREAK}]*", line) if _NO_BREAK in line else None
        if indent is not None and _NO_BREAK in indent[0]:
            message = "no-break spaces (U+00A0) in the indentation"
            return Explained(message, "indent with plain spaces", _at(number, 0, indent.end()), " " * indent.end())
    return None


def _tab(lines: list[str], here: Span) -> Explained | None:
    """Explain a tab in an indentation."""
    indent = re.match(r"[ \t]*", lines[here.line])
    if indent is None or _TAB not in indent[0] or here.column > indent.end():
        return None
    before = next((line for line in reversed(lines[: here.line]) if line.strip()), "")
    # A field of an item is in the column of its first one.
    dash = re.match(r" *(- +)", before) if not lines[here.line].lstrip().startswith("- ") else None
    deeper = (2 if before.rstrip().endswith(":") else 0) + (len(dash[1]) if dash is not None else 0)
    fix = " " * (len(before) - len(before.lstrip()) + deeper)
    return Explained("a tab in the indentation", "indent with spaces", _at(here.line, 0, indent.end()), fix)


def _by_kind(what: str, context: str, lines: list[str], here: Span, begin: Span | None) -> Explained | None:
    line = lines[here.line]
    if begin is not None and context.endswith("a quoted scalar") and what.startswith("found unexpected"):
        return _open_quote(lines, begin)
    if flow := _FLOW.fullmatch(what):
        return _open_bracket(flow[1], lines, here, begin)
    if what == "could not find expected ':'" and begin is not None:
        return _no_colon(lines[begin.line], begin)
    if what.startswith("mapping values are not allowed"):
        return _colon_before(lines, here) or _lost_indent(lines, here) or _second_colon(line, here)
    if what == "found character that cannot start any token":
        character = line[here.column : here.column + 1]
        value = line[here.column :].split(" #", maxsplit=1)[0].rstrip()
        place = _at(here.line, here.column, max(1, len(value)))
        quoted = json.dumps(value, ensure_ascii=False)
        bare = value.strip("@`%")
        if re.search(r"(?:^|[\s{,])(?:name|cluster|group|kind|fabric|preset):\s*$", line[: here.column]) and re.match(
            r"[a-z0-9]", bare
        ):
            # The names of a spec have no such letter.
            return Explained(f"a value cannot begin with `{character}`", f"leave the `{character}` out: `{bare}`", place, bare)
        hint = f"quote it, `{quoted}`, or leave the `{character}` out"
        return Explained(f"a value cannot begin with `{character}`", hint, place, quoted)
    if what == "did not find expected key":
        return _no_key(lines, here)
    if what == "did not find expected '-' indicator":
        item = re.match(r"(\s*- )(\{[^{}]*\}\S.*?)\s*$", line)
        if item is not None:
            quoted = json.dumps(item[2], ensure_ascii=False)
            place = _at(here.line, item.end(1), len(item[2]))
            return Explained("an item that begins with `{` is a mapping", f"quote it: `{quoted}`", place, quoted)
        return _no_item(lines, here)
    if what.startswith("block sequence entries are not allowed"):
        return Explained("a list cannot begin on the line of its field", "begin each item with `- ` on a new line", here)
    if what.startswith("found unknown escape character"):
        return Explained("an unknown escape after `\\`", "write `\\\\` for a backslash, or use single quotes", here)
    return None


def _no_item(lines: list[str], here: Span) -> Explained:
    """Explain a line in a list that begins no item."""
    opened = _odd_quote(lines[: here.line + 1])
    if opened is not None and opened.line < here.line:
        return _open_quote(lines, opened)
    return Explained("this is not an item of the list before it", "begin it with `- ` in the column of the others", here)


def _no_key(lines: list[str], here: Span) -> Explained:
    """Explain a line, or the rest of one, that libyaml cannot make a field of."""
    line, opened = lines[here.line], _odd_quote(lines[: here.line + 1])
    if opened is not None and opened.line < here.line:
        return _open_quote(lines, opened)
    before = line[: here.column].rstrip()
    if before.endswith(('"', "'")):
        value = before[before.index(before[-1]) :]
        place = _at(here.line, before.index(before[-1]), len(line.rstrip()) - before.index(before[-1]))
        joined = f"{value[:-1]}{line[len(before) :].rstrip()}{value[-1]}"
        return Explained("there is text after the closing quote", f"write `{joined}`", place, joined)
    at = next(
        (lines[at] for at in range(here.line - 1, -1, -1) if lines[at].strip() and not lines[at].lstrip().startswith("#")), ""
    )
    hint = f"indent it like the other lines of its section; the line before has {len(at) - len(at.lstrip())} spaces"
    return Explained("the indentation fits no section before it", hint, _word(line, here))


def _odd_quote(lines: list[str]) -> Span | None:
    """Return the first quote that begins a value and is not closed on its line."""
    for number, line in enumerate(lines):
        found = re.match(r"""[^"'#]*?(?::|-|\[|,)\s+(")(?:[^"\\]|\\.)*$""", line)
        if found is not None:
            return _at(number, found.start(1))
    return None


def _word(line: str, here: Span) -> Span:
    """Return the first word of the line, up to its colon."""
    found = re.match(r"(\s*(?:- )*)([^\s:]*)", line)
    return here if found is None else _at(here.line, found.end(1), max(1, len(found[2])))


def _open_quote(lines: list[str], begin: Span) -> Explained:
    quote = lines[begin.line][begin.column]
    value = lines[begin.line][begin.column :].rstrip()
    place = _at(begin.line, begin.column, len(value))
    return Explained(f"the quote `{quote}` is not closed", f"write `{value}{quote}`", place, f"{value}{quote}")


def _open_bracket(closing: str, lines: list[str], here: Span, begin: Span | None) -> Explained:
    """Explain brackets that are not closed; on one line an item with braces, which begin a mapping, is likely the cause."""
    what = "list" if closing == "]" else "mapping"
    listed = re.search(r":\s+([\w.-]+\[[^\]\s]*\][^\s{}]*?)(?=\}|,\s|\s|$)", lines[here.line])
    if listed is not None and closing == "}" and listed.start(1) <= here.column <= listed.end(1):
        quoted = json.dumps(listed[1], ensure_ascii=False)
        place = _at(here.line, listed.start(1), len(listed[1]))
        return Explained("a text with `[` in a mapping in braces is not quoted", f"quote it: `{quoted}`", place, quoted)
    ranged = re.search(r"\[\s*([\w.-]*)\[([0-9]{1,4})-([0-9]{1,4})\]\s*\]", lines[here.line])
    if ranged is not None and closing == "]" and 0 < int(ranged[3]) - int(ranged[2]) < _MOST_NAMES:
        names = [f"{ranged[1]}{number:0{len(ranged[2])}}" for number in range(int(ranged[2]), int(ranged[3]) + 1)]
        place = _at(here.line, ranged.start(), ranged.end() - ranged.start())
        written = f"[{', '.join(names)}]"
        return Explained("a range in brackets stands for no names here", f"write them out: `{written}`", place, written)
    if begin is None or begin.line == here.line:
        hint = _ITEM if closing == "]" else "separate the fields by `, `, and quote a text with brackets or braces in it"
        return Explained(f"no `,` or `{closing}` after an item of the {what}", hint, here)
    opening = "[" if closing == "]" else "{"
    if "{" in lines[here.line][: here.column] and closing == "]":
        return Explained(f"no `,` or `{closing}` after an item of the list", _ITEM, here)
    message = f"the {what} that begins with `{opening}` is not closed"
    return Explained(message, f"close it with `{closing}`", begin)


def _no_colon(line: str, begin: Span) -> Explained:
    if _NO_BREAK in line:
        place = _at(begin.line, line.index(_NO_BREAK))
        return Explained("a no-break space (U+00A0) in place of a space", "write a plain space", place, " ")
    joined = re.match(r"([\w-]+):(\S.*?)\s*$", line[begin.column :])
    if joined:
        fix = f"{joined[1]}: {joined[2]}"
        place = _at(begin.line, begin.column, joined.end(2))
        return Explained("no space after the `:`", f"write `{fix}`", place, fix)
    word = line[begin.column :].split(" #", maxsplit=1)[0].rstrip()
    equals = re.fullmatch(r"([\w-]+)\s*(?:=>|:=|->|==?)\s*(\S.*)", word)
    place = _at(begin.line, begin.column, max(1, len(word)))
    if equals:
        return Explained("`=` in place of `:`", f"write `{equals[1]}: {equals[2]}`", place, f"{equals[1]}: {equals[2]}")
    return Explained("a line without a `:` between a field and its value", "put `: ` after the field's name", place)


def _colon_before(lines: list[str], here: Span) -> Explained | None:
    """Explain a line without a space after its colon, which libyaml reads as a text that continues in the next line, `pp:4`."""
    at = next((at for at in range(here.line - 1, -1, -1) if lines[at].strip() and not lines[at].lstrip().startswith("#")), None)
    joined = None if at is None else re.match(r"(\s*(?:- )?)([\w-]+):([^\s/:][^:]*?)\s*$", lines[at])
    if at is None or joined is None:
        return None
    fix = f"{joined[2]}: {joined[3]}"
    return Explained("no space after the `:`", f"write `{fix}`", _at(at, joined.end(1), joined.end(3) - joined.end(1)), fix)


def _lost_indent(lines: list[str], here: Span) -> Explained | None:
    """Explain a line that is not indented like the rest of its section: the field before it has no value, and the line after it is
    indented."""
    above = [at for at in range(here.line) if lines[at].strip() and not lines[at].lstrip().startswith("#")][-2:]
    if len(above) < 2:
        return None
    before, field = (lines[at] for at in above)
    wanted, indent, earlier = (len(each) - len(each.lstrip()) for each in (lines[here.line], field, before))
    is_section = re.fullmatch(r"\s*[\w-]+:\s*(?:#.*)?", before) is not None and earlier == indent
    if wanted <= indent or not (is_section or earlier == wanted):
        return None
    place = _word(field, _at(above[1], 0))
    if is_section:
        message = f"the line is not indented below `{before.split(':')[0].strip()}`, and the next one is"
        return Explained(message, f"indent it by {wanted} spaces, like the line after it", place)
    message = f"the line is indented by {indent} spaces, and those around it by {wanted}"
    return Explained(message, f"indent it by {wanted} spaces, or the next one by {indent}", place)


def _second_colon(line: str, here: Span) -> Explained:
    before = re.match(r"\s*(?:- )*[^\s:#][^:#]*:\s+(?=\S)", line)
    if before is not None and before.end() <= here.column:
        value = line[before.end() :].split(" #", maxsplit=1)[0].rstrip()
        place = _at(here.line, before.end(), max(1, len(value)))
        quoted = json.dumps(value, ensure_ascii=False)
        return Explained("a value with `: ` in it is not quoted", f"write `{quoted}`", place, quoted)
    hint = "indent it like the line before, or leave the value there empty"
    return Explained("the line is indented deeper than the field before it, which has a value", hint, _word(line, here))
