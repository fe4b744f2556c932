"""Tests torchrun's flags: every flag of torch's parser, its variable, and its effect on run.json."""

from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from headway.runner.contract import DEFAULT_TIMEOUTS, Restart, RunConfig
from headway.runner.torchrun.arguments import CARRIED, UsageError, parse
from headway.runner.torchrun.configure import configure, run_name

SCRIPT = str(Path(__file__).parents[3] / "examples/one-word/train.py")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "PET_NNODES", "PET_MAX_RESTARTS", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def configured(*words: str) -> RunConfig:
    return configure(parse([*words, SCRIPT, "--lr", "1"]))


def options(*words: str) -> dict[str, Any]:
    return dict(configured(*words).trainer.options["torchrun"])


def test_every_flag_of_this_torch_is_supported() -> None:
    assert {action.dest for action in get_args_parser()._actions} - {"help"} <= CARRIED


def test_an_unknown_flag_ends_as_under_torchrun(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--no-such-flag", SCRIPT])
    assert ended.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "slots", "least", "procs"),
    [
        ((), 1, None, 1),
        (("--nnodes", "2"), 2, None, 1),
        (("--nnodes", "2:4", "--rdzv-backend", "c10d", "--nproc-per-node", "3"), 4, 2, 3),
        (("--nnodes", "2:4", "--rdzv-backend", "static"), 4, None, 1),
        (("--nnodes", "4", "--standalone"), 1, None, 1),
    ],
)
def test_nodes_and_ranks_are_as_requested(words: tuple[str, ...], slots: int, least: int | None, procs: int) -> None:
    config = configured(*words)
    assert (config.slots, config.min_slots, config.procs_per_slot, config.mesh.world_size) == (slots, least, procs, slots * procs)


def test_variables_replace_flags_as_with_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "1:2")
    monkeypatch.setenv("PET_RDZV_BACKEND", "c10d")
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    config = configured()
    assert (config.slots, config.min_slots, config.restart.budget) == (2, 1, 5)
    assert configured("--max-restarts", "1").restart.budget == 1


def test_a_flag_after_the_script_belongs_to_the_script() -> None:
    config = configure(parse([SCRIPT, "--max-restarts", "9"]))
    assert config.restart == Restart()
    assert config.trainer.options["argv"] == [SCRIPT, "--max-restarts", "9"]


def test_the_default_restart_budget_is_three() -> None:
    assert options()["max_restarts"] == 3
    assert options("--max-restarts", "0")["max_restarts"] == 0


@pytest.mark.parametrize(
    ("words", "redirects", "shown"),
    [
        ((), {}, None),
        (("-r", "3"), {"0": 3, "1": 3}, None),
        (("-r", "0:1", "-t", "0:2,1:3"), {"0": 3, "1": 3}, None),
        (("-r", "1:2", "--local-ranks-filter", "1"), {"1": 2}, (1,)),
    ],
)
def test_streams_go_where_they_are_redirected(
    words: tuple[str, ...], redirects: dict[str, int], shown: tuple[int, ...] | None
) -> None:
    found = options("--nproc-per-node", "2", *words)
    assert (found["redirects"], found["shown"]) == (redirects, shown)


def test_rendezvous_timeouts_are_torchruns() -> None:
    c10d = configured("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-conf", "join_timeout=7,last_call_timeout=2").timeouts
    static = configured("--nnodes", "2", "--rdzv-backend", "static").timeouts
    assert [c10d[name].floor_s for name in ("join", "replace", "last_call")] == [7, 7, 2]
    assert [static[name].floor_s for name in ("join", "replace", "last_call")] == [900, 900, 30]
    assert configured().timeouts == DEFAULT_TIMEOUTS


def test_the_shutdown_timeout_is_the_workers_time_before_they_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured("--shutdown-timeout", "7").grace_s == pytest.approx(10)
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "14")
    assert configured().grace_s == pytest.approx(20)


def test_signals_are_read_by_name() -> None:
    assert configured().trainer.options["signals"] == ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"]
    assert configured("--signals-to-handle", "SIGUSR1, SIGTERM").trainer.options["signals"] == ["SIGUSR1", "SIGTERM"]


def test_a_module_and_a_path_are_run_as_requested() -> None:
    assert configure(parse(["-m", "research.train", "a"])).trainer.options["argv"] == ["-m", "research.train", "a"]
    assert configure(parse(["--run-path", "-m", SCRIPT])).trainer.options["argv"] == [SCRIPT]
    assert configure(parse(["--no-python", "bash", "-c", "true"])).trainer.options["torchrun"]["python"] is False


@pytest.mark.parametrize(
    ("words", "name"),
    [(("--rdzv-id", "mine"), "mine"), (("--rdzv-id", "a/b"), "a-b"), (("--standalone", "--rdzv-id", "mine"), ""), ((), "")],
)
def test_the_runs_name_is_the_rendezvous_id(words: tuple[str, ...], name: str) -> None:
    assert run_name(parse([*words, SCRIPT])) == name


def test_without_an_id_the_schedulers_job_is_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert run_name(parse([SCRIPT])) == "4711"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--nnodes", "3:2", SCRIPT], "--nnodes 3:2: expected MIN:MAX"),
        (["--nnodes", "2", "--rdzv-backend", "etcd", SCRIPT], "--rdzv-backend etcd: headway's nodes meet at one of the nodes"),
        (["--max-restarts", "-1", SCRIPT], "--max-restarts -1"),
        (["--event-log-handler", "console", SCRIPT], "--event-log-handler console"),
        (["--logs-specs", "mine", SCRIPT], "--logs-specs mine"),
        (["--no-python", "--module", "x"], "--no-python and --module"),
        (["--no-python", "no-such-program"], "`no-such-program` is not an executable program"),
        (["--signals-to-handle", "SIGNONE", SCRIPT], "'SIGNONE' is not a signal"),
        (["--run-path", "train.py"], "an absolute path is expected"),
        (["no-such-script.py"], "there is no file `no-such-script.py`"),
    ],
)
def test_unsupported_values_are_refused_by_name(words: list[str], named: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(words)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--nproc-per-node", "0", SCRIPT], "nothing to run"),
        (["--shutdown-timeout", "-1", SCRIPT], "--shutdown-timeout -1"),
        (["--local-ranks-filter", "a", SCRIPT], "--local-ranks-filter a"),
        (["--nnodes", "2", "--rdzv-conf", "join_timeout=x", "--rdzv-backend", "c10d", SCRIPT], "join_timeout=x"),
    ],
)
def test_meaningless_values_are_refused(words: list[str], named: str) -> None:
    with pytest.raises(UsageError) as refused:
        configure(parse(words))
    assert named in str(refused.value)


def test_too_few_devices_for_virtual_ranks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(UsageError, match="2 ranks, but CUDA_VISIBLE_DEVICES=0"):
        configured("--virtual-local-rank", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    ("words", "master"),
    [
        ((), (None, 0)),
        (("--master-addr", "node0"), (None, 0)),
        (("--master-port", "29500"), ("127.0.0.1", 29500)),
        (("--master-port", "0"), (None, 0)),
        (("--master-addr", "localhost", "--master-port", "29500"), ("localhost", 29500)),
        (("--rdzv-endpoint", "[::1]:29500"), ("::1", 29500)),
        (("--master-port", "29500", "--standalone"), (None, 0)),
        (("--rdzv-endpoint", "localhost:29500", "--rdzv-backend", "c10d"), (None, 0)),
        (("--master-port", "29500", "--nnodes", "2"), (None, 0)),
    ],
)
def test_a_port_given_on_one_node_is_the_stores(words: tuple[str, ...], master: tuple[str | None, int]) -> None:
    config = configured(*words)
    assert (config.trainer.options["torchrun"]["master_addr"], config.ports.store) == master


def test_a_port_can_be_given_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MASTER_PORT", "29501")
    assert configured().ports.store == 29501
