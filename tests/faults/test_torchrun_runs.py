"""Tests which run a command of `headway torchrun` belongs to: other commands with the same name never share state, equal ones resume."""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import LIGHT
from tests.support.commands import Command

from .processes import processes_of
from .runs import LIMIT_S, Run, wait_until

pytestmark = pytest.mark.slow

# Saves each step in a file of its run. Files in its folder specify where it stops. It imports no torch, and headway imports none ahead of a
# script that sets variables: to which run a command belongs does not depend on it.
TRAINING = """
import os, sys, time
os.environ["SET"] = "1"
lr, run = sys.argv[1], os.environ["HEADWAY_RUN_ID"]
saved = f"{run}.saved"
start = int(open(saved).read()) if os.path.exists(saved) else 0
print(f"lr {lr} begins at step {start} in {run}", flush=True)
for step in range(start + 1, 21):
    with open(saved, "w") as file:
        file.write(str(step))
    if step == 10:
        open(f"at-10-{lr}", "w").close()
        while os.path.exists("hold"):
            time.sleep(0.01)
        if os.path.exists("break"):
            raise ValueError("the folder says so")
print("WANDB_RUN_ID", os.environ["WANDB_RUN_ID"], "id", os.environ["TORCHELASTIC_RUN_ID"])
"""


class Folder:
    """A script in a separate folder, with its runs below it."""

    def __init__(self, path: Path) -> None:
        self.path, self.runs = path, path / "runs"
        self.started: list[Command] = []
        (path / "train.py").write_text(TRAINING)

    def start(self, *words: str, **variables: str) -> Command:
        known = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "HEADWAY_", "PET_"))}
        own = {"HEADWAY_STANDBY": "0", "PYTHONPATH": LIGHT, "HEADWAY_RUNS": str(self.runs)}
        command = Command(("torchrun", *words), {**known, **own, **variables}, self.path)
        self.started.append(command)
        return command

    def torchrun(self, *words: str, code: int = 0, **variables: str) -> tuple[str, list[str]]:
        """Its output, and headway's lines about the run that it belongs to."""
        return output_of(self.start(*words, **variables), code)

    def mark(self, name: str, *, there: bool = True) -> None:
        (self.path / name).touch() if there else (self.path / name).unlink()

    def attempts(self) -> dict[str, int]:
        return {path.name: len(list(path.glob("attempts/*"))) for path in sorted(self.runs.iterdir())}


def output_of(process: Command, code: int = 0) -> tuple[str, list[str]]:
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code, out + err
    return out, re.findall(r"^headway torchrun: (run `.*)$", err, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    for process in folder.started:
        # Also that of a failed test; its descendants end with it.
        process.end()


def begins(lr: str, step: int, run: str) -> str:
    return f"lr {lr} begins at step {step} in {run}\n"


@pytest.mark.variant
def test_each_point_of_a_sweep_in_one_job_is_a_run(folder: Folder) -> None:
    printed = [folder.torchrun("train.py", lr, SLURM_JOB_ID="777") for lr in ("0.001", "0.01", "0.1")]
    for (out, _), lr, run in zip(printed, ("0.001", "0.01", "0.1"), ("777", "777-2", "777-3"), strict=True):
        assert begins(lr, 0, run) in out
    assert [lines for _, lines in printed] == [
        [],
        ["run `777-2`: `777` belongs to another command"],
        ["run `777-3`: `777` belongs to another command"],
    ]
    assert folder.attempts() == {"777": 1, "777-2": 1, "777-3": 1}
    trackers = [re.findall(r"WANDB_RUN_ID (\S+) id (\S+)", out) for out, _ in printed]
    assert len({tracker for ((tracker, _),) in trackers}) == 3, "no curves on top of each other"
    assert {given for ((_, given),) in trackers} == {"none"}, "the script gets the id that torchrun would pass"


@pytest.mark.variant
def test_two_concurrent_trainings_in_one_job_both_complete(folder: Folder) -> None:
    folder.mark("hold")
    first = folder.start("train.py", "0.5", SLURM_JOB_ID="778")
    wait_until((folder.path / "at-10-0.5").exists, "the first one's tenth step")
    second = folder.start("train.py", "0.25", SLURM_JOB_ID="778")
    wait_until((folder.path / "at-10-0.25").exists, "the second one's tenth step")
    third = folder.start("train.py", "0.5", SLURM_JOB_ID="778")
    wait_until((folder.runs / "778-3/attempts/0/launch.json").exists, "the first command once more")
    folder.mark("hold", there=False)
    (first_out, first_lines), (second_out, second_lines), (third_out, third_lines) = map(output_of, (first, second, third))
    assert (begins("0.5", 0, "778") in first_out, first_lines) == (True, [])
    assert (begins("0.25", 0, "778-2") in second_out, second_lines) == (True, ["run `778-2`: `778` belongs to another command"])
    assert begins("0.5", 0, "778-3") in third_out
    assert third_lines == ["run `778-3`: `778` is the same command and is still running"]
    assert folder.attempts() == {"778": 1, "778-2": 1, "778-3": 1}
    assert [len(Run(folder.runs / name).journal("start")) for name in ("778", "778-2", "778-3")] == [1, 1, 1], (
        "nobody was disturbed"
    )


def stopped(folder: Folder, *words: str, number: int = signal.SIGTERM, code: int = 82, **variables: str) -> None:
    """A run of the command that is stopped after its tenth step."""
    folder.mark("hold")
    process = folder.start(*words, **variables)
    wait_until((folder.path / f"at-10-{words[-1]}").exists, "the tenth step")
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == code
    folder.mark("hold", there=False)


def test_each_command_of_a_requeued_job_resumes_its_own_run(folder: Folder) -> None:
    """The batch script is run again from its top: completed commands train again, stopped ones resume."""
    folder.torchrun("train.py", "0.5", SLURM_JOB_ID="7")
    stopped(folder, "train.py", "0.25", SLURM_JOB_ID="7")
    again = [folder.torchrun("train.py", lr, SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1") for lr in ("0.5", "0.25")]
    assert begins("0.5", 0, "7-3") in again[0][0]
    assert again[0][1] == ["run `7-3`: `7` is the same command and has completed"]
    assert begins("0.25", 10, "7-2") in again[1][0]
    assert again[1][1] == ["run `7-2` resumes as attempt 1: it is the same command, and attempt 0 did not complete"]
    assert folder.attempts() == {"7": 1, "7-2": 2, "7-3": 1}


@pytest.mark.variant
def test_a_sigkilled_run_resumes_once_its_processes_have_ended(folder: Folder) -> None:
    folder.mark("hold")
    process = folder.start("--rdzv-id", "exp", "train.py", "0.5")
    wait_until((folder.path / "at-10-0.5").exists, "the tenth step")
    published = json.loads((folder.runs / "exp/attempts/0/nodes/0.json").read_text())
    assert published["process"]["pid"] == published["pid"], "the launcher became the supervisor"
    os.kill(published["pid"], signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)
    wait_until(lambda: not processes_of(folder.runs / "exp"), "the end of all of its processes")
    assert not (folder.runs / "exp/attempts/0/verdict.json").exists()
    folder.mark("hold", there=False)
    out, lines = folder.torchrun("--rdzv-id", "exp", "train.py", "0.5")
    assert begins("0.5", 10, "exp") in out
    assert lines == ["run `exp` resumes as attempt 1: it is the same command, and attempt 0 did not complete"]


def test_an_edited_script_is_a_new_run_unless_its_run_is_named(folder: Folder) -> None:
    folder.mark("break")
    folder.torchrun("--rdzv-id", "exp", "--max-restarts", "0", "train.py", "0.5", code=83)
    folder.mark("break", there=False)
    (folder.path / "train.py").write_text(TRAINING + "print('mended')\n")
    out, lines = folder.torchrun("--rdzv-id", "exp", "train.py", "0.5")
    assert begins("0.5", 0, "exp-2") in out
    assert lines == ["run `exp-2`: train.py differs from the code that `exp` ran; set HEADWAY_RUN=exp to resume it"]
    out, lines = folder.torchrun("train.py", "0.5", HEADWAY_RUN="exp")
    assert begins("0.5", 10, "exp") in out
    assert (lines, folder.attempts()) == ([], {"exp": 2, "exp-2": 1})


def test_resuming_a_named_run_is_rejected_while_it_is_running(folder: Folder) -> None:
    folder.mark("hold")
    process = folder.start("train.py", "0.5", HEADWAY_RUN="mine")
    wait_until((folder.path / "at-10-0.5").exists, "the tenth step")
    refused = folder.start("train.py", "0.25", HEADWAY_RUN="mine")
    _, error = refused.communicate(timeout=LIMIT_S)
    assert (refused.returncode, error.count("\n")) == (2, 1)
    assert "HEADWAY_RUN=mine: attempt 0 of this run is still running" in error
    folder.mark("hold", there=False)
    output_of(process)
    assert folder.attempts() == {"mine": 1}


# --- several nodes ------------------------------------------------------------------------------------------------------

# Each rank waits until a file in the folder releases it, so that others find it running. Torch is not imported: names do not depend on it.
PAIR = """#!/bin/sh
echo "word $1 rank $RANK of $WORLD_SIZE id $TORCHELASTIC_RUN_ID"
while [ -e hold ]; do sleep 0.02; done
"""


def write_pair(folder: Folder) -> None:
    (folder.path / "pair.sh").write_text(PAIR)
    (folder.path / "pair.sh").chmod(0o755)


def ports(count: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


def nodes_at(port: int, least: int = 2) -> tuple[str, ...]:
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "100")
    return ("--nnodes", f"{least}:2", *where, "--rdzv-conf", "last_call_timeout=1")


def test_one_rendezvous_id_at_two_endpoints_is_two_runs(folder: Folder) -> None:
    write_pair(folder)
    one, two = ports(2)
    folder.mark("hold")
    first = [folder.start(*nodes_at(one), "--no-python", "./pair.sh", "same") for _ in range(2)]
    wait_until((folder.runs / "100/attempts/0/nodes/1.json").exists, "the first pair")
    second = [folder.start(*nodes_at(two), "--no-python", "./pair.sh", "same") for _ in range(2)]
    wait_until((folder.runs / "100-2/attempts/0/nodes/1.json").exists, "the second pair")
    folder.mark("hold", there=False)
    for pair, lines in ((first, []), (second, ["run `100-2`: `100` is the same command and is still running"])):
        printed = [output_of(process) for process in pair]
        assert sorted(out for out, _ in printed) == [f"word same rank {rank} of 2 id 100\n" for rank in (0, 1)]
        assert [line for _, found in printed for line in found if "can join" not in line] == lines
    assert folder.attempts() == {"100": 1, "100-2": 1}


def test_another_command_at_the_same_endpoint_is_rejected(folder: Folder) -> None:
    write_pair(folder)
    (port,) = ports(1)
    folder.mark("hold")
    first = folder.start(*nodes_at(port, least=1), "--no-python", "./pair.sh", "one")
    wait_until((folder.runs / "100/attempts/0/coordinator.json").exists, "the coordinator")
    refused = folder.start(*nodes_at(port, least=1), "--no-python", "./pair.sh", "two")
    _, error = refused.communicate(timeout=LIMIT_S)
    assert refused.returncode == 2
    assert "another command is running there, `./pair.sh one` as run `100`: this node's differs in arguments" in error
    folder.mark("hold", there=False)
    assert output_of(first)[0] == "word one rank 0 of 1 id 100\n"
    assert folder.attempts() == {"100": 1}


@pytest.mark.variant
def test_each_point_of_a_sweep_over_two_nodes_at_one_endpoint_is_a_run(folder: Folder) -> None:
    write_pair(folder)
    (port,) = ports(1)
    for word in ("a", "b", "c"):
        pair = [folder.start(*nodes_at(port), "--no-python", "./pair.sh", word) for _ in range(2)]
        assert sorted(output_of(process)[0] for process in pair) == [f"word {word} rank {rank} of 2 id 100\n" for rank in (0, 1)]
    assert folder.attempts() == {"100": 1, "100-2": 1, "100-3": 1}


@pytest.mark.variant
def test_a_stopped_pair_resumes_at_another_endpoint(folder: Folder) -> None:
    write_pair(folder)
    one, two = ports(2)
    folder.mark("hold")
    first = [folder.start(*nodes_at(one), "--no-python", "./pair.sh", "same") for _ in range(2)]
    wait_until((folder.runs / "100/attempts/0/nodes/1.json").exists, "both nodes")
    wait_until(lambda: bool(Run(folder.runs / "100").journal("start")), "the start")
    for process in first:
        process.terminate()
    assert [process.communicate(timeout=LIMIT_S) and process.returncode for process in first] == [82, 82]
    folder.mark("hold", there=False)
    second = [folder.start(*nodes_at(two), "--no-python", "./pair.sh", "same") for _ in range(2)]
    assert sorted(output_of(process)[0] for process in second) == [f"word same rank {rank} of 2 id 100\n" for rank in (0, 1)]
    assert folder.attempts() == {"100": 2}
