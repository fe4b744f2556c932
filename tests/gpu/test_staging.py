"""Tests copies from a real device: saves have the values at their time although training continues; tests/runner/checkpoint/test_staging.py
has the same rules for a recorded order of operations."""

import mmap
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from headway.runner.checkpoint.layout import Planner
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.staging import Cuda, Staging
from headway.runner.checkpoint.tensors import local_tensor

Tensors = dict[str, torch.Tensor]
# Copies of this size take milliseconds: later kernels would overtake them.
WIDTH = 1 << 25
CUDA = torch.device("cuda")


class Copier:
    """A staging with one buffer, on the real device."""

    def __init__(self, tensors: Tensors, stepped: set[str]) -> None:
        self.tensors, self.stepped = tensors, stepped
        self.layout = Planner(Ranks()).plan(tensors, whole=False).layout
        self.view = memoryview(mmap.mmap(-1, self.layout.bytes))
        self.staging = Staging()
        self.staging.use(self.layout, {0: self.view})

    def save(self) -> None:
        self.staging.copy(0, {name: local_tensor(tensor) for name, tensor in self.tensors.items()}, self.stepped)

    def held(self) -> Tensors:
        """The buffer's contents once everything is copied; a tensor may be in several pieces."""
        self.staging.wait_copied()
        found: dict[str, list[torch.Tensor]] = {}
        for piece in self.layout.pieces:
            values = torch.frombuffer(self.view, dtype=torch.float32, offset=piece.offset, count=piece.length // 4)
            found.setdefault(piece.name, []).append(values)
        return {name: torch.cat(values) for name, values in found.items()}

    def close(self) -> None:
        self.staging.close()


@pytest.fixture
def parameter() -> nn.Parameter:
    return nn.Parameter(torch.zeros(WIDTH, device=CUDA))


@pytest.fixture
def optimizer(parameter: nn.Parameter) -> torch.optim.Optimizer:
    """Each step adds 1."""
    parameter.grad = torch.full((WIDTH,), -1.0, device=CUDA)
    return torch.optim.SGD([parameter], lr=1.0)


@pytest.fixture
def copier(parameter: nn.Parameter) -> Iterator[Copier]:
    found = Copier({"weight": parameter, "statistics": torch.zeros(WIDTH, device=CUDA)}, {"weight"})
    yield found
    found.close()


def test_copies_are_intact_when_steps_and_forward_passes_follow_at_once(copier: Copier, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    for step in range(1, 20):
        copier.save()
        copier.tensors["statistics"] += 1
        optimizer.step()
        held = copier.held()
        assert torch.equal(held["weight"], torch.full((WIDTH,), float(step)))
        assert torch.equal(held["statistics"], torch.full((WIDTH,), float(step - 1)))


def test_unfenced_copies_are_torn(copier: Copier, parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    """The control of the previous test: a write that bypasses the hook overtakes the copy."""
    optimizer.step()
    copier.save()
    with torch.no_grad():
        parameter.add_(7)
    assert not torch.equal(copier.held()["weight"], torch.full((WIDTH,), 1.0))


def test_copies_are_intact_when_a_graph_replays_steps(
    copier: Copier, parameter: nn.Parameter, optimizer: torch.optim.Optimizer
) -> None:
    replay = _captured(optimizer.step)
    before = float(parameter.detach()[0])
    for step in range(5):
        copier.save()
        replay()
        assert torch.equal(copier.held()["weight"], torch.full((WIDTH,), before + step))


def test_a_graph_is_captured_after_a_save_but_never_during_one(copier: Copier, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    copier.save()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
        with pytest.raises(RuntimeError, match="during CUDA graph capture"):
            copier.staging.refuse_capture()
    graph.replay()
    assert torch.equal(copier.held()["weight"], torch.full((WIDTH,), 1.0))


def test_later_work_runs_in_parallel_with_the_copy(copier: Copier, optimizer: torch.optim.Optimizer) -> None:
    """Work on the current stream ends before the copy does: it did not wait for it."""
    optimizer.step()
    small = torch.ones(64, 64, device=CUDA)
    small @ small
    torch.cuda.synchronize()
    # Without the statistics, whose copy later work waits for.
    copier = Copier({"weight": copier.tensors["weight"]}, {"weight"})
    try:
        copier.staging._steps = 1
        copier.save()
        small @ small
        worked = torch.cuda.Event()  # type: ignore[no-untyped-call]
        worked.record()
        worked.synchronize()
        assert not copier.staging._copied.query()
    finally:
        copier.close()


def test_pages_are_locked_once_and_unlocked_for_the_next_mapping() -> None:
    device = Cuda()
    view = mmap.mmap(-1, 1 << 20)
    address = torch.frombuffer(view, dtype=torch.uint8).data_ptr()
    device.lock(address, 1 << 20)
    with pytest.raises(OSError, match="already") as caught:
        device.lock(address, 1 << 20)
    assert caught.value.errno == 712
    device.unlock(address)
    with pytest.raises(OSError, match="not") as caught:
        device.unlock(address)
    assert caught.value.errno == 713
    # No errors remain for the script's next kernel.
    assert float(torch.ones(4, device=CUDA).sum()) == 4
    torch.cuda.synchronize()


def _captured(step: Callable[[], object]) -> Callable[[], None]:
    """Return the replay of a step that was captured; it runs once before that."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
