"""Tests the heartbeats of an unmodified loop: what its calls write on the rank's page."""

import json
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict as dcp_state_dict
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import dataloader

from headway.runner.agent import flight
from headway.runner.boot import dcp_calls, heartbeat, limitations
from tests.support.worker import Booted, booted


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Booted]:
    with booted(tmp_path / "run") as found:
        yield found
    limitations._seen.clear()
    heartbeat._hidden_waits.clear()


def of_process() -> heartbeat.HeartbeatReporter:
    found = heartbeat.current()
    assert found is not None
    return found


def sections(boot: Booted, call: Callable[..., Any]) -> tuple[str, Any]:
    """The section that a call shows while it runs, where `call` takes a function that it calls."""
    seen: list[str] = []
    result = call(lambda *_: seen.append(boot.section))
    (section,) = seen
    return section, result


def test_only_steps_of_the_first_optimizer_count(boot: Booted) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    one, other = torch.optim.SGD([parameter], lr=0.1), torch.optim.SGD([parameter], lr=0.1)
    count = heartbeat.StepCounter(of_process())
    for optimizer in (one, other, one, other):
        count(optimizer)
    assert (boot.shown("step"), boot.section) == (2, "compute")


def test_a_restored_optimizer_continues_its_step_count(boot: Booted) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones(2)
    optimizer.step()
    optimizer.state[parameter]["step"] += 40
    optimizer.step()
    count = heartbeat.StepCounter(of_process())
    count(optimizer)
    assert boot.shown("step") == 42
    count(optimizer)
    assert boot.shown("step") == 43


class Calls(TorchFunctionMode):
    """Records which of torch's functions are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(operation))
        return operation(*args, **(kwargs or {}))


def test_torch_modes_of_a_script_see_no_operation_of_the_counter(boot: Booted) -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    count = heartbeat.StepCounter(of_process())
    with Calls() as calls, Operations() as operations:
        count(optimizer)
    assert (calls.names, operations.names) == ([], [])
    assert boot.shown("step") == 1


def test_a_python_profile_contains_the_counter(boot: Booted) -> None:
    count, files = heartbeat.StepCounter(of_process()), set[str]()
    sys.setprofile(lambda frame, _event, _given: files.add(frame.f_code.co_filename))
    try:
        count(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1))
    finally:
        sys.setprofile(None)
    assert heartbeat.__file__ in files


class Captured(torch.Tensor):
    """A step count on a GPU: reading it during a graph capture would end the capture."""

    is_cuda = True

    def __int__(self) -> int:
        raise AssertionError("read while a graph was captured")


def test_a_gpu_step_count_is_not_read_during_graph_capture(boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    optimizer.state[optimizer.param_groups[0]["params"][0]] = {"step": torch.tensor(5.0).as_subclass(Captured)}
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert heartbeat.steps_made(optimizer) is None


def test_a_step_that_only_initializes_optimizer_state_does_not_count(boot: Booted) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([parameter])
    module = types.SimpleNamespace(_init_optim_state=dcp_state_dict._init_optim_state)
    dcp_calls.hook_state_dict(module)
    count = heartbeat.StepCounter(of_process())
    handle = optimizer.register_step_post_hook(count)
    module._init_optim_state(optimizer)
    assert optimizer.state[parameter]["step"] == 1, "torch made a step"
    assert boot.shown("step") == 0
    handle.remove()


def test_the_modules_of_the_first_step_are_written_for_warm_starts(boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_RANK", "3")
    heartbeat.StepCounter(of_process())(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1))
    names = json.loads((boot.directory.attempt_directory / "modules-3.json").read_text())
    assert {"torch", "torch.utils.data.dataloader", "headway.runner.boot.heartbeat"} <= set(names)


def test_a_call_shows_its_section_and_nested_calls_do_not(boot: Booted) -> None:
    def fetch(look: Callable[[], None]) -> None:
        heartbeat.within("restore", look)()

    assert sections(boot, heartbeat.within("data", fetch)) == ("data", None)
    assert boot.section == "script"
    of_process().base("compute")
    assert sections(boot, heartbeat.within("save", fetch)) == ("save", None)
    assert boot.section == "compute"


def test_a_call_that_raises_leaves_its_section(boot: Booted) -> None:
    of_process().base("compute")
    with pytest.raises(ZeroDivisionError):
        heartbeat.within("data", lambda: 1 // 0)()
    assert boot.section == "compute"


def test_another_thread_gives_no_heartbeat_for_the_stepping_thread(boot: Booted) -> None:
    of_process().base("compute")
    before = boot.shown("pulse")
    seen: list[str] = []
    thread = threading.Thread(target=heartbeat.within("save", lambda: seen.append(boot.section)))
    thread.start()
    thread.join()
    assert seen == ["compute"]
    assert boot.shown("pulse") == before


def test_the_thread_that_steps_gives_the_heartbeats_from_then_on(boot: Booted) -> None:
    of_process().base("compute")
    thread = threading.Thread(target=of_process().stepped, args=(1,))
    thread.start()
    thread.join()
    assert sections(boot, heartbeat.within("data", lambda look: look())) == ("compute", None)


def test_fetching_a_batch_shows_section_data(boot: Booted) -> None:
    module = types.SimpleNamespace(_BaseDataLoaderIter=type("Iterator", (dataloader._SingleProcessDataLoaderIter,), {}))
    heartbeat.see_loader(module)
    look = types.SimpleNamespace(seen=[])

    class Looking(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            look.seen.append(boot.section)
            return index

    iterator = module._BaseDataLoaderIter(torch.utils.data.DataLoader(Looking()))
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    assert look.seen == ["data", "data"]


def test_a_backward_pass_gives_a_heartbeat_at_both_ends(boot: Booted) -> None:
    module = types.SimpleNamespace(backward=torch.autograd.backward)
    heartbeat.see_backward(module)
    before = boot.shown("pulse")
    parameter = torch.ones(2, requires_grad=True)
    seen: list[int] = []
    parameter.register_hook(lambda _: seen.append(boot.shown("pulse")))  # type: ignore[no-untyped-call]
    module.backward(parameter.sum())
    assert (seen, boot.shown("pulse")) == ([before + 1], before + 2)


def waiting(ns: int) -> Any:
    """torch.distributed.distributed_c10d with a Work that waits this long."""

    class Work:
        def wait(self) -> None:
            until = time.monotonic_ns() + ns
            while time.monotonic_ns() < until:
                pass

    module = types.SimpleNamespace(Work=Work)
    heartbeat.see_collectives(module)
    return module


def test_waiting_for_other_ranks_is_not_a_ranks_own_time(boot: Booted) -> None:
    work = waiting(20_000_000).Work()
    boot.worker.pulse()
    own_before, at = boot.shown("own_ns"), boot.shown("monotonic_ns")
    work.wait()
    passed = boot.shown("monotonic_ns") - at
    assert passed >= 20_000_000
    assert boot.shown("own_ns") - own_before <= passed - 20_000_000


def test_a_ddp_backward_pass_is_not_a_ranks_own_time(boot: Booted) -> None:
    module = types.SimpleNamespace(DistributedDataParallel=type("Parallel", (), {"__init__": lambda self: None}))
    heartbeat.see_ddp(module)
    module.DistributedDataParallel()
    autograd = types.SimpleNamespace(backward=lambda work: work.wait())
    heartbeat.see_backward(autograd)
    boot.worker.pulse()
    own_before, at = boot.shown("own_ns"), boot.shown("monotonic_ns")
    autograd.backward(waiting(20_000_000).Work())
    passed = boot.shown("monotonic_ns") - at
    assert boot.shown("own_ns") - own_before <= passed - 20_000_000
    limitations.report_limitations()
    assert [len(note["calls"]) for note in boot.said()] == [1]


def test_compilation_shows_its_section(boot: Booted) -> None:
    handler = types.SimpleNamespace(starts=[], ends=[])
    handler.register_start_callback, handler.register_end_callback = handler.starts.append, handler.ends.append
    heartbeat.see_compile(types.SimpleNamespace(callback_handler=handler))
    of_process().base("compute")
    handler.starts[0](None)
    assert boot.section == "compile"
    handler.ends[0](None)
    assert boot.section == "compute"


def test_after_eval_the_loop_is_evaluating_until_its_next_step(boot: Booted) -> None:
    module = types.SimpleNamespace(Module=type("Module", (torch.nn.Module,), {}), torch=torch)
    heartbeat.see_evaluation(module)
    module.Module().eval()
    assert boot.section == "start", "before the first step it is set-up"
    of_process().stepped(1)
    assert not module.Module().eval().training
    assert boot.section == "evaluation"
    of_process().stepped(2)
    assert boot.section == "compute"


@pytest.mark.slow
def test_a_compiled_loops_steps_are_counted_and_eval_breaks_no_graph(boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat.StepCounter, "__call__", heartbeat.StepCounter.__call__)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    heartbeat.see_dynamo(torch._dynamo)
    module = types.SimpleNamespace(Module=type("Module", (torch.nn.Linear,), {}), torch=torch)
    heartbeat.see_evaluation(module)
    layer = module.Module(2, 2)

    def evaluated(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(layer.eval()(x))

    whole = torch.compile(evaluated, backend="eager", fullgraph=True)
    assert whole(torch.ones(2)).shape == (2,), "a break would be an error"
    count, optimizer = heartbeat.StepCounter(of_process()), torch.optim.SGD(layer.parameters())
    optimizer.register_step_post_hook(count)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        step()
    assert boot.shown("step") == 3


def test_a_child_process_is_not_a_rank(boot: Booted) -> None:
    before = boot.shown("pulse")
    pid = os.fork()
    if pid == 0:
        heartbeat.within("data", lambda: None)()
        os._exit(0 if heartbeat.current() is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert boot.shown("pulse") == before


def test_an_exception_in_a_forked_process_is_not_the_ranks(boot: Booted) -> None:
    if (pid := os.fork()) == 0:
        boot.worker.raised(ValueError("mine"))
        os._exit(int(not boot.worker.forked()))
    assert os.waitpid(pid, 0)[1] == 0
    assert (boot.said(), boot.worker.forked()) == ([], False)


def test_all_hooks_of_a_step_write_the_page_a_bounded_number_of_times(boot: Booted) -> None:
    """A write takes about a microsecond; a step with one batch makes nine."""
    before = boot.shown("pulse")
    heartbeat.within("data", lambda: None)()
    autograd = types.SimpleNamespace(backward=lambda: None)
    heartbeat.see_backward(autograd)
    autograd.backward()
    waiting(0).Work().wait()
    of_process().stepped(1)
    of_process().stepped(2)
    assert boot.shown("pulse") - before == 2 + 2 + 3 + 2 + 1


def test_the_flight_recorder_can_be_read_from_the_first_process_group_on(
    boot: Booted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flight.PIPES, f"{tmp_path}/rank-")
    monkeypatch.setenv(flight.DUMPS, f"{tmp_path}/dump-")
    module = types.SimpleNamespace(init_process_group=lambda backend: f"{backend} is made")
    heartbeat.see_groups(module)

    def threads() -> tuple[int, int]:
        """The process's threads, and those that a script can list."""
        return len(list(Path("/proc/self/task").iterdir())), threading.active_count()

    all_before, listed = threads()
    assert not (tmp_path / "rank-0.pipe").exists()
    assert [module.init_process_group("gloo") for _ in range(2)] == ["gloo is made"] * 2
    assert threads() == (all_before + 1, listed), "one thread, however many groups"
    assert (tmp_path / "rank-0.pipe").is_fifo()


def test_a_script_that_closes_the_event_socket_keeps_its_own_file(
    boot: Booted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    boot.worker.say("note", kind="before")
    number = boot.worker._events.fileno()
    kept = os.dup(number)
    with (tmp_path / "mine").open("wb") as mine:
        # The script's file now has headway's former number.
        os.dup2(mine.fileno(), number)
        boot.worker.say("note", kind="after")
    assert (tmp_path / "mine").read_bytes() == b""
    os.close(number)
    boot.worker.say("note", kind="closed")
    os.dup2(kept, number)
    os.close(kept)
    assert [event["kind"] for event in boot.said()] == ["before"]
    assert capsys.readouterr().err == ""
