"""Tests that the verdict of an attempt is written even if other records of the run are unreadable."""

from pathlib import Path
from typing import Any

from headway.runner.contract import Exit, Mesh, RunConfig, RunDirectory, Trainer, read_verdict
from headway.runner.coordinator.events import Finish
from headway.runner.coordinator.journal import Journal
from headway.runner.rundir import open_run

CONFIG = RunConfig(slots=2, procs_per_slot=1, mesh=Mesh(dp_shard=2), trainer=Trainer("builtin"), spec_hash="ab", run="run-1")
FINISH = Finish(Exit.RETRY_ELSEWHERE, "node 1 is lost", None, (1,), 7, None)


def decided(directory: RunDirectory) -> None:
    chain: Any = None
    Journal(CONFIG, directory).decide(FINISH, 1, chain)


def test_the_hosts_to_exclude_are_written_before_the_verdict(tmp_path: Path) -> None:
    directory = open_run(tmp_path, "run-1", CONFIG, 0, hosts=["n1", "n2"])
    decided(directory)
    assert directory.exclude.read_text() == "n2\n"
    assert read_verdict(directory) is not None


def test_an_excuse_file_keeps_the_first_reason_across_coordinators(tmp_path: Path) -> None:
    directory = open_run(tmp_path, "run-1", CONFIG, 0)
    for why in ("step 10 is committed", "asked to stop"):
        Journal(CONFIG, directory).excuse(why)
    assert directory.excused.read_text() == "step 10 is committed\n"


def test_a_damaged_node_record_does_not_prevent_the_verdict(tmp_path: Path) -> None:
    directory = open_run(tmp_path, "run-1", CONFIG, 0)
    directory.node(1).parent.mkdir(exist_ok=True)
    directory.node(1).write_text("{")
    decided(directory)
    assert not directory.exclude.exists()
    verdict = read_verdict(directory)
    assert verdict is not None
    assert verdict.exit_code == Exit.RETRY_ELSEWHERE
