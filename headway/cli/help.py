"""Formats the text of `--help`: wrapped paragraphs, and example commands on lines of their own."""

import argparse


class HelpFormatter(argparse.HelpFormatter):
    """Wraps each paragraph of a description or an epilog by itself and keeps indented ones, which are commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text
        parts = [part if part.startswith(" ") else filled(part, width, indent) for part in text.split("\n\n")]
        return "\n\n".join(parts)


def with_examples(text: str | None, *commands: str) -> str:
    """An epilog: the text, if there is one, and the commands as examples."""
    shown = "\n".join(f"  {command}" for command in commands)
    return "\n\n".join(filter(None, [text, f"{'Examples' if len(commands) > 1 else 'Example'}:", shown]))
