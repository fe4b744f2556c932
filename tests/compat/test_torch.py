"""Tests what must work under any torch from 2.6 on: `make compat` runs this under several, `make test` under its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.run import get_args_parser

from headway.runner.torchrun.arguments import CARRIED, LATER, UsageError, bound_cpus, parse
from tests.faults.runs import JOB, headway, only_run
from tests.support.worlds import run_world

CLUSTER = JOB.parent / "cluster.yaml"

IMPORTS = """
import importlib, pkgutil
import headway.checkpoint, headway.runner
for module in pkgutil.walk_packages(headway.runner.__path__, "headway.runner."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.mark.slow
def test_every_runner_module_can_be_imported() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_flags_unknown_to_this_torch_have_the_defaults_of_newer_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    arguments = parse([str(tmp_path / "train.py")])
    assert {name: getattr(arguments, name) for name in LATER} == LATER
    assert vars(arguments).keys() >= CARRIED


def test_a_flag_unknown_to_this_torch_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    there = {action.dest: action for action in get_args_parser()._actions}
    given = ["--shutdown-timeout", "5", str(tmp_path / "train.py")]
    if "shutdown_timeout" in there:
        assert parse(given).shutdown_timeout == 5
        return
    with pytest.raises(SystemExit) as left:
        parse(given)
    assert left.value.code == 2


def test_cpus_are_bound_by_torchs_rule_or_the_limitation_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "numactl").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    arguments = parse([str(tmp_path / "train.py")])
    assert bound_cpus(arguments, 2) == {}
    try:
        from torch.numa import binding
    except ImportError:
        return
    arguments.numa_binding = "node"
    if hasattr(binding, "_get_validated_logical_cpus_to_bind_to"):
        monkeypatch.setattr(binding, "_get_validated_logical_cpus_to_bind_to", lambda **_: {1, 0})
        assert bound_cpus(arguments, 2) == {0: [0, 1], 1: [0, 1]}
        return
    with pytest.raises(UsageError, match=r"rule of torch .* is not supported"):
        bound_cpus(arguments, 2)


# Saves in every way that is hooked, and starts from the newest, which all ways must have.
SAVING = """
import os, pathlib, signal, sys, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from headway import checkpoint

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, saved = dist.get_rank(), pathlib.Path("saved")
saved.mkdir(exist_ok=True)
ddp = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(ddp.parameters())
own = torch.nn.Linear(8, 4)
with checkpoint.open(tiers={"shared": 1}) as run:
    start = run.load({"own": own})
    if start:
        state = torch.load(saved / f"{start}.pt")
        model_state, optimizer_state = get_state_dict(ddp, optimizer)
        both = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(both, checkpoint_id=saved / f"step-{start}")
        set_state_dict(ddp, optimizer, model_state_dict=both["model"], optim_state_dict=both["optimizer"])
        for name, tensor in ddp.module.state_dict().items():
            assert torch.equal(tensor, state["model"][name]), name
            assert torch.equal(tensor, own.state_dict()[name]), name
    for step in range(start + 1, 9):
        batch = torch.randn(2, 8, generator=torch.Generator().manual_seed(100 * step + rank))
        ddp(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        own.load_state_dict(ddp.module.state_dict())
        if rank == 0:
            torch.save({"model": ddp.module.state_dict()}, saved / f"{step}.pt")
        model_state, optimizer_state = get_state_dict(ddp, optimizer)
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=saved / f"step-{step}")
        run.save(step, {"own": own})
        run.wait()
        dist.barrier()
        if (step, rank, sys.argv[1]) == (5, 1, "killed") and not start:
            os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    print("from", start, "to", [value.hex() for value in ddp.module.bias.tolist()])
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.variant
def test_a_killed_script_resumes_and_ends_as_if_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    for which in ("sound", "killed"):
        folder = tmp_path / which
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder / "train.py").write_text(SAVING)
        done = headway("torchrun", "--nproc-per-node", "2", "train.py", which, runs=folder / "runs")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "headway: see_" not in done.stderr, "no hook fails"
        assert "hook_" not in done.stderr
        ended.append(done.stdout.strip().splitlines()[-1].split(" to "))
    (_, right), (start, found) = ended
    assert (start, found) == ("from 5", right)
    assert only_run(tmp_path / "killed/runs").journal("failure")[0]["cause"] == "killed by SIGKILL"


@pytest.mark.slow
@pytest.mark.variant
def test_the_builtin_trainer_resumes_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER.read_text())
    (tmp_path / "job.yaml").write_text(JOB.read_text().replace("steps: 60", "steps: 20"))
    done = headway("run", tmp_path / "job.yaml", "--kill", "1@15", runs=tmp_path / "runs")
    run = only_run(tmp_path / "runs")
    if not hasattr(torch.cpu.Stream, "record_event"):
        assert (done.returncode, run.steps()) == (83, [])
        assert "works on GPUs only" in (run.directory / "attempts/0/logs/0/0.log").read_text()
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.steps() == [*range(1, 16), *range(11, 21)]


HANGS = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
ddp = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(1, 7):
    ddp(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    if (step, dist.get_rank(), os.environ["HEADWAY_GENERATION"]) == (4, 1, "1"):
        time.sleep(10_000)
print("ended")
dist.destroy_process_group()
"""
HANGING = """
apiVersion: headway/v1alpha1
kind: TrainingJob
name: hangs
cluster: this-machine
nodes: 1
trainer: {kind: script, options: {argv: [train.py]}}
# Who sleeps on a clock has the time of an evaluation.
resilience: {timeouts: {compute: 5s, collective: 5s, evaluation: 5s}}
"""


@pytest.mark.slow
@pytest.mark.variant
def test_a_hung_rank_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(HANGS)
    (tmp_path / "cluster.yaml").write_text(CLUSTER.read_text())
    (tmp_path / "job.yaml").write_text(HANGING)
    done = headway("run", "job.yaml", runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    (failure,) = only_run(tmp_path / "runs").journal("failure")
    assert (failure["cause_kind"], failure["rank"]) == ("hang", 1), failure


@pytest.mark.slow
@pytest.mark.variant
def test_replicas_are_compared(tmp_path: Path) -> None:
    run_world("tests.support.ranks.comparing", 2, tmp_path, "pair", "sound", "alone")
