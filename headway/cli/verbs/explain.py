"""`headway explain`: prints why a problem is reported and how to fix it, with an example."""

import argparse
import sys

from headway.cli.terminal import fail, width_of
from headway.jobspec.codes import CODES
from headway.jobspec.explain import SUBJECTS, explanations
from headway.jobspec.problem import wrapped
from headway.jobspec.suggest import did_you_mean


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "codes", nargs="*", metavar="CODE", help="the code of a problem, for example HW301; without one, all are listed"
    )


def run(args: argparse.Namespace) -> int:
    """2 for a code that does not exist."""
    wanted = [code.upper() for code in args.codes]
    for given, code in zip(args.codes, wanted, strict=True):
        if code not in CODES:
            return fail(f"`{given}` is not the code of a problem; {did_you_mean(code, CODES, 'codes').text}", 2)
    print("\n\n".join(_wrapped(explanations()[code].text()) for code in wanted) if wanted else _overview())
    return 0


def _overview() -> str:
    """Every code with its meaning, below what its hundred is about."""
    sections = []
    for start, subject in SUBJECTS.items():
        rows = [f"  {code}  {meaning}" for code, meaning in CODES.items() if code.startswith(start)]
        sections.append("\n".join([f"{start}xx: {subject}", *rows]))
    return "\n\n".join(sections)


def _wrapped(text: str) -> str:
    """Return the text with its paragraphs, but not its examples, wrapped to a terminal's width."""
    width = width_of(sys.stdout)
    return "\n\n".join(part if part.startswith("    ") else wrapped(part, width) for part in text.split("\n\n"))
