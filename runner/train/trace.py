"""Hashes what a rank computes by itself in a forward and backward pass, before anything is reduced over ranks."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import xxhash
from torch import nn

from headway.runner.checkpoint.tensors import to_bytes


class Trace:
    """A hash over losses, and over the gradient of each weight as its operation returns it: equal unless something was
    computed differently.

    It costs a copy of each gradient to the host.
    """

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, name: str, value: torch.Tensor) -> None:
        self._hash.update(name.encode())
        self._hash.update(to_bytes(value))

    @property
    def result(self) -> bytes:
        return self._hash.digest()

    @contextmanager
    def of(self, parts: Iterable[nn.Module]) -> Iterator[None]:
        """Trace the gradients of all backward passes inside. A sharded module has its whole weights only while it
        computes, so they are hooked there."""
        # Kept with each weight, so that its id is not reused.
        caught: dict[int, tuple[torch.Tensor, Any]] = {}

        def enter(name: str, module: nn.Module) -> None:
            # Any: register_hook has no types.
            weight: Any
            for own, weight in module.named_parameters(recurse=False):
                if weight.requires_grad and id(weight) not in caught:
                    hook = weight.register_hook(lambda gradient, of=f"{name}.{own}": self.add(of, gradient))
                    caught[id(weight)] = weight, hook

        entered = [
            module.register_forward_pre_hook(lambda module, _, of=name: enter(of, module))
            for part in parts
            for name, module in part.named_modules()
            if next(module.parameters(recurse=False), None) is not None
        ]
        try:
            yield
        finally:
            for handle in [*entered, *(hook for _, hook in caught.values())]:
                handle.remove()
