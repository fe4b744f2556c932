"""Tensors -> a buffer in shared memory: at once from host memory, behind the next forward and backward pass from a GPU."""

import threading
from collections.abc import Callable, Mapping

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from headway.runner.checkpoint.keeper.capture import Layout
from headway.runner.checkpoint.tensors import LocalTensor, dtype_named


class Staging:
    """Copies into buffers of one layout. From a GPU a copy runs on a stream of its own; the next optimizer step waits for it there, on
    the device, so that it cannot change what is being copied."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._targets: dict[int, list[torch.Tensor]] = {}
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None
        self._sources: list[torch.Tensor] = []  # kept until they are copied

    def use(self, layout: Layout, buffers: Mapping[int, memoryview]) -> None:
        """The layout and the buffers of the copies that follow."""
        self._targets = {index: _targets(layout, view) for index, view in buffers.items()}
        self._layout = layout

    def copy(self, buffer: int, tensors: Mapping[str, LocalTensor]) -> None:
        assert self._layout is not None  # noqa: S101  `use` comes first
        sources = [
            tensors[piece.name].data[piece.box.within(tensors[piece.name].box)] if piece.box.shape else tensors[piece.name].data
            for piece in self._layout.pieces
        ]
        if any(source.is_cuda for source in sources):
            self._copy_behind(self._targets[buffer], sources)
        elif sources:
            torch._foreach_copy_(self._targets[buffer], sources)

    def then(self, follow: Callable[[], None]) -> None:
        """Calls `follow` once the last copy is made: now, or from a thread that waits for the device."""
        if self._copied is None:
            follow()
            return
        copied, sources = self._copied, self._sources

        def wait() -> None:
            copied.synchronize()
            sources.clear()
            follow()

        threading.Thread(target=wait, daemon=True).start()

    def _copy_behind(self, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            register_optimizer_step_pre_hook(self._hold)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        self._sources = sources

    def _hold(self, *_: object) -> None:
        """Before each optimizer step: the device, not this thread, waits for the copy."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)


def _targets(layout: Layout, view: memoryview) -> list[torch.Tensor]:
    """A tensor over each piece of the buffer. With a GPU the buffer is page-locked, so that copies into it need no copy in between."""
    whole = torch.frombuffer(view, dtype=torch.uint8)
    if torch.cuda.is_available():
        cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(cuda.cudaHostRegister(whole.data_ptr(), whole.numel(), 0))
    kinds = {name: dtype_named(held.dtype) for name, held in layout.tensors.items()}
    return [
        whole[piece.offset : piece.offset + piece.length].view(kinds[piece.name]).view(piece.box.shape) for piece in layout.pieces
    ]
