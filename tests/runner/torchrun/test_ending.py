"""Tests that the start and the end of a script are the same under `headway torchrun` as under `torchrun`."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.runs import LIMIT_S, headway, only_run, wait_until
from tests.support import LIGHT
from tests.support.gloo import without_abort

pytestmark = pytest.mark.slow

TWO = ("--nproc-per-node", "2")
# headway imports no torch ahead of a script that sets variables.
ALONE = "import os\nos.environ['SET'] = '1'\n"


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def torchrun(*words: str | Path, given: str = "") -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "torch.distributed.run", *map(str, words)]
    return subprocess.run(argv, input=given, capture_output=True, text=True, check=False, timeout=LIMIT_S)


AGAIN = """
import os, sys
if os.environ.get("PYTHONHASHSEED") != "0":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, *sys.argv])
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(one := torch.ones(1))
# In one piece: both ranks write into one pipe, and print() writes each word by itself there.
sys.stdout.write(f"sum {one.item()}\\n")
# Without it gloo's threads abort an interpreter's end now and then, under plain Python too.
dist.destroy_process_group()
"""


@pytest.mark.variant
def test_a_script_that_re_executes_itself_finds_the_existing_store(tmp_path: Path) -> None:
    train = script(tmp_path, AGAIN)
    done = without_abort(lambda number: headway("torchrun", *TWO, train, runs=tmp_path / f"runs-{number}"))
    assert (done.returncode, done.stdout) == (0, "sum 2.0\nsum 2.0\n"), done.stderr


# Each module's reducer is the last holder of its group when the function returns. Under torchrun this deadlocks within a few rounds.
PARALLEL = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ["RANK"])
def train(store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()
first = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
for round in range(10):
    train(dist.PrefixStore(str(round), first))
"""


GROUPS = """
dist.init_process_group("gloo")
counts = []
for round in range(20):
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    counts.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
dist.destroy_process_group()
sys.stdout.write(f"{len(set(counts[5:]))}\\n")
"""


def test_a_ddp_function_returns_and_leaves_no_file_thread_or_process(tmp_path: Path) -> None:
    train = script(tmp_path, PARALLEL + GROUPS)
    done = without_abort(lambda number: headway("torchrun", *TWO, train, runs=tmp_path / f"runs-{number}"))
    assert (done.returncode, done.stdout) == (0, "1\n1\n"), done.stderr
    named = str(tmp_path).encode()

    def left() -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if int(entry.name) != os.getpid() and named in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
        return found

    wait_until(lambda: not left(), "the end of all")


# tests/harmless compares it, in the scenarios "redirected output" and "program".
@pytest.mark.variant
def test_piped_input_reaches_the_script(tmp_path: Path) -> None:
    reads = script(tmp_path, "import sys; print('read', repr(sys.stdin.read()), sys.stdin.isatty())")
    argv = [sys.executable, "-m", "headway.cli.main", "torchrun", str(reads)]
    environment = {**os.environ, "HEADWAY_RUNS": str(tmp_path / "runs")}
    ours = subprocess.run(argv, env=environment, input="hello\n", capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ours.stdout == torchrun(reads, given="hello\n").stdout == "read 'hello\\n' False\n"


def test_a_debugger_works_at_a_terminal(tmp_path: Path) -> None:
    stops = script(tmp_path, f"{ALONE}x = 41\nbreakpoint()\nprint('went on with', x)\n")
    argv = [sys.executable, "-m", "headway.cli.main", "torchrun", str(stops)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(argv[0], argv, {**os.environ, "PYTHONPATH": LIGHT, "HEADWAY_RUNS": str(tmp_path / "runs")})
    shown = ""
    for ends, answer in (("(Pdb) ", "x + 1\n"), ("(Pdb) ", "x = 7\n"), ("(Pdb) ", "c\n"), ("went on with 7", "")):
        while ends not in shown:
            shown += os.read(terminal, 4096).decode()
        found, shown = shown.split(ends, 1)
        if answer == "x = 7\n":
            assert re.search(r"^42\s", found, re.MULTILINE)
        os.write(terminal, answer.encode())
    while True:
        try:
            os.read(terminal, 4096)
        except OSError:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


SETS = """
import os, signal, sys
os.environ["OMP_NUM_THREADS"] = "2"
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
import beside
first = "torch" not in sys.modules
import torch
inductor = __import__("torch._inductor.config")._inductor.config.compile_threads
print("threads", torch.get_num_threads(), "inductor", inductor, flush=True)
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
optimizer.step()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    import glob, time
    while not glob.glob(sys.argv[1]):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_scripts_imports_see_the_variables_it_set_in_each_generation(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import os\nos.environ['TORCHINDUCTOR_COMPILE_THREADS'] = '3'\n")
    program = script(tmp_path, SETS)
    ready = tmp_path / "runs/*/attempts/0/modules-0.json"
    done = headway("torchrun", program, ready, runs=tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "threads 2 inductor 3\n" * 2
    assert len(only_run(tmp_path / "runs").journal("start")) == 2


CRASHES = (
    ALONE
    + """
import mmap, subprocess, sys, time
mine = sys.argv[1] + os.environ["RANK"] + os.environ["TORCHELASTIC_RESTART_COUNT"]
for name, new in (("plain", False), ("session", True)):
    subprocess.Popen(["sh", "-c", f"while [ ! -e {mine}-go ]; do sleep 0.05; done; echo uploaded > {mine}-{name}"],
                     start_new_session=new, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
first = mine[:-2] + "pid" + mine[-1]
if os.environ["RANK"] == "0":
    open(first + ".new", "w").write(str(os.getpid()))
    os.rename(first + ".new", first)
    sys.exit(0)
while not os.path.exists(first) or os.path.exists("/proc/" + open(first).read()):
    time.sleep(0.02)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    # As a data loader, which has the data set mapped when it becomes an orphan.
    reads, writes = os.pipe()
    if os.fork() == 0:
        staged = mmap.mmap(os.open(sys.argv[2], os.O_RDONLY), 0, prot=mmap.PROT_READ)
        os.write(writes, staged[:1])
        time.sleep(600)
    os.read(reads, 1)
    os.kill(os.getpid(), 9)
"""
)


def test_left_processes_and_a_data_set_in_memory_survive_a_crash(tmp_path: Path) -> None:
    # A name as unfortunate as possible.
    staged = Path(f"/dev/shm/torch_{os.getpid()}_1_1")
    staged.write_bytes(b"x" * 4096)
    try:
        done = headway("torchrun", *TWO, script(tmp_path, CRASHES), tmp_path / "a", staged, runs=tmp_path / "runs")
        assert done.returncode == 0, done.stderr
        assert len(only_run(tmp_path / "runs").journal("failure")) == 1
        assert staged.stat().st_size == 4096
    finally:
        staged.unlink(missing_ok=True)
    # Of the rank that had completed before the crash, and of both at the run's end.
    left = ("a00", "a01", "a11")
    for name in left:
        (tmp_path / f"{name}-go").touch()
    uploads = [tmp_path / f"{name}-{way}" for name in left for way in ("plain", "session")]
    wait_until(lambda: all(upload.exists() for upload in uploads), "all uploads")


# Python itself waits forever at this exit, in an object's finalizer.
STANDS = """
import threading
class Stands:
    def __del__(self, wait=threading.Lock().acquire): wait(); wait()
stands = Stands()
print("through", flush=True)
raise SystemExit({code})
"""


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.variant), 3])
def test_a_process_hanging_after_its_script_is_ended_with_the_scripts_code(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_LEAVE_S", "1")
    program = script(tmp_path, ALONE + STANDS.format(code=code))
    done = headway("torchrun", "--max-restarts", "0", program, runs=tmp_path / "runs")
    assert (done.returncode, done.stdout) == (83 if code else 0, "through\n"), done.stderr
    assert [failure["cause"] for failure in only_run(tmp_path / "runs").journal("failure")] == ["exit code 3"] * bool(code)
