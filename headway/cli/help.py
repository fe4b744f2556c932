"""Reads a verb's options and formats its `--help`: wrapped paragraphs, and example commands on lines of their own."""

import argparse
from typing import Any, NoReturn

from headway.jobspec.suggest import did_you_mean

_UNKNOWN = "unrecognized arguments: "


class HelpFormatter(argparse.HelpFormatter):
    """Wraps each paragraph of a description or an epilog by itself and keeps indented ones, which are commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text
        parts = [part if part.startswith(" ") else filled(part, width, indent) for part in text.split("\n\n")]
        return "\n\n".join(parts)


class Parser(argparse.ArgumentParser):
    """Takes whole option names only, so that a new option never changes a script, and names the one that was meant. Subcommands do too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": HelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        option = message.removeprefix(_UNKNOWN).split()[0].partition("=")[0]
        if message.startswith(_UNKNOWN) and option.startswith("--"):
            message += f"; {did_you_mean(option, self._long_options(), 'options').text}"
        super().error(message)

    def _long_options(self) -> list[str]:
        """Those of its subcommands too, whose unknown options argparse reports here."""
        found = dict.fromkeys(name for name in self._option_string_actions if name.startswith("--"))
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for each in action.choices.values():
                    found |= dict.fromkeys(each._long_options())
        return list(found)


def with_examples(text: str | None, *commands: str) -> str:
    """An epilog: the text, if there is one, and the commands as examples."""
    shown = "\n".join(f"  {command}" for command in commands)
    return "\n\n".join(filter(None, [text, f"{'Examples' if len(commands) > 1 else 'Example'}:", shown]))
