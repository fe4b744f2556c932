"""Two processes that start or resume a run on this machine at the same moment."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.infra.submit import local
from headway.infra.submit.local import LocalError, start

# Without a node, nothing is started.
PLAN: Any = SimpleNamespace(run_stem="job", nodes=0, env=(), secrets=(), preparation=None, procs_per_slot=1)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record what is opened; the first attempt of each new name belongs to another process."""
    asked: list[tuple[str, int]] = []

    def taken_at_first(plan: Any, runs: Path, name: str, attempt: int) -> Path | None:
        asked.append((name, attempt))
        (runs / name).mkdir(parents=True, exist_ok=True)
        return None if len(asked) == 1 else runs / name / "run.json"

    monkeypatch.setattr(local, "_open", taken_at_first)
    monkeypatch.setattr(local, "_check_machine", lambda plan: None)
    monkeypatch.setattr(local, "_resumed", lambda runs, plan, run: run)
    return asked


def test_run_gets_the_next_number_if_another_process_took_its_name(tmp_path: Path, opened: list[tuple[str, int]]) -> None:
    assert start(PLAN, tmp_path).supervisors == []
    assert opened == [("job-1", 0), ("job-2", 0)]


def test_run_just_resumed_by_another_process_is_not_resumed_twice(tmp_path: Path, opened: list[tuple[str, int]]) -> None:
    with pytest.raises(LocalError, match="`job-7` has just been resumed by another process"):
        start(PLAN, tmp_path, resume="job-7")
    assert opened == [("job-7", 0)]
