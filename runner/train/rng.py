"""The random generators of one rank as an object that a checkpoint can hold, and back."""

import random
from typing import Any

import numpy as np
import torch


def seed_all(seed: int, rank: int) -> None:
    """Seeds Python, NumPy and torch, each rank with its own numbers."""
    own = (seed * 1_000_003 + rank) % (1 << 32)
    random.seed(own)
    np.random.seed(own)
    torch.manual_seed(own)


def rng_state(device: torch.device) -> dict[str, Any]:
    """The state of all generators that training draws from."""
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
    """The inverse of `rng_state`."""
    random.setstate(state["python"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, np.frombuffer(keys, np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(_bytes(state["torch"]))
    if device.type == "cuda":
        torch.cuda.set_rng_state(_bytes(state["cuda"]), device)


def _bytes(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)
