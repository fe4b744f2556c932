"""Copies tensors to a buffer in shared memory: at once from host memory; from a GPU in stream order, partly overlapped."""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from headway.runner.checkpoint.keeper.capture import Layout
from headway.runner.checkpoint.tensors import LocalTensor, dtype_named

ALREADY_LOCKED = 712  # cudaErrorHostMemoryAlreadyRegistered (driver_types.h)


class Device(Protocol):
    """The streams of the device that tensors are copied from."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in the device's memory."""
        ...

    def is_capturing(self) -> bool:
        """Whether what is enqueued on the current stream now is recorded into a graph."""
        ...

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Enqueues copies on the current stream: whatever is enqueued there later comes after them."""
        ...

    def copy_beside(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Enqueues copies on a stream of their own, behind what is on the current one by now, and beside what follows there."""
        ...

    def mark(self) -> Any:
        """An event behind all copies so far."""
        ...

    def hold(self, event: Any) -> None:
        """What is enqueued on the current stream from now on waits for the event, on the device."""
        ...

    def synchronize(self, event: Any) -> None:
        """This thread waits for the event."""
        ...

    def lock(self, address: int, size: int) -> None:
        """Page-locks host memory. Raises OSError with CUDA's number as errno."""
        ...

    def unlock(self, address: int) -> None:
        """Raises OSError with CUDA's number as errno."""
        ...


class Staging:
    """Copies into buffers of one layout.

    From a GPU, what only a step of torch's optimizers changes (parameters, moments) is copied on a stream of its own, beside the next
    forward and backward pass, and the next step waits for it on the device, by torch's hook before each step. All else, buffers that a
    forward pass changes and whatever is of unknown kind, is copied on the current stream: kernels that come later run behind it.
    So is everything where no hook is to be trusted: when a step was captured into a CUDA graph, whose replay calls no Python, and when no
    hook has run since the copy before, so that something else takes the steps.
    """

    def __init__(self, device: Device | None = None) -> None:
        self._device = device if device is not None else _cuda()
        self._layout: Layout | None = None
        self._targets: dict[int, list[torch.Tensor]] = {}
        self._locked: list[int] = []  # addresses of page-locked buffers
        self._copied: Any = None  # the event behind the last copy; None where none is under way
        self._steps = 0  # of optimizers, since the last copy
        self._replays = False  # a step was captured
        self._hook = register_optimizer_step_pre_hook(self._hold) if self._device is not None else None

    def use(self, layout: Layout, buffers: Mapping[int, memoryview]) -> None:
        """The layout and the buffers of the copies that follow. `release` comes first."""
        self._targets = {index: _targets(layout, self._whole(view)) for index, view in buffers.items()}
        self._layout = layout

    def release(self) -> None:
        """Lets go of the buffers, before they are unmapped: pages that stay locked stay in memory for as long as the process lives, and the
        next mapping at their address could not be locked (712). A copy that is under way ends first."""
        self.wait_copied()
        self._targets, self._layout = {}, None
        for address in self._locked:
            try:
                self._unlock(address)
            except OSError as error:
                print(f"a buffer of the keeper stays page-locked: {error}", file=sys.stderr, flush=True)
        self._locked = []

    def close(self) -> None:
        """No step waits for this any more."""
        self.release()
        if self._hook is not None:
            self._hook.remove()

    def wait_copied(self) -> None:
        """Until the last copy is made."""
        if self._copied is not None:
            assert self._device is not None  # noqa: S101  only a device's copies are not made at once
            self._device.synchronize(self._copied)
            self._copied = None

    def copy(self, buffer: int, tensors: Mapping[str, LocalTensor], stepped: AbstractSet[str] = frozenset()) -> None:
        """`stepped`: the names of tensors that only a step of torch's optimizers changes."""
        assert self._layout is not None  # noqa: S101  `use` comes first
        pairs = [
            (target, _part(tensors[piece.name], piece.box.within(tensors[piece.name].box)), piece.name in stepped)
            for target, piece in zip(self._targets[buffer], self._layout.pieces, strict=True)
        ]
        device = self._device
        if device is not None and any(device.holds(source) for _, source, _ in pairs):
            self._copy_from(device, pairs)
        elif pairs:
            torch._foreach_copy_([target for target, _, _ in pairs], [source for _, source, _ in pairs])

    def refuse_capture(self) -> None:
        """Raises RuntimeError inside a graph's capture."""
        if self._device is not None and self._device.is_capturing():
            raise RuntimeError("a state cannot be saved during CUDA graph capture: its copies would be recorded into the graph")

    def _copy_from(self, device: Device, pairs: Sequence[tuple[torch.Tensor, torch.Tensor, bool]]) -> None:
        fenced = self._steps > 0 and not self._replays
        now = [(target, source) for target, source, stepped in pairs if not (stepped and fenced)]
        beside = [(target, source) for target, source, stepped in pairs if stepped and fenced]
        if now:
            device.copy([target for target, _ in now], [source for _, source in now])
        if beside:
            device.copy_beside([target for target, _ in beside], [source for _, source in beside])
        self._copied, self._steps = device.mark(), 0
        self._sources = [source for _, source, _ in pairs]  # kept until they are copied

    def then(self, follow: Callable[[], None]) -> None:
        """Calls `follow` once the last copy is made: now, or from a thread that waits for the device."""
        if self._copied is None:
            follow()
            return
        device, copied, sources = self._device, self._copied, self._sources
        assert device is not None  # noqa: S101  only a device's copies are not made at once

        def wait() -> None:
            device.synchronize(copied)
            sources.clear()
            follow()

        threading.Thread(target=wait, daemon=True).start()

    def _hold(self, *_: object) -> None:
        """Before each optimizer step: the device, not this thread, waits for the copy.

        Not in a capture: an event from outside of it may not be waited for there (cudaErrorStreamCaptureIsolation). What was under way has
        ended by then, since torch.cuda.graph waits for the device before it begins to capture.
        """
        assert self._device is not None  # noqa: S101  else the hook is not there
        if self._device.is_capturing():
            self._replays = True
            return
        self._steps += 1
        if self._copied is not None:
            self._device.hold(self._copied)

    # --- page-locked memory -------------------------------------------------------------------------------------------

    def _whole(self, view: memoryview) -> torch.Tensor:
        """The buffer, page-locked for a device, so that copies into it need no copy in between. Where that fails it is said and used as it
        is: a copy into other memory has ended when the call returns, which takes longer and is right as well (CUDA's API
        synchronization behavior)."""
        whole = torch.frombuffer(view, dtype=torch.uint8)
        if self._device is None:
            return whole
        address = whole.data_ptr()
        try:
            self._lock(address, whole.numel())
        except OSError as error:
            print(f"saves take longer: the keeper's buffer cannot be page-locked: {error}", file=sys.stderr, flush=True)
        else:
            self._locked.append(address)
        return whole

    def _lock(self, address: int, size: int) -> None:
        assert self._device is not None  # noqa: S101
        try:
            self._device.lock(address, size)
        except OSError as error:
            if error.errno != ALREADY_LOCKED:  # somebody has unmapped locked pages here, and ours have their address
                raise
            self._unlock(address)
            self._device.lock(address, size)

    def _unlock(self, address: int) -> None:
        assert self._device is not None  # noqa: S101
        self._device.unlock(address)


def _part(local: LocalTensor, within: tuple[slice, ...]) -> torch.Tensor:
    return local.data[within] if within else local.data


def _targets(layout: Layout, whole: torch.Tensor) -> list[torch.Tensor]:
    """A tensor over each piece of the buffer."""
    kinds = {name: dtype_named(held.dtype) for name, held in layout.tensors.items()}
    return [
        whole[piece.offset : piece.offset + piece.length].view(kinds[piece.name]).view(piece.box.shape) for piece in layout.pieces
    ]


# --- CUDA -------------------------------------------------------------------------------------------------------------


def _cuda() -> "Device | None":
    return Cuda() if torch.cuda.is_available() else None


class Cuda:
    """The current device of this process."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._beside = False  # whether the newest copies are on the stream of their own

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        self._beside = False
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)

    def copy_beside(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # It comes behind the copies on the current stream too, so that one event is behind all.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.copy(targets, sources)
        self._beside = True

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream if self._beside else torch.cuda.current_stream())
        return event

    def hold(self, event: torch.cuda.Event) -> None:
        torch.cuda.current_stream().wait_event(event)

    def synchronize(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def lock(self, address: int, size: int) -> None:
        self._check(torch.cuda.cudart().cudaHostRegister(address, size, 0))  # type: ignore[no-untyped-call]

    def unlock(self, address: int) -> None:
        self._check(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]

    def _check(self, result: Any) -> None:
        number = int(result)
        if number == 0:
            return
        # The runtime keeps the error for this thread until somebody takes it: the script's next kernel would be blamed.
        with suppress(RuntimeError):
            torch.zeros(1, device="cuda")
        raise OSError(number, str(torch.cuda.cudart().cudaGetErrorString(result)))  # type: ignore[no-untyped-call]
