"""Configures the logs of the runner's processes that no user started: agent, coordinator and keeper.

A line has the time in UTC, the level, the process and where it runs, then the message:

    2026-11-23T20:31:05.123Z INFO coordinator node=0 generation=2: failure cause_kind=crash rank=1 cause="killed by SIGKILL"

HEADWAY_LOG_FORMAT=json writes one JSON object a line instead, HEADWAY_LOG_LEVEL=debug, warning or error sets what is written. Events of
the journal have the journal's kind and field names. Code logs with logging.getLogger(__name__); in processes that do not call
`configure`, such as the launcher and workers, warnings go to stderr as plain text.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

# Of a value in a line of text; JSON has all of it.
LONGEST = 300
_where: dict[str, Any] = {}


def configure(process: str, *, node: int | None = None) -> None:
    """Write this process's logs to stderr. An unknown level or format counts as the default: no log is worth a failed run."""
    _where.clear()
    _where.update({"process": process} | ({} if node is None else {"node": node}))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if os.environ.get("HEADWAY_LOG_FORMAT") == "json" else _Text())
    # A name becomes its number; what is no name becomes a text.
    level = logging.getLevelName(os.environ.get("HEADWAY_LOG_LEVEL", "info").upper())
    logging.basicConfig(handlers=[handler], level=level if isinstance(level, int) else logging.INFO, force=True)


def in_generation(number: int) -> None:
    """Name this generation in every further line."""
    _where["generation"] = number


def fields(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `extra` argument of a logging call whose line ends with these facts."""
    return {"facts": facts}


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(record, "facts", {})
    return found


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        where = dict(_where)
        process = where.pop("process", "headway")
        place = "".join(f" {name}={value}" for name, value in where.items())
        facts = "".join(f" {name}={_word(value)}" for name, value in _facts(record).items())
        text = f"{_time(record)} {record.levelname} {process}{place}: {record.getMessage()}{facts}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = {"time": _time(record), "level": record.levelname.lower(), **_where, "message": record.getMessage()}
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**_facts(record), **found}, default=str)


def _word(value: object) -> str:
    """Return the value as JSON, without quotes where it is one plain word."""
    text = json.dumps(value, default=str)
    if len(text) > LONGEST:
        return f"{text[:LONGEST]}..."
    return value if isinstance(value, str) and value and not set(value) & set(" =\"'\\\n\t") and text == f'"{value}"' else text
