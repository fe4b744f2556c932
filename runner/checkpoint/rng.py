"""Converts the random generators of one rank to an object that a checkpoint can hold, and back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import xxhash

CPU = torch.device("cpu")


def seed_all(seed: int, rank: int) -> None:
    """Seed Python, NumPy and torch, each rank with its own numbers."""
    own = (seed * 1_000_003 + rank) % (1 << 32)
    random.seed(own)
    np.random.seed(own)
    torch.manual_seed(own)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the state of all generators that training draws from."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": (str(name), np.asarray(keys, np.uint32).tobytes(), int(position), int(has_gauss), float(gauss)),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return state


def restore_rng(state: dict[str, Any], device: torch.device) -> None:
    """Restore the state from `rng_state`."""
    random.setstate(state["python"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, np.frombuffer(keys, np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(_bytes(state["torch"]))
    if device.type == "cuda":
        torch.cuda.set_rng_state(_bytes(state["cuda"]), device)


def drawn_from(device: torch.device) -> str:
    """Return which of the generators of `rng_state` a model on this device draws from."""
    return "cuda" if device.type == "cuda" else "torch"


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore Python's, NumPy's and torch's CPU generators afterwards, as if nothing had been drawn inside."""
    state = rng_state(CPU)
    try:
        yield
    finally:
        restore_rng(state, CPU)


class RandomState:
    """The random generators as one part of any state: with state_dict() and load_state_dict().

    Each rank has its own. With another number of ranks each continues with numbers that follow from those of the rank
    whose state it gets.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, device: torch.device = CPU) -> None:
        self._rank, self._world_size, self._device = rank, world_size, device

    def state_dict(self) -> dict[str, Any]:
        return {"world_size": self._world_size, "generators": rng_state(self._device)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["world_size"] == self._world_size:
            restore_rng(state["generators"], self._device)
        else:
            seed_all(xxhash.xxh3_64_intdigest(state["generators"]["torch"]), self._rank)


def _bytes(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)
