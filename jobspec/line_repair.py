"""Finds the change of one line, or of its indentation, with which a text that is not YAML reads as a document of headway.

Which section a line belongs to shows in the fields that a section has, and not in the text alone: each change is tried, and the one that
leaves the fewest problems is meant.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from headway.jobspec.credentials import starred
from headway.jobspec.document import Document, Span
from headway.jobspec.problem import Problem

_SYNTAX = "HW105"
# A spec is a page or two. Of a longer text, each try would take long.
_LONGEST = 16_384
# The tries.
_MOST = 40
_FIELD = re.compile(r"(\s*)((?:- +)*)([\w.-]+):(?=\s|$)")
# U+FF1A, U+FF0C and others, which keyboards for Chinese and Japanese write.
_FULL_WIDTH = {0xFF1A: ":", 0xFF0C: ",", 0xFF0D: "-", 0xFF3B: "[", 0xFF3D: "]", 0xFF5B: "{", 0xFF5D: "}", 0x3000: " "}
_BLANK = re.compile(r"\s*(?:#|$)")
_FENCE = re.compile(r"\s*(?:```|~~~)\s*\w*\s*$")
# Where the next field of a line begins, `nodes: 1 seed: 2`, and the next item.
_NEXT_FIELD = re.compile(r"\s*[,;]?\s+(?=[A-Za-z_]\w*:(?:\s|$))")
_NEXT_ITEM = re.compile(r"\s*[,;]?\s+(?=- \S)")
# A text that begins with a sign of YAML, between brackets or braces: the pattern `*.txt`.
_SIGN = re.compile(r"(?<=[\[{,:])(\s*)([*&!@%`][^\s,\[\]{}\"'][^,\[\]{}\"']*|[*&!@%`])(?=\s*[,\]}])")
_PAIRS = {"]": "[", "}": "{"}


class _Change(NamedTuple):
    """A mistake of a line, and the text without it; `fix` replaces `place`, if the change is in one line. A document with others may
    have so many problems `left` after the change, and the change is in so many lines, its `size`."""

    message: str
    hint: str
    place: Span
    lines: list[str]
    fix: str | None = None
    left: int = 0
    size: int = 1


def with_tried_mend(problem: Problem, document: Document, judge: Callable[[str], int | None]) -> Problem:
    """Return the problem of the text's syntax with a mend that was tried. `judge` returns the number of problems of a text, None if it
    cannot be read."""
    lines, span = document.lines(), problem.span
    if problem.code != _SYNTAX or span is None or len(document.text) > _LONGEST or span.line >= len(lines):
        return problem
    best, fewest = None, (1 << 10, 0)
    if problem.fix is not None and span.line == span.end_line:
        line = lines[span.line]
        mended = f"{line[: span.column]}{problem.fix}{line[span.end_column :]}"
        left = judge("\n".join([*lines[: span.line], mended, *lines[span.line + 1 :]]))
        fewest = fewest if left is None else (left, 0)
    for _, change in zip(range(_MOST), _changes(lines, span.line), strict=False):
        left = None if fewest[0] == 0 and fewest[1] <= change.size else judge("\n".join(change.lines))
        if left is not None and left <= change.left and (left, change.size) < fewest:
            best, fewest = change, (left, change.size)
    if best is None:
        return problem
    return replace(problem, message=f"the text is not YAML: {best.message}", hint=best.hint, span=best.place, fix=best.fix)


def _changes(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield changes of the line, and of the one before it, the likeliest first."""
    before = _line_before(lines, at)
    yield from _without_fences(lines)
    yield from _without_end(lines)
    for here in (at, before):
        if here is not None:
            yield from _blank_after_dash(lines, here)
            yield from _with_dashes(lines, here)
            yield from _as_comment(lines, here)
    for here in dict.fromkeys((at, before, _odd_line(lines, at))):
        if here is not None and starred(lines[here]) == lines[here]:
            yield from _with_colon(lines, here)
            yield from _separated(lines, here)
            yield from _on_two_lines(lines, here)
            yield from _with_signs_quoted(lines, here)
            yield from _closed(lines, here)
            yield from _between_quotes(lines, here)
            yield from _in_braces(lines, here)
            yield from _quoted(lines, here)
    is_field = _FIELD.match(lines[at]) is not None
    if not is_field:
        yield from _with_dash(lines, at)
    moved = [change for here in (at, before, _section_above(lines, at)) if here is not None for change in _moved(lines, here)]
    # Columns are even, but in documents that are indented otherwise.
    yield from sorted(moved, key=lambda change: len(change.fix or "") % 2)
    if is_field:
        yield from _with_dash(lines, at)


def _line_before(lines: Sequence[str], at: int) -> int | None:
    return next((here for here in range(at - 1, -1, -1) if not _BLANK.match(lines[here])), None)


def _odd_line(lines: Sequence[str], at: int) -> int | None:
    """Return the first line, down to this one, with a quote that is not closed on it."""
    return next((here for here in range(at + 1) if any(_code(lines[here]).count(quote) % 2 for quote in "\"'")), None)


def _section_above(lines: Sequence[str], at: int) -> int | None:
    """Return the line before with the name of a section that is indented less than this one, if it is at the left."""
    own = _indent(lines[at])
    here = next((here for here in range(at - 1, -1, -1) if not _BLANK.match(lines[here]) and _indent(lines[here]) < own), None)
    return here if here is not None and re.match(r"\s*[\w-]+:\s*(?:#.*)?$", lines[here]) else None


def _code(line: str) -> str:
    """Return the line without the comment at its end."""
    return re.sub(r"(?:^|\s)#.*", "", line)


def _replaced(lines: list[str], at: int, begin: int, end: int, fix: str) -> tuple[Span, list[str]]:
    """Return the place of a part of a line, and the lines with this text in its place."""
    changed = f"{lines[at][:begin]}{fix}{lines[at][end:]}"
    return Span(at, begin, at, end), [*lines[:at], *changed.split("\n"), *lines[at + 1 :]]


def _without_fences(lines: list[str]) -> Iterator[_Change]:
    """Yield the text without the lines of Markdown around it."""
    marked = [here for here, line in enumerate(lines) if _FENCE.match(line)]
    if marked:
        rest = [line for here, line in enumerate(lines) if here not in marked]
        place = Span(marked[0], 0, marked[0], len(lines[marked[0]].rstrip()))
        message, hint = "a Markdown code fence surrounds the document", "remove the fence lines above and below the document"
        yield _Change(message, hint, place, rest)


def _without_end(lines: list[str]) -> Iterator[_Change]:
    """Yield the text without the `...` that ends a document before its other fields."""
    at = next((here for here, line in enumerate(lines) if re.fullmatch(r"\.\.\.\s*", line)), None)
    if at is not None:
        message, hint = "`...` ends the document, but fields follow it", "remove the line with `...`"
        yield _Change(message, hint, Span(at, 0, at, 3), [*lines[:at], *lines[at + 1 :]])


def _as_comment(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the comment of another language, `// text` or `; text`, as one of YAML."""
    found = re.match(r"(\s*)(?://+|--(?=\s)|;+|/\*|%+|\"\"\"|<!--)\s*(.*?)\s*(?:\*/|-->)?\s*$", lines[at])
    if found is not None:
        fix = f"# {found[2]}"
        place, changed = _replaced(lines, at, found.end(1), len(lines[at].rstrip()), fix)
        yield _Change("a comment begins with `#`", f"write `{fix}`", place, changed, fix)


def _on_two_lines(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the fields, or the items, of one line on lines of their own."""
    found = re.match(r"(\s*)((?:- +)*)", lines[at])
    text = _code(lines[at]).rstrip()
    if found is None:
        return
    for split, what, column in ((_NEXT_FIELD, "fields", found.end(2)), (_NEXT_ITEM, "items", found.end(1))):
        parts = split.split(text[column:])
        are_whole = what == "items" or all(re.match(r"\S+:\s+\S", part) for part in parts)
        if len(parts) > 1 and are_whole and not re.match(r"[{\[\"'|>#]", parts[0]):
            fix = f"\n{' ' * column}".join(parts)
            place, changed = _replaced(lines, at, column, len(text), fix)
            hint = f"write each on a separate line: {' and '.join(f'`{part}`' for part in parts)}"
            # One of the fields may be set again below, and a text with a field's name and a colon in it is rarer.
            left, size = (1, -1) if what == "fields" else (0, 1)
            yield _Change(f"{len(parts)} {what} are on one line", hint, place, changed, fix, left, size)


def _in_braces(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the field of a section on the line of its name, `model: preset: llama-3.1-8b`, in braces."""
    text = _code(lines[at]).rstrip()
    found = re.match(r"\s*(?:- +)*[\w.-]+:\s+(?=[A-Za-z_][\w.]*:\s)", text)
    if found is not None:
        fix = f"{{{text[found.end() :]}}}"
        place, changed = _replaced(lines, at, found.end(), len(text), fix)
        yield _Change("a section and its field are on one line", f"write `{fix}`", place, changed, fix)


def _with_dashes(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the items of a list with the dash of YAML in place of another sign: `* item`."""
    found = re.match(r"\s*([*+>\u2022\u2013\u2014\u00b7])\s+(?=\S)", lines[at])
    if found is None:
        return
    form = re.compile(rf"(\s*){re.escape(found[1])}(?=\s+\S)")
    changed = [form.sub(r"\1-", line) if form.match(line) else line for line in lines]
    count = sum(form.match(line) is not None for line in lines)
    place = Span(at, found.start(1), at, found.end(1))
    more = "" if count == 1 else f" before each of the {count} items"
    yield _Change(f"`{found[1]}` in place of `-`", f"write `-`{more}", place, changed, None if more else "-")


def _with_signs_quoted(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the list or the mapping on one line with quotes around the texts that begin with a sign of YAML."""
    found = list(_SIGN.finditer(lines[at]))
    if found:
        begin, end = found[0].start(2), len(lines[at][: found[-1].end(2)].rstrip())
        fix = _SIGN.sub(lambda each: f"{each[1]}{json.dumps(each[2].rstrip(), ensure_ascii=False)}", lines[at])
        fix = fix[begin : len(fix) - (len(lines[at]) - end)]
        place, changed = _replaced(lines, at, begin, end, fix)
        message = f"a text that begins with `{found[0][2][0]}` is not quoted"
        yield _Change(message, f"quote it: `{fix}`", place, changed, fix)


def _closed(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the line with a bracket or brace closed, without one that is too many, or with the one that was opened."""
    text, line = _code(lines[at]).rstrip(), lines[at]
    opened: list[str] = []
    fixed, quote, wrong = "", "", ""
    for sign in text:
        if quote or sign in "\"'":
            quote = "" if sign == quote else quote or sign
        elif sign in "[{":
            opened.append(sign)
        elif sign in _PAIRS:
            if not opened:
                wrong = f"the `{sign}` has no opening `{_PAIRS[sign]}`"
                continue
            closing = "]" if opened.pop() == "[" else "}"
            wrong = wrong if sign == closing else f"`{sign}` in place of `{closing}`"
            fixed += closing
            continue
        fixed += sign
    if opened and not quote:
        closing = "".join("]" if sign == "[" else "}" for sign in reversed(opened))
        wrong, fixed = f"`{opened[-1]}` is not closed", f"{fixed.rstrip(',; ')}{closing}"
    if not wrong:
        return
    begin = _indent(line)
    place, changed = _replaced(lines, at, begin, len(text), fixed[begin:])
    yield _Change(wrong, f"write `{fixed[begin:]}`", place, changed, fixed[begin:])
    value = re.match(r"\s*(?:- +)*[\w.-]+:\s+(?=[^\s\[{\"'])", text)
    if value is not None and text[-1:] in _PAIRS and not opened:
        # The first one is missing, not the last one too many.
        fix = f"{_PAIRS[text[-1]]}{text[value.end() :]}"
        place, changed = _replaced(lines, at, value.end(), len(text), fix)
        yield _Change(f"the opening `{_PAIRS[text[-1]]}` of the `{text[-1]}` is missing", f"write `{fix}`", place, changed, fix)


def _between_quotes(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the line with the quote closed, without the quote, and with the other kind of quotes around a text that contains its own."""
    line, text = lines[at], _code(lines[at]).rstrip()
    for quote in "\"'":
        for found in re.finditer(rf"(?<![^\s\[{{,(:]){quote}(.*?){quote}(?=\s*(?:[,\]}}]|$))", text):
            inside = found[1]
            if quote in inside or ("\\" in inside and quote == '"'):
                has_escape = quote not in inside
                fix = f"'{inside}'" if quote == '"' and "'" not in inside else json.dumps(inside, ensure_ascii=False)
                place, changed = _replaced(lines, at, found.start(), found.end(), fix)
                message = (
                    "a `\\` in double quotes begins an escape" if has_escape else f"a text in `{quote}` contains a `{quote}`"
                )
                yield _Change(message, f"write `{fix}`", place, changed, fix)
        if text.count(quote) % 2 == 0:
            continue
        begin = text.rindex(quote)
        value = line[begin:].rstrip()
        for end in [each.start() for each in re.finditer(r"\s*[,\]}]", value)] + [len(value)]:
            fix = f"{value[:end]}{quote}"
            place, changed = _replaced(lines, at, begin, begin + end, fix)
            yield _Change(f"the quote `{quote}` is not closed", f"write `{fix}`", place, changed, fix)
        place, changed = _replaced(lines, at, begin, begin + len(value), value[1:])
        yield _Change(f"the quote `{quote}` is not closed", f"write `{value[1:]}`", place, changed, value[1:])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _blank_after_dash(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the item with a blank after its `-`; of several such items, all."""
    form = rf" {{{_indent(lines[at])}}}-(?![-\s.0-9])\S"
    if not re.match(form, lines[at]):
        return
    same = [here for here, line in enumerate(lines) if re.match(form, line)]
    changed = [f"{line[: _indent(line)]}- {line.lstrip(' ')[1:]}" if here in same else line for here, line in enumerate(lines)]
    text = lines[at].strip()
    more = "" if len(same) == 1 else f", and a blank after each `-` of the {len(same)} items"
    fix = f"- {text[1:]}"
    place = Span(at, _indent(lines[at]), at, len(lines[at].rstrip()))
    shown = fix if starred(fix) == fix else "- "
    yield _Change("no blank after the `-`", f"write `{shown}`{more}", place, changed, None if more else fix)


def _with_colon(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the field with a colon: in place of `=`, or after the name of a section."""
    if (plain := lines[at].translate(_FULL_WIDTH)) != lines[at]:
        place = Span(at, _indent(lines[at]), at, len(lines[at].rstrip()))
        fix = re.sub(r":(?=\S)", ": ", plain.strip())
        changed = f"{' ' * _indent(lines[at])}{fix}"
        yield _Change("signs of full width", f"write `{fix}`", place, [*lines[:at], changed, *lines[at + 1 :]], fix)
    found = re.fullmatch(r"(\s*(?:- +)?)([A-Za-z_][\w-]*)(?:\s*(?:=>|:=|->|==?)\s*(\S.*?))?\s*", lines[at])
    if found is None:
        return
    fix = f"{found[2]}:" + (f" {found[3]}" if found[3] else "")
    place = Span(at, found.end(1), at, len(lines[at].rstrip()))
    message = "`=` in place of `:`" if found[3] else f"no `:` after the name of the section `{found[2]}`"
    yield _Change(message, f"write `{fix}`", place, [*lines[:at], f"{found[1]}{fix}", *lines[at + 1 :]], fix)


def _separated(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the mapping in braces with commas between its fields."""
    found = re.search(r"\{.*\}", lines[at])
    fix = "" if found is None else re.sub(r"(?<=[\w\]}\"'])(?: *;)? +(?=[A-Za-z_][\w.-]*: )", ", ", found[0])
    if found is None or fix == found[0]:
        return
    changed = f"{lines[at][: found.start()]}{fix}{lines[at][found.end() :]}"
    place = Span(at, found.start(), at, found.end())
    yield _Change("no `,` between two fields", f"write `{fix}`", place, [*lines[:at], changed, *lines[at + 1 :]], fix)


def _quoted(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the value in quotes, for one that begins like a mapping or a list, or has a `: ` in it."""
    found = re.match(r"(\s*(?:- +)*(?:[\w.-]+:\s+)?)(\S.*?)\s*$", lines[at])
    # A text in quotes has another mistake in it.
    if found is None or found[2][0] in "#|>\"'" or not re.search(r"[{}\[\]\"'`&*!%@]|: ", found[2]):
        return
    quoted = json.dumps(found[2], ensure_ascii=False)
    what = {"{": "a mapping", "[": "a list"}.get(found[2][0])
    message = (
        "a text with characters of YAML in it is not quoted"
        if what is None
        else f"a value that begins with `{found[2][0]}` is {what}"
    )
    place = Span(at, found.end(1), at, found.end(2))
    if '{"' in found[2] and found[1].endswith("- ") and not found[2].startswith("{"):
        # JSON in an argument, in which a brace of its own is written twice.
        doubled = json.dumps(found[2].replace("{", "{{").replace("}", "}}"), ensure_ascii=False)
        message = "JSON in an argument is not quoted"
        yield _Change(message, f"write `{doubled}`", place, [*lines[:at], f"{found[1]}{doubled}", *lines[at + 1 :]], doubled)
    yield _Change(message, f"quote it: `{quoted}`", place, [*lines[:at], f"{found[1]}{quoted}", *lines[at + 1 :]], quoted)


def _moved(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the line, with those below it, in the column of each section that is open there."""
    own = _indent(lines[at])
    if not _FIELD.match(lines[at]) and not lines[at].lstrip(" ").startswith("- "):
        return
    below = next(
        (here for here in range(at + 1, len(lines)) if not _BLANK.match(lines[here]) and _indent(lines[here]) <= own), None
    )
    siblings = next(
        (here for here in range(at + 1, len(lines)) if not _BLANK.match(lines[here]) and _indent(lines[here]) < own), None
    )
    ends = dict.fromkeys(_last(lines, len(lines) if end is None else end) for end in (at + 1, below, siblings))
    for column, like in _columns(lines, at).items():
        for end in ends:
            shift = column - own
            moved = [_shifted(line, shift) for line in lines[at:end]]
            if shift == 0 or any(line is None for line in moved):
                continue
            changed = [*lines[:at], *(line or "" for line in moved), *lines[end:]]
            is_one = end == at + 1
            also = (
                ""
                if is_one
                else f", and the {end - at - 1} below it by as much"
                if end - at > 2
                else ", and the one below it by as much"
            )
            message = f"the line is indented by {_spaces(own)}, which fits no section before it"
            hint = f"indent it by {_spaces(column)}, {like}{also}"
            place = Span(at, 0, at, own) if own and is_one else _word(lines[at], at)
            fix = " " * column if own and is_one else f"{' ' * column}{lines[at][: place.end_column]}" if is_one else None
            yield _Change(message, hint, place, changed, fix, left=1, size=end - at)


def _last(lines: Sequence[str], end: int) -> int:
    """Return the end of the block without the blank lines and comments after it."""
    while end > 1 and _BLANK.match(lines[end - 1]):
        end -= 1
    return end


def _shifted(line: str, shift: int) -> str | None:
    if not line.strip():
        return line
    return f"{' ' * (_indent(line) + shift)}{line.lstrip(' ')}" if _indent(line) + shift >= 0 else None


def _spaces(count: int) -> str:
    return "1 space" if count == 1 else f"{count} spaces"


def _word(line: str, at: int) -> Span:
    word = re.match(r"\s*(?:- +)?[^\s:]*", line)
    return Span(at, _indent(line), at, max(_indent(line) + 1, word.end() if word else 1))


def _columns(lines: Sequence[str], at: int) -> dict[int, str]:
    """Return the columns of the sections that are open at a line, the nearest first, and the field that shows each."""
    found: dict[int, str] = {}
    lowest = 1 << 30
    for here in range(at - 1, -1, -1):
        field = None if _BLANK.match(lines[here]) else _FIELD.match(lines[here])
        item = re.match(r"(\s*)- ", lines[here])
        if field is None and item is None:
            continue
        if field is not None and field.end(2) < lowest:
            name = field[3]
            if not found and lines[here].split(" #")[0].rstrip().endswith(":"):
                found[field.end(2) + 2] = f"as a field of `{name}`"
            found.setdefault(field.end(2), f"like `{name}`")
            lowest = field.end(2)
        if item is not None and item.end(1) < lowest:
            found.setdefault(item.end(1), "like the items of the list")
            lowest = item.end(1)
        if lowest == 0:
            break
    return found


def _with_dash(lines: list[str], at: int) -> Iterator[_Change]:
    """Yield the line as an item of the list before it, in the column of the others."""
    before = next((lines[here] for here in range(at - 1, -1, -1) if re.match(r"\s*- ", lines[here])), None)
    text = lines[at].strip()
    if before is None or text.startswith("- ") or not text:
        return
    changed = f"{' ' * _indent(before)}- {text}"
    place = Span(at, _indent(lines[at]), at, len(lines[at].rstrip()))
    is_there = _indent(before) == _indent(lines[at])
    hint = "begin it with `- `, in the column of the others"
    fix = f"- {text}" if is_there else None
    yield _Change("this is not an item of the list before it", hint, place, [*lines[:at], changed, *lines[at + 1 :]], fix)
