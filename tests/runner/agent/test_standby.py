"""Tests warm standbys: each becomes what a fresh process would have been, and one that cannot is not used."""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headway.runner.agent import processes, warm
from headway.runner.agent import standby as becoming
from headway.runner.agent.processes import describe_status, spawn
from headway.runner.start import START

# A worker that shows every difference it could observe, except what is imported.
WORKER = """
import gc, json, os, resource, signal, sys
names = ["HOME", "RANK", "LEFT", "HEADWAY_ROOM", "HEADWAY_ORDERS_FD"]
shown = open("/proc/self/environ").read().split(chr(0))
facts = {
    "argv": sys.argv[1:], "file": os.path.basename(sys.argv[0]), "main": __name__ == "__main__" and sys.modules["__main__"].__spec__.name,
    "environment": {name: os.environ.get(name) for name in names}, "shown": "RANK=3" in shown,
    "command": open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0))[1:], "orig_argv": sys.orig_argv[1:],
    "path": sys.path[0], "signals": [signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGCHLD)],
    "session": os.getsid(0) == os.getpid(), "niceness": os.getpriority(os.PRIO_PROCESS, 0), "directory": os.getcwd(),
    "stdin": os.readlink("/proc/self/fd/0"),
    "events": os.read(int(os.environ["EVENTS_FD"]), 10).decode(), "slow": "colorsys" in sys.modules,
    "collects": [gc.isenabled(), gc.get_freeze_count(), gc.get_threshold()],
}
print(json.dumps(facts, sort_keys=True))
print("to stderr", file=sys.stderr)
sys.exit(5)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "worker_of_a_test.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return "worker_of_a_test"


@pytest.fixture
def event() -> Iterator[int]:
    """A descriptor from which every reader gets the same."""
    read, write = os.pipe()
    os.write(write, b"descriptor" * 8)
    yield read
    os.close(read)
    os.close(write)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "RANK": "3", "LEFT": "", **more}


def argv(module: str) -> list[str]:
    return [sys.executable, "-u", START, module, "--flag", "two words"]


def until(ready: "Sequence[warm.Standby]") -> None:
    deadline = time.monotonic() + 60
    while not all(each.hear() and each.ready for each in ready):
        assert time.monotonic() < deadline, "no standby within 60 s"
        time.sleep(0.01)


def start(module: str, modules: Sequence[str] = (), **more: str) -> warm.Standby:
    return warm.start_standby(argv(module), environment(**more), dict(os.environ), modules)


def order(module: str, log: Path, event: int, **more: str) -> warm.WorkerOrder:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return warm.WorkerOrder(0, argv(module), environment(**more), {"EVENTS_FD": event}, output, output)


def finish(pid: int) -> str:
    return describe_status(os.waitpid(pid, 0)[1])


def test_a_standby_equals_a_fresh_process_except_for_its_imports(module: str, event: int, tmp_path: Path) -> None:
    fresh, warmed = tmp_path / "fresh.log", tmp_path / "warm.log"
    os.set_inheritable(event, True)
    assert finish(spawn(argv(module), environment(EVENTS_FD=str(event)), [event], fresh, fresh)) == "exit code 5"
    parked = start(module, ["colorsys", "no_such_module"])
    until([parked])
    assert warm.hand_over([(parked, order(module, warmed, event))]) == ({0: parked.pid}, {})
    assert finish(parked.pid) == "exit code 5"
    assert warmed.read_text() == fresh.read_text().replace('"slow": false', '"slow": true')


def test_a_dead_standby_is_not_used(module: str, event: int, tmp_path: Path) -> None:
    parked = start(module)
    until([parked])
    os.kill(parked.pid, signal.SIGKILL)
    assert finish(parked.pid) == "killed by SIGKILL"
    assert warm.hand_over([(parked, order(module, tmp_path / "log", event))]) == ({}, {0: "it has ended"})


def test_a_stopped_standby_is_killed_and_not_awaited(
    module: str, event: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "ANSWER_S", 0.05)
    parked = start(module)
    until([parked])
    os.kill(parked.pid, signal.SIGSTOP)
    assert warm.hand_over([(parked, order(module, tmp_path / "log", event))]) == ({}, {0: "it did not answer"})
    assert finish(parked.pid) == "killed by SIGKILL"
    assert (tmp_path / "log").read_text() == ""


def test_a_standby_that_is_still_importing_is_not_awaited(module: str, event: int, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\nwhile True:\n    time.sleep(1)\n")
    parked = start(module, ["endless"])
    assert warm.hand_over([(parked, order(module, tmp_path / "log", event))]) == ({}, {0: "it was still importing"})
    assert finish(parked.pid) == "killed by SIGKILL"


def test_an_early_standby_accepts_its_order_while_importing(module: str, event: int, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    (tmp_path / "gated.py").write_text(f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n")
    began = warm.start_standby(argv(module), environment(), dict(os.environ), ["gated"], first=True)
    given = replace(order(module, tmp_path / "log", event, ADDED="1"), added=frozenset({"ADDED"}))
    assert warm.hand_over([(began, given)]) == ({0: began.pid}, {})
    gate.touch()
    assert finish(began.pid) == "exit code 5"
    assert '"RANK": "3"' in (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"])
def test_an_early_standby_is_unused_if_its_imports_may_differ(
    name: str, module: str, event: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    began = warm.start_standby(argv(module), environment(), dict(os.environ), (), first=True)
    added = frozenset({"CUDA_VISIBLE_DEVICES", "RANK"})  # the thread count is the node's
    given = replace(order(module, tmp_path / "log", event, **{name: "1"}), added=added)
    assert warm.hand_over([(began, given)]) == ({}, {0: f"the environment differs: {name}"})
    assert finish(began.pid) == "killed by SIGKILL"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "changed", "named"),
    [
        (["colorsys"], {"RANK": "4"}, "RANK"),
        (["colorsys"], {"MASTER_PORT": "2", "HEADWAY_GENERATION": "7"}, None),
        (["numpy.nothing"], {"RANK": "4", "WORLD_SIZE": "9"}, None),
        (["numpy.nothing"], {"OMP_NUM_THREADS": "4"}, "OMP_NUM_THREADS"),
    ],
    ids=["libraries-rank", "libraries-generation", "torch-rank", "threads"],
)
def test_imports_made_in_another_environment_are_not_used(
    modules: list[str],
    changed: dict[str, str],
    named: str | None,
    module: str,
    event: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    parked = start(module, modules)
    until([parked])
    taken, refused = warm.hand_over([(parked, order(module, tmp_path / "log", event, **changed))])
    assert (taken, refused) == (({0: parked.pid}, {}) if named is None else ({}, {0: f"the environment differs: {named}"}))
    assert finish(parked.pid) == ("exit code 5" if named is None else "killed by SIGKILL")


def test_a_standby_whose_imports_make_a_device_context_gives_up(module: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("class cuda:\n    is_initialized = staticmethod(lambda: True)\n")
    parked = start(module, ["torch"])
    assert finish(parked.pid) == f"exit code {becoming.HAS_A_DEVICE}"
    assert not parked.hear()
    parked.orders.close()


def test_a_standby_whose_imports_open_a_device_gives_up(module: str, tmp_path: Path) -> None:
    """Devices are recognized by the name that their driver gives them, whichever library opens them."""
    (tmp_path / "opens.py").write_text(
        "import re\nfrom headway.runner.agent import processes\nprocesses._DEVICE = re.compile('.*/opens.py')\nkept = open(__file__)\n"
    )
    parked = start(module, ["opens"])
    assert finish(parked.pid) == f"exit code {becoming.HAS_A_DEVICE}"
    parked.orders.close()


@pytest.mark.parametrize(
    ("name", "computes"),
    [("nvidia0", True), ("nvidia-uvm", True), ("kfd", True), ("dri/renderD128", True), ("nvidiactl", False), ("null", False)],
)
def test_compute_devices_are_distinguished_from_control_devices(name: str, computes: bool) -> None:
    assert bool(processes._DEVICE.fullmatch(f"/dev/{name}")) is computes


def test_each_library_is_imported_with_the_variables_set_by_the_script(module: str, event: int, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(
            "import os\nopen(__file__ + '.saw', 'w').write(repr([os.environ.get(n) for n in ('A', 'LEFT')]))\n"
        )
    overlays: dict[str, dict[str, str | None]] = {"first": {"A": "1", "LEFT": None}, "second": {"A": "2"}}
    parked = warm.start_standby(argv(module), environment(), dict(os.environ), ["first", "second"], overlays=overlays)
    until([parked])
    assert [(tmp_path / f"{name}.py.saw").read_text() for name in ("first", "second")] == ["['1', None]", "['2', '']"]
    assert warm.hand_over([(parked, order(module, tmp_path / "log", event))])[0] == {0: parked.pid}
    assert finish(parked.pid) == "exit code 5"
    assert '"LEFT": ""' in (tmp_path / "log").read_text(), "the worker's environment is its own"


def test_a_standby_ends_with_its_supervisor(module: str) -> None:
    parked = start(module)
    until([parked])
    parked.orders.close()
    assert finish(parked.pid) == "exit code 0"


def test_an_order_larger_than_a_socket_buffer_arrives_whole(module: str, event: int, tmp_path: Path) -> None:
    parked = start(module, LARGE="x" * 100_000, LARGER="y" * 100_000, LARGEST="z" * 100_000)
    until([parked])
    parked.orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    given = order(module, tmp_path / "log", event, LARGE="x" * 100_000, LARGER="y" * 100_000, LARGEST="z" * 100_000)
    assert warm.hand_over([(parked, given)]) == ({0: parked.pid}, {})
    assert finish(parked.pid) == "exit code 5"


def test_only_listed_libraries_are_imported_and_fewer_for_an_unknown_rank() -> None:
    imported = ["os", "train", "numpy", "torch.optim", "lightning.fabric", "my.transformers"]
    known = becoming.worth_importing(imported, of_any_rank=False)
    assert known == [*warm.ALWAYS, "numpy", "torch.optim", "lightning.fabric"]
    assert becoming.worth_importing(imported, of_any_rank=True) == [*warm.ALWAYS, "numpy", "torch.optim"]
