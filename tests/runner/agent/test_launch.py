"""Tests the command of a rank: torchrun's environment, argv and files."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from headway.runner.agent.launch import Torchrun, command, make_folders, partner_node, rank_note
from headway.runner.agent.protocol import RankOrder
from headway.runner.contract import Checkpoint, Mesh, RunConfig, RunDirectory, Tier, Trainer
from headway.runner.contract.orders import StartRanks

START = StartRanks(slots=2, moved=((1, 4),), master_addr="node0", master_port=29, restarts=1, base=None)
JOB = RunConfig(
    slots=2, procs_per_slot=2, mesh=Mesh(dp_shard=4), trainer=Trainer("script", {"argv": ["x.py"]}), spec_hash="", run="r"
)
DIRECTORY = RunDirectory(Path("/runs/r"), 0)


def torchrun(*argv: str, **flags: Any) -> RunConfig:
    return replace(JOB, trainer=Trainer("script", {"argv": list(argv), "logs": False, "torchrun": asdict(Torchrun(**flags))}))


def order(config: RunConfig, slot: int = 1, local_rank: int = 1, start: StartRanks = START, **environment: str) -> RankOrder:
    return command(config, DIRECTORY, slot, local_rank, 3, start, environment)


def test_ranks_follow_from_the_slot_and_the_world_from_the_start() -> None:
    found = order(JOB, start=replace(START, slots=5)).environment
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
    )
    assert [found[name] for name in names] == ["3", "1", "10", "2", "1", "5", "3", "10"]
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["TORCHELASTIC_RESTART_COUNT"]) == ("node0", "29", "1")


def test_a_given_address_is_the_masters_and_otherwise_the_agreed_one() -> None:
    assert order(torchrun("x.py", master_addr="here")).environment["MASTER_ADDR"] == "here"
    assert order(torchrun("x.py")).environment["MASTER_ADDR"] == "node0"


def test_a_job_prints_to_its_log_and_a_typed_command_to_the_terminal() -> None:
    job = order(replace(JOB, trainer=Trainer("script", {"argv": ["x.py"], "logs": True})))
    assert job.stdout == job.stderr == "/runs/r/attempts/0/logs/1/3.log"
    typed = order(torchrun("x.py"))
    assert (typed.stdout, typed.stderr) == (None, None)


def test_redirected_streams_are_written_where_torchrun_writes_them(tmp_path: Path) -> None:
    config = torchrun("x.py", redirects={"0": 1, "1": 2})
    out, err = order(config, local_rank=0, HEADWAY_LOGS=str(tmp_path)), order(config, HEADWAY_LOGS=str(tmp_path))
    assert (out.stdout, out.stderr) == (f"{tmp_path}/attempt_1/0/stdout.log", None)
    assert (err.stdout, err.stderr) == (None, f"{tmp_path}/attempt_1/1/stderr.log")
    assert err.environment["TORCHELASTIC_ERROR_FILE"] == f"{tmp_path}/attempt_1/1/error.json"
    err.environment["HEADWAY_RUN_JSON"] = str(tmp_path / "run" / "run.json")
    make_folders(err)
    assert list((tmp_path / "attempt_1/1").iterdir()) == [], "the folder is the user's"
    assert rank_note(tmp_path / "run", tmp_path / "attempt_1/1").read_text() == "3"


def test_without_a_log_folder_redirected_streams_are_discarded() -> None:
    found = order(torchrun("x.py", redirects={"1": 3}))
    assert (found.stdout, found.stderr) == ("/dev/null", "/dev/null")
    assert found.environment["TORCHELASTIC_ERROR_FILE"] == ""


def test_a_hidden_rank_prints_only_to_its_files(tmp_path: Path) -> None:
    found = order(torchrun("x.py", shown=(0,), redirects={"1": 1}), HEADWAY_LOGS=str(tmp_path))
    assert (found.stdout, found.stderr) == (f"{tmp_path}/attempt_1/1/stdout.log", "/dev/null")


def test_the_local_rank_is_substituted_into_arguments() -> None:
    assert order(torchrun("x.py", "--device=${local_rank}")).argv[-2:] == ["x.py", "--device=1"]
    assert order(JOB).argv[-1] == "x.py"


def test_a_non_python_program_runs_unchanged_and_gets_a_store() -> None:
    assert order(torchrun("bash", "run.sh", python=False)).argv == ["bash", "run.sh"]
    for given in (torchrun("bash", "run.sh", python=False), torchrun("x.py"), JOB):
        first, other = (order(given, slot=0, local_rank=rank) for rank in (0, 1))
        assert (first.hosts_store, other.hosts_store) == (True, False)
        assert first.environment["TORCHELASTIC_USE_AGENT_STORE"] == other.environment["TORCHELASTIC_USE_AGENT_STORE"] == "True"


def test_another_python_can_be_chosen_as_with_torchrun() -> None:
    assert order(torchrun("x.py"), PYTHON_EXEC="/opt/python").argv[0] == "/opt/python"
    assert order(torchrun("x.py")).argv[0] == sys.executable


def test_a_virtual_local_rank_without_a_device_is_rejected_by_number() -> None:
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=4 has no device for local rank 1"):
        order(torchrun("x.py", virtual_local_rank=True), CUDA_VISIBLE_DEVICES="4")


@pytest.mark.parametrize(("visible", "device"), [(None, "1"), ("4, 6", "6")])
def test_a_virtual_local_rank_sees_its_device_as_the_first(visible: str | None, device: str) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = command(torchrun("x.py", virtual_local_rank=True), DIRECTORY, 1, 1, 3, START, environment).environment
    assert (found["LOCAL_RANK"], found["HEADWAY_LOCAL_RANK"], found["CUDA_VISIBLE_DEVICES"]) == ("0", "1", device)


def test_user_settings_are_kept() -> None:
    assert order(JOB).environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert order(JOB, TORCH_NCCL_ASYNC_ERROR_HANDLING="3").environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert order(JOB).environment["HEADWAY_RUN_ID"] == "r"
    assert "WANDB_RUN_ID" not in order(JOB, WANDB_RUN_ID="mine").environment


def test_a_rank_is_bound_to_the_cpus_assigned_by_its_node() -> None:
    assert order(JOB, HEADWAY_CPUS='{"1": [2, 3]}').cpus == [2, 3]
    assert order(JOB).cpus is None


def test_copies_go_to_the_node_that_the_partner_moved_to() -> None:
    keeping = replace(JOB, checkpoint=Checkpoint((Tier("peer", every_steps=1),)))
    assert (partner_node(JOB, 0, START), partner_node(keeping, 0, START), partner_node(keeping, 1, START)) == (None, 4, 0)
    assert order(keeping, slot=0).environment["HEADWAY_PARTNER"] == "/runs/r/attempts/0/keepers/4.json"
