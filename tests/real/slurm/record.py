"""Parses one line of `scontrol -o show` into its fields."""

import re

FIELD = re.compile(r"(?:^| )([A-Za-z][\w:/]*)=(.*?)(?= [A-Za-z][\w:/]*=|$)")


def parse_record(line: str) -> dict[str, str]:
    """Values may contain spaces and `=`; a value that contains ` word=` ends there, because Slurm does not quote."""
    return dict(FIELD.findall(line.strip()))
