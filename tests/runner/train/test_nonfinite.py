"""Tests a loss that is not a number: it is recomputed from the same batch, and never applied."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.worlds import run_world

pytestmark = pytest.mark.slow


def ranks(folder: Path) -> list[dict[str, Any]]:
    """The records of both ranks."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def test_a_transient_nan_leaves_no_trace_a_persistent_one_is_not_applied(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog; " * 50)
    run_world("tests.support.ranks.nonfinite", 2, tmp_path)
    sound, passing, lasting = (ranks(tmp_path / str(times)) for times in (0, 1, 2))
    assert [rank["error"] for rank in sound + passing] == [None] * 4
    assert passing[0]["hashes"] == sound[0]["hashes"]
    (note,) = [event for event in passing[0]["said"] if event["what"] == "note"]
    assert note == {"what": "note", "rank": 0, "kind": "transient", "step": 3, "sample": 8, "found": "loss nan on rank 1"}
    text = "loss nan on rank 1 in step 3, as on the first attempt (loss nan on rank 1); the step was not applied"
    assert [(rank["error"], rank["step"]) for rank in lasting] == [(text, 2)] * 2
    (raised,) = [event for event in lasting[1]["said"] if event["what"] == "exception"]
    assert raised["type"] == "headway.runner.train.gradients.NonFiniteError"
    assert (raised["text"], raised["step"], raised["sample"]) == (text, 2, 8)
    assert "tests/support/ranks/nonfinite.py:" in raised["at"], (
        "the innermost frame that is not of what is installed, nor of headway"
    )
