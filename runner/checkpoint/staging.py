"""Copies tensors to a buffer in shared memory: at once from host memory; from a GPU in stream order, partly overlapped."""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from headway.runner.checkpoint.keeper.capture import BufferLayout
from headway.runner.checkpoint.tensors import LocalTensor, dtype_named

# cudaErrorHostMemoryAlreadyRegistered (driver_types.h).
ALREADY_LOCKED = 712


class Device(Protocol):
    """The streams of the device that tensors are copied from."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is in the device's memory."""
        ...

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""
        ...

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Enqueue copies on the current stream: later work on it runs after them."""
        ...

    def copy_beside(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Enqueue copies on a separate stream, after the current stream's pending work and in parallel with its later work."""
        ...

    def mark(self) -> Any:
        """Return an event after all copies so far."""
        ...

    def hold(self, event: Any) -> None:
        """Make the current stream's later work wait for the event, on the device."""
        ...

    def synchronize(self, event: Any) -> None:
        """Block this thread until the event."""
        ...

    def lock(self, address: int, size: int) -> None:
        """Page-lock host memory. Raises OSError with CUDA's error number as errno."""
        ...

    def unlock(self, address: int) -> None:
        """Unlock it. Raises OSError with CUDA's error number as errno."""
        ...


class Staging:
    """Copies into buffers of one layout.

    From a GPU, tensors that only a step of torch's optimizers changes (parameters, moments) are copied on a separate
    stream, in parallel with the next forward and backward pass. The next step waits for that copy on the device, by
    torch's hook before each step.

    Everything else, such as buffers that a forward pass changes, is copied on the current stream: later kernels run
    after it. All tensors are copied there when the hook cannot be trusted: a step was captured into a CUDA graph, whose
    replay calls no Python, or no hook has run since the last copy, so other code takes the steps.
    """

    def __init__(self, device: Device | None = None) -> None:
        self._device = device if device is not None else _cuda()
        self._layout: BufferLayout | None = None
        self._targets: dict[int, list[torch.Tensor]] = {}
        # Addresses of page-locked buffers.
        self._locked: list[int] = []
        # The event after the last copy; None if none is pending.
        self._copied: Any = None
        # Optimizer steps since the last copy.
        self._steps = 0
        # A step was captured.
        self._replays = False
        self._hook = register_optimizer_step_pre_hook(self._hold) if self._device is not None else None

    def use(self, layout: BufferLayout, buffers: Mapping[int, memoryview]) -> None:
        """Set the layout and the buffers of the following copies. Call `release` first."""
        self._targets = {index: _targets(layout, self._whole(view)) for index, view in buffers.items()}
        self._layout = layout

    def release(self) -> None:
        """Release the buffers before they are unmapped, after any pending copy.

        Pages that stay locked stay in memory for as long as the process lives, and the next mapping at their address
        could not be locked (712).
        """
        self.wait_copied()
        self._targets, self._layout = {}, None
        for address in self._locked:
            try:
                self._unlock(address)
            except OSError as error:
                print(f"a buffer of the keeper stays page-locked: {error}", file=sys.stderr, flush=True)
        self._locked = []

    def close(self) -> None:
        """Remove the step hook."""
        self.release()
        if self._hook is not None:
            self._hook.remove()

    def wait_copied(self) -> None:
        """Wait until the last copy is complete."""
        if self._copied is not None:
            assert self._device is not None  # noqa: S101  only a device's copies are asynchronous
            self._device.synchronize(self._copied)
            self._copied = None

    def copy(self, buffer: int, tensors: Mapping[str, LocalTensor], stepped: AbstractSet[str] = frozenset()) -> None:
        """Copy `tensors` into `buffer`. `stepped`: the names of tensors that only a step of torch's optimizers changes."""
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
        """Raise RuntimeError during a graph's capture."""
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
        # Keep the sources alive until they are copied.
        self._sources = [source for _, source, _ in pairs]

    def then(self, follow: Callable[[], None]) -> None:
        """Call `follow` once the last copy is complete: now, or from a thread that waits for the device."""
        if self._copied is None:
            follow()
            return
        device, copied, sources = self._device, self._copied, self._sources
        assert device is not None  # noqa: S101  only a device's copies are asynchronous

        def wait() -> None:
            device.synchronize(copied)
            sources.clear()
            follow()

        threading.Thread(target=wait, daemon=True).start()

    def _hold(self, *_: object) -> None:
        """Make the device, not this thread, wait for the copy before each optimizer step.

        Not in a capture: an event from outside of it may not be waited for there (cudaErrorStreamCaptureIsolation).
        Earlier copies are complete by then, since torch.cuda.graph waits for the device before it begins to capture.
        """
        assert self._device is not None  # noqa: S101  the hook exists only with a device
        if self._device.is_capturing():
            self._replays = True
            return
        self._steps += 1
        if self._copied is not None:
            self._device.hold(self._copied)

    # --- page-locked memory -------------------------------------------------------------------------------------------

    def _whole(self, view: memoryview) -> torch.Tensor:
        """Return the buffer as a tensor, page-locked so that copies need no intermediate buffer.

        If locking fails, a message is printed and the buffer is used unlocked: a copy into such memory has ended when
        the call returns, which takes longer and is right as well (CUDA's API synchronization behavior).
        """
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
            # Locked pages were unmapped here without being unlocked, and this buffer has their address.
            if error.errno != ALREADY_LOCKED:
                raise
            self._unlock(address)
            self._device.lock(address, size)

    def _unlock(self, address: int) -> None:
        assert self._device is not None  # noqa: S101
        self._device.unlock(address)


def _part(local: LocalTensor, within: tuple[slice, ...]) -> torch.Tensor:
    return local.data[within] if within else local.data


def _targets(layout: BufferLayout, whole: torch.Tensor) -> list[torch.Tensor]:
    """Return a tensor over each piece of the buffer."""
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
        # Whether the newest copies are on the separate stream.
        self._beside = False

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
        # It also follows the copies on the current stream, so one event covers both.
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
        # The runtime keeps the error for this thread until it is read: the script's next kernel would be blamed.
        with suppress(RuntimeError):
            torch.zeros(1, device="cuda")
        raise OSError(number, str(torch.cuda.cudart().cudaGetErrorString(result)))  # type: ignore[no-untyped-call]
