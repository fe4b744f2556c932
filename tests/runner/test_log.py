import json
import logging
import re
from collections.abc import Iterator

import pytest

from headway.runner import log

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    log._where.clear()


def test_line_has_time_level_process_place_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("agent", node=3)
    logging.getLogger("headway.x").warning("no %s", "standbys")
    log.in_generation(2)
    facts = {"cause_kind": "crash", "rank": 1, "cause": "killed by SIGKILL", "host": None, "empty": "", "number": "7"}
    logging.getLogger("headway.x").info("failure", extra=log.fields(facts))
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(TIME + " WARNING agent node=3: no standbys", first)
    shown = 'cause_kind=crash rank=1 cause="killed by SIGKILL" host=null empty="" number=7'
    assert re.fullmatch(f"{TIME} INFO agent node=3 generation=2: failure {re.escape(shown)}", second)


def test_json_has_the_same_fields_with_full_values(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_LOG_FORMAT", "json")
    log.configure("coordinator")
    logging.getLogger("headway.x").info("start", extra=log.fields({"nodes": list(range(500))}))
    line = json.loads(capsys.readouterr().err)
    assert re.fullmatch(TIME, line.pop("time"))
    assert line == {"level": "info", "process": "coordinator", "message": "start", "nodes": list(range(500))}


def test_line_breaks_in_a_value_are_escaped_and_long_values_truncated(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("keeper", node=0)
    logging.getLogger("headway.x").info("hang", extra=log.fields({"why": "a\nb", "ranks": list(range(500))}))
    (line,) = capsys.readouterr().err.splitlines()
    assert 'why="a\\nb"' in line
    assert line.endswith("...")


@pytest.mark.parametrize(("level", "shown"), [("debug", 3), ("info", 2), ("ERROR", 1), ("loud", 2)])
def test_level_is_read_from_the_variable_and_falls_back_to_the_default(
    level: str, shown: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_LOG_LEVEL", level)
    log.configure("agent", node=0)
    logger = logging.getLogger("headway.x")
    for number in (logging.DEBUG, logging.INFO, logging.ERROR):
        logger.log(number, "text")
    assert len(capsys.readouterr().err.splitlines()) == shown


def test_traceback_of_an_exception_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("agent", node=0)
    try:
        raise OSError(28, "no space left on device")
    except OSError:
        logging.getLogger("headway.x").exception("cannot write")
    text = capsys.readouterr().err
    assert "ERROR agent node=0: cannot write\nTraceback" in text
    assert text.endswith("no space left on device\n")
