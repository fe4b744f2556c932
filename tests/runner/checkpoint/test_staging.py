"""Tests the order of operations on a device's streams: what is copied when, and what waits for it. No device is used."""

import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from headway.runner.checkpoint.keeper.capture import BufferLayout
from headway.runner.checkpoint.layout import Planner
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.staging import ALREADY_LOCKED, Staging
from headway.runner.checkpoint.stateful import changed_by_steps, leaves_of, state_dict
from headway.runner.checkpoint.tensors import local_tensor

Tensors = dict[str, torch.Tensor]
IN_A_MAPPING_THAT_IS_GONE = 713  # cudaErrorHostMemoryNotRegistered


class Fake:
    """A device that makes each copy when an operation waits for it; a copy that was not awaited is torn. Memory is host memory.

    `log` has the operations in order; page locks are CUDA's, by address.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.capturing = False
        # Copies that run in parallel with the current stream.
        self.beside: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.locked: dict[int, int] = {}
        self.failing: int | None = None

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"

    def is_capturing(self) -> bool:
        return self.capturing

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        assert not self.capturing
        self.log.append(f"copy {len(targets)}")
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    def copy_beside(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        assert not self.capturing
        self.log.append(f"copy beside {len(targets)}")
        self.beside += zip(targets, sources, strict=True)

    def mark(self) -> Any:
        self.log.append("mark")
        return object()

    def hold(self, event: Any) -> None:
        assert not self.capturing  # an external event
        self.log.append("hold")
        self._make()

    def synchronize(self, event: Any) -> None:
        assert not self.capturing
        self.log.append("synchronize")
        self._make()

    def _make(self) -> None:
        for target, source in self.beside:
            target.copy_(source)
        self.beside = []

    def lock(self, address: int, size: int) -> None:
        if self.failing is not None:
            raise OSError(self.failing, "cannot be locked")
        if address in self.locked:
            raise OSError(ALREADY_LOCKED, "part or all of the requested memory range is already mapped")
        self.locked[address] = size

    def unlock(self, address: int) -> None:
        if address not in self.locked:
            raise OSError(IN_A_MAPPING_THAT_IS_GONE, "pointer does not correspond to a registered memory region")
        del self.locked[address]


class Copier:
    """A staging with one buffer."""

    def __init__(self, fake: Fake, tensors: Tensors, stepped: set[str]) -> None:
        self.fake, self.tensors, self.stepped = fake, tensors, stepped
        self.layout: BufferLayout = Planner(Ranks()).plan(tensors, whole=False).layout
        self.view = memoryview(mmap.mmap(-1, self.layout.bytes))
        self.staging = Staging(fake)
        self.staging.use(self.layout, {0: self.view})

    def save(self) -> None:
        self.staging.copy(0, {name: local_tensor(tensor) for name, tensor in self.tensors.items()}, self.stepped)

    def held(self) -> dict[str, list[float]]:
        """The buffer's contents once everything is copied."""
        self.staging.wait_copied()
        return {
            piece.name: torch.frombuffer(self.view, dtype=torch.float32, offset=piece.offset, count=piece.length // 4).tolist()
            for piece in self.layout.pieces
        }


@pytest.fixture
def parameter() -> nn.Parameter:
    return nn.Parameter(torch.zeros(2))


@pytest.fixture
def optimizer(parameter: nn.Parameter) -> torch.optim.Optimizer:
    found = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.full((2,), -1.0)
    return found


@pytest.fixture
def copier(parameter: nn.Parameter) -> Iterator[Copier]:
    found = Copier(Fake(), {"weight": parameter, "statistics": torch.zeros(2)}, {"weight"})
    yield found
    found.staging.close()


def test_a_buffer_changed_by_the_next_forward_pass_is_saved_unchanged(copier: Copier, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    copier.save()
    # On the current stream, after its copy.
    copier.tensors["statistics"] += 1
    optimizer.step()  # waits for the parallel copy
    assert copier.fake.log == ["copy 1", "copy beside 1", "mark", "hold"]
    assert copier.held() == {"weight": [1.0, 1.0], "statistics": [0.0, 0.0]}


def test_parallel_copies_are_torn_if_no_operation_waits_for_them(
    copier: Copier, parameter: nn.Parameter, optimizer: torch.optim.Optimizer
) -> None:
    """The reason for the fence: the fake shows a step that bypasses the hook."""
    optimizer.step()
    copier.save()
    with torch.no_grad():
        parameter.add_(7)
    assert copier.held()["weight"] == [8.0, 8.0]


def test_before_the_first_step_everything_is_copied_in_order(copier: Copier, parameter: nn.Parameter) -> None:
    copier.save()
    with torch.no_grad():
        # By an operation without a hook in torch.
        parameter.add_(7)
    copier.save()
    assert copier.fake.log == ["copy 2", "mark"] * 2
    assert copier.held()["weight"] == [7.0, 7.0]


def test_replayed_steps_change_nothing_that_is_being_copied(
    copier: Copier, parameter: nn.Parameter, optimizer: torch.optim.Optimizer
) -> None:
    optimizer.step()
    copier.save()
    # As torch.cuda.graph does before it captures.
    copier.staging.wait_copied()
    copier.fake.log.clear()
    copier.fake.capturing = True
    optimizer.step()
    copier.fake.capturing = False
    assert copier.fake.log == []  # no wait was captured
    # A step that runs Python again does not restore trust: replays may follow.
    optimizer.step()
    copier.fake.log.clear()
    copier.save()
    with torch.no_grad():
        parameter.add_(5)  # a replay
    assert copier.fake.log == ["copy 2", "mark"]
    assert copier.held()["weight"] == [3.0, 3.0]


def test_no_save_is_captured_into_a_graph(copier: Copier) -> None:
    copier.fake.capturing = True
    with pytest.raises(RuntimeError, match="during CUDA graph capture"):
        copier.staging.refuse_capture()
    copier.fake.capturing = False


def test_the_follow_up_is_called_after_the_copy(copier: Copier, optimizer: torch.optim.Optimizer) -> None:
    import threading

    optimizer.step()
    copier.save()
    followed = threading.Event()
    copier.staging.then(followed.set)
    assert followed.wait(30)
    assert copier.fake.log[-1] == "synchronize"
    assert copier.fake.beside == []


def test_after_a_close_no_step_waits(copier: Copier, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    copier.save()
    copier.staging.close()
    copier.fake.log.clear()
    optimizer.step()
    assert copier.fake.log == []


# --- page locks -------------------------------------------------------------------------------------------------------


def test_pages_are_unlocked_after_copies_and_before_buffers_are_freed(copier: Copier, optimizer: torch.optim.Optimizer) -> None:
    (address,) = copier.fake.locked
    optimizer.step()
    copier.save()
    copier.staging.release()
    assert (copier.fake.locked, copier.fake.beside) == ({}, [])
    copier.staging.use(copier.layout, {0: copier.view, 1: memoryview(mmap.mmap(-1, copier.layout.bytes))})
    assert len(copier.fake.locked) == 2
    assert address in copier.fake.locked
    copier.staging.close()
    assert copier.fake.locked == {}


def test_an_address_whose_locked_pages_were_unmapped_is_locked_again(copier: Copier) -> None:
    other = memoryview(mmap.mmap(-1, copier.layout.bytes))
    copier.fake.locked[torch.frombuffer(other, dtype=torch.uint8).data_ptr()] = 1
    copier.staging.release()
    copier.staging.use(copier.layout, {0: other})
    assert list(copier.fake.locked.values()) == [len(other)]


def test_a_buffer_that_cannot_be_locked_is_still_used(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    copier.staging.release()
    copier.fake.failing = 2
    copier.staging.use(copier.layout, {0: copier.view})
    copier.save()
    assert copier.held() == {"weight": [0.0, 0.0], "statistics": [0.0, 0.0]}
    assert "saves take longer: the keeper's buffer cannot be page-locked: [Errno 2]" in capsys.readouterr().err
    copier.staging.close()


def test_pages_that_are_no_longer_locked_are_logged_without_an_error(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    copier.fake.locked.clear()
    copier.staging.release()
    assert "stays page-locked" in capsys.readouterr().err


# --- what changes only in steps ---------------------------------------------------------------------------------------


class Average(torch.optim.Optimizer):
    """An optimizer that never called torch's constructor: no hook runs in its steps."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters)}]
        self.state = {}  # type: ignore[assignment]

    def step(self, closure: Any = None) -> Any: ...


def stepped(state: dict[str, Any]) -> set[str]:
    values = leaves_of(state_dict(state))
    return changed_by_steps(state, {name: value for name, value in values.items() if isinstance(value, torch.Tensor)})


def test_trained_parameters_and_their_moments_change_only_in_steps() -> None:
    model, frozen = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    found = stepped({"model": model, "frozen": frozen, "optimizer": optimizer, "queue": torch.zeros(2)})
    names = {f"model/{name}" for name, _ in model.named_parameters()}
    moments = {
        f"optimizer/state/{name}/{key}" for name, _ in model.named_parameters() for key in ("exp_avg", "exp_avg_sq", "step")
    }
    assert found == names | moments


def test_changes_outside_torchs_optimizers_are_unknown() -> None:
    model = nn.Linear(2, 2)
    assert stepped({"model": model}) == set()
    assert changed_by_steps({"optimizer": Average(model.parameters())}, model.state_dict()) == set()
