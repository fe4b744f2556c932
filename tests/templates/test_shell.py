"""Quoting: every value of a plan reaches the shell unchanged, and every template quotes."""

import shlex
import subprocess
from pathlib import Path

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.templates.shell import Shell, comment, quote, render_shell

words = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=40)


@given(st.lists(words, min_size=1, max_size=5))
def test_quoted_words_round_trip(values: list[str]) -> None:
    assert shlex.split(" ".join(map(quote, values))) == values


@settings(max_examples=25, deadline=None)
@given(st.lists(words, min_size=1, max_size=8))
def test_bash_assigns_the_quoted_value(values: list[str]) -> None:
    lines = [f"value={quote(value)}\nprintf '%s\\0' \"$value\"" for value in values]
    defaults = [f"value=${{UNSET:-{quote(value)}}}\nprintf '%s\\0' \"$value\"" for value in values]
    result = subprocess.run(["bash"], input="\n".join(lines + defaults).encode(), capture_output=True, check=True)
    assert result.stdout == b"".join(value.encode() + b"\0" for value in values * 2)
    assert result.stderr == b""


def test_leading_equals_sign_is_quoted_and_shell_text_is_unchanged() -> None:
    assert quote("=eth0") == "'=eth0'"
    assert quote(Shell("a; b")) == "a; b"
    assert quote(8) == "8"


@given(words)
def test_comment_stays_on_its_line_or_is_rejected(text: str) -> None:
    if len(text.splitlines()) > 1:
        with pytest.raises(ValueError, match="several lines"):
            comment(text)
    else:
        assert comment(text) == text


def test_templates_quote_automatically_and_reject_unknown_names(tmp_path: Path) -> None:
    template = tmp_path / "x.sh.j2"
    template.write_text("echo {{ word }}\n{% for line in lines %}\n{{ line }}\n{% endfor %}\n")
    assert render_shell(template, word="a b", lines=[Shell("ls | wc")]) == "echo 'a b'\nls | wc\n"
    with pytest.raises(jinja2.UndefinedError):
        render_shell(template, lines=[])
