"""One line of `scontrol -o show` into its fields."""

import re

FIELD = re.compile(r"(?:^| )([A-Za-z][\w:/]*)=(.*?)(?= [A-Za-z][\w:/]*=|$)")


def parse_record(line: str) -> dict[str, str]:
    """Values may hold blanks and `=`; a value that itself holds ` word=` ends there, for Slurm does not quote."""
    return dict(FIELD.findall(line.strip()))
