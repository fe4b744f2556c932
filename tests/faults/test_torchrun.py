"""Tests `headway torchrun` in place of `torchrun`: an unmodified script survives a killed worker; plain torchrun is the control."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import processes_of
from .runs import LIMIT_S, going, headway, only_run, wait_until

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples/one-word/train.py"
TWO_RANKS = ("--nproc-per-node", "2", SCRIPT, "--checkpoints")


@pytest.mark.variant
def test_a_killed_worker_ends_plain_torchrun(tmp_path: Path) -> None:
    """The control, which does not restart by default."""
    words = map(str, (*TWO_RANKS, tmp_path / "plain", "--crash-at", "35"))
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (plain.returncode, "finished" in plain.stdout) == (1, False)


# The story below loses a worker too.
@pytest.mark.variant
def test_a_killed_worker_loses_the_steps_since_the_scripts_checkpoint(tmp_path: Path) -> None:
    ours = headway("torchrun", *TWO_RANKS, tmp_path / "ours", "--crash-at", "35", runs=tmp_path / "runs")
    assert ours.returncode == 0, ours.stdout + ours.stderr
    assert "finished step 64 " in ours.stdout
    assert "resumed from step 30" in ours.stdout
    assert "killed by SIGKILL, rank 1" in ours.stderr
    run = only_run(tmp_path / "runs")
    assert [(f["cause"], f["rank"], f["step"]) for f in run.journal("failure")] == [("killed by SIGKILL", 1, 35)]


# Two ranks in three generations, at a port that is given for the store. Rank 1 is killed in the first, and calls another collective than
# rank 0 in the second; in the third it uses the store when rank 0 has ended. Each generation leaves what the next one must not find.
STORY = """
import os, signal, sys, time, torch, torch.distributed as dist
from headway import checkpoint
port, rank, restarts = sys.argv[1], int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("localhost", port)
# As test_init_method_tcp_with_torchelastic of torch's test_run.py.
dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
store = dist.TCPStore("localhost", int(port), is_master=False, wait_for_workers=False)
assert not store.check(["left"]), "this is the store of an earlier generation"
dist.barrier()
store.set("left", "1")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}
with checkpoint.open(tiers={"shared": 10}, keep=2) as run:
    start = run.load(state)
    # In one piece: both ranks write into one pipe, and print() writes each word by itself there.
    sys.stdout.write(f"from step {start}\\n")
    sys.stdout.flush()
    for step in range(start + 1, 61):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        run.save(step, state)
        if (restarts, step) == (0, 43):
            run.wait()
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        if (restarts, step, rank) == (1, 45, 1):
            dist.broadcast(torch.ones(4), src=1)
        dist.all_reduce(torch.ones(4))
# A run that compares no replicas pays nothing for it.
assert "headway.runner.boot.compare" not in sys.modules
if rank == 0:
    store.set("first", str(os.getpid()))
else:
    first = store.get("first").decode()
    while os.path.exists(f"/proc/{first}"):
        time.sleep(0.02)
    late = dist.TCPStore("localhost", int(port), is_master=False, wait_for_workers=False)
    late.set("late", "1")
    sys.stdout.write(f"late {late.get('late').decode()}\\n")
    sys.stdout.flush()
os._exit(0)
"""


def test_a_script_loses_the_steps_since_its_save_to_a_kill_and_to_a_hang(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STORY)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    flags = ("--nnodes=1", "--nproc-per-node=2", "--master-addr=localhost", f"--master-port={port}", "--max-restarts=2")
    done = headway("torchrun", *flags, tmp_path / "train.py", str(port), runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(["from step 0", "from step 40", "from step 40"] * 2 + ["late 1"])
    run = only_run(tmp_path / "runs")
    killed, hung = run.journal("failure")
    assert (killed["cause"], killed["rank"], killed["step"]) == ("killed by SIGKILL", 1, 43)
    assert hung["cause_kind"] == "hang"
    assert "killed by SIGKILL, rank 1" in done.stderr
    # The collective's own timeout is 30 minutes, and so is gloo's.
    (hang,) = run.journal("hang")
    assert (hang["ranks"], hang["section"]) == ([], "collective")
    named = r"as number \d+ of group default_pg, and 1 other all_reduce of 4 elements: they will never match$"
    assert re.search(named, hang["why"]), hang["why"]
    assert [line["step"] for line in run.journal("committed")] == [10, 20, 30, 40, 50, 60]
    assert [line["step"] for line in run.journal("loaded")] == [0, 40, 40]
    assert [int(path.name[5:14]) for path in run.checkpoints()] == [40, 50, 60]


SAVING = """
import os, signal, torch, torch.distributed as dist
from headway import checkpoint
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}
with checkpoint.open() as run:
    start = run.load(state)
    print(f"from step {start}", flush=True)
    for step in range(start + 1, 301):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        run.save(step, state)
        if start == 0 and step == 217:
            run.wait()
            dist.barrier()
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.variant
def test_without_settings_a_script_saves_each_hundred_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SAVING)
    done = headway("torchrun", "--nproc-per-node", "2", script, runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path / "runs")
    assert [line["step"] for line in run.journal("committed")] == [100, 200, 300]
    assert [line["step"] for line in run.journal("loaded")] == [0, 200]
    assert [int(path.name[5:14]) for path in run.checkpoints()] == [100, 200, 300]
    assert done.stdout.count("from step 200") == 2


# tests/runner/torchrun/test_ending.py tests it with a script that fails once.
@pytest.mark.variant
def test_max_restarts_has_torchruns_meaning(tmp_path: Path) -> None:
    words = ("--max-restarts", "0", *TWO_RANKS, tmp_path / "checkpoints", "--crash-at", "15")
    done = headway("torchrun", *words, runs=tmp_path / "runs")
    assert done.returncode == 83
    assert len(only_run(tmp_path / "runs").journal("start")) == 1


def test_a_script_that_always_fails_is_stopped_with_its_error(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    # headway imports nothing ahead of a script that sets variables.
    script.write_text("import os\nos.environ['SET'] = '1'\nraise ValueError('no such layer')\n")
    done = headway("torchrun", script, runs=tmp_path / "runs")
    assert done.returncode == 83
    assert "ValueError: no such layer" in only_run(tmp_path / "runs").verdict()["cause"]
    assert "boot.py" not in done.stdout + done.stderr, "the traceback is the script's own"
    assert "headway: stop: the user's error, or no progress (exit code 83)" in done.stderr


@pytest.mark.variant
def test_a_script_gets_the_same_environment_as_under_torchrun(tmp_path: Path) -> None:
    """Covers argv, its folder first on the path, itself as __main__ also for pickle, exit hooks, sys.exit, and torchrun's variables."""
    (tmp_path / "neighbour.py").write_text("NAME = 'neighbour'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, os, pickle, sys, neighbour\n"
        "class Thing: pass\n"
        "assert type(pickle.loads(pickle.dumps(Thing()))) is Thing\n"
        "assert __name__ == '__main__' and sys.argv[1:] == ['--flag', 'a b'], sys.argv\n"
        "names = 'RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID'\n"
        "assert all(name in os.environ for name in names.split())\n"
        "atexit.register(sys.stdout.write, f\"left {os.environ['RANK']} {neighbour.NAME}\\n\")\n"
        "sys.exit(0)\n"
    )
    done = headway("torchrun", "--nproc-per-node", "2", "--rdzv-id", "mine", script, "--flag", "a b", runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == ["left 0 neighbour", "left 1 neighbour"]
    assert only_run(tmp_path / "runs").directory.name == "mine"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        # From the parser, and from later checks; tests/runner/torchrun/test_arguments.py has all rejected flags.
        (["--no-such-flag", "x.py"], "--no-such-flag"),
        (["--nproc-per-node", "0", SCRIPT], "--nproc-per-node 0"),
    ],
)
def test_unsupported_flags_are_rejected_by_name(words: list[str | Path], named: str, tmp_path: Path) -> None:
    done = headway("torchrun", *words, runs=tmp_path / "runs")
    assert done.returncode == 2
    assert named in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.variant
def test_no_process_outlives_a_killed_launcher(tmp_path: Path) -> None:
    with going("torchrun", *TWO_RANKS, tmp_path / "checkpoints", "--steps", "100000", runs=tmp_path / "runs") as launcher:
        wait_until(lambda: any((tmp_path / "checkpoints").glob("step-*")), "a checkpoint of the script")
        launcher.kill()
        run = only_run(tmp_path / "runs")
        wait_until(lambda: not processes_of(run.directory), "the end of all processes of the run")
    assert run.verdict()["verdict"] == "preempted"


@pytest.mark.variant
def test_the_store_serves_until_the_last_rank_has_finished(tmp_path: Path) -> None:
    script = tmp_path / "apart.py"
    script.write_text(
        "import os, time, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "store = dist.distributed_c10d._get_default_store()\n"
        "if dist.get_rank() == 1:\n"
        "    process = '/proc/' + store.get('pid').decode()\n"
        "    for _ in range(100):  # rank 0 has nothing left to do: without a store to serve it would be gone by now\n"
        "        if os.path.exists(process): time.sleep(0.01)\n"
        "    store.set('late', 'yes'); print('late:', store.get('late').decode())\n"
        "else:\n"
        "    store.set('pid', str(os.getpid()))\n"
        "dist.destroy_process_group()\n"
    )
    done = headway("torchrun", "--nproc-per-node", "2", script, runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "late: yes" in done.stdout


@pytest.mark.variant
def test_processes_that_a_script_leaves_continue_after_the_run(tmp_path: Path) -> None:
    script = tmp_path / "daemon.py"
    script.write_text(
        "import subprocess\nfrom pathlib import Path\n"
        "left = subprocess.Popen(['sleep', '1000'], start_new_session=True, stdout=-3, stderr=-3)\n"
        "Path(__file__).with_name('pid').write_text(str(left.pid))\n"
    )
    done = headway("torchrun", "--nproc-per-node", "1", script, runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # raises if it has ended
