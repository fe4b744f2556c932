"""Fingerprints whole tensors to find out whether ranks hold the same bits."""

from collections.abc import Iterator, Mapping

import torch
import xxhash

from headway.runner.checkpoint.tensors import to_bytes

# Words of a device's tensor per pass: 8 bytes each for the products, and a table of as many weights for each sum.
WORDS = 1 << 22
# Sums of each stretch: two words that differ in their highest bit only cancel out in one sum by a chance of 2**-33.
_WEIGHED = 2


def fingerprints(tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Return 16 bytes for each tensor.

    In host memory it is the hash of the bytes. On a device it is the hash of weighted sums that are computed there,
    since a save avoids bringing all of it to the host. Waits for the device once.
    """
    found = {name: _hashed(tensor) for name, tensor in tensors.items() if tensor.device.type == "cpu"}
    there = {name: tensor for name, tensor in tensors.items() if name not in found}
    summed = {name: weighed_sums(tensor) for name, tensor in there.items()}
    if summed:
        by_device: dict[torch.device, list[str]] = {}
        for name, tensor in there.items():
            by_device.setdefault(tensor.device, []).append(name)
        for names in by_device.values():
            # The one transfer, and the one wait.
            host = torch.cat([summed[name] for name in names]).cpu()
            for name, own in zip(names, torch.split(host, [len(summed[name]) for name in names]), strict=True):
                found[name] = xxhash.xxh3_128_digest(to_bytes(own))
    return found


def _hashed(tensor: torch.Tensor) -> bytes:
    return xxhash.xxh3_128_digest(to_bytes(tensor.detach().resolve_conj().resolve_neg()))


def weighed_sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return for each stretch of WORDS 4-byte words the sums weighted by two tables of odd random weights, modulo 2**64."""
    return torch.stack(
        [(words * weights[: len(words)]).sum() for words in _stretches(tensor) for weights in _tables(tensor.device)]
    )


def _stretches(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    raw = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if raw.numel() % 4 or raw.storage_offset() % 4:
        raw = torch.nn.functional.pad(raw, (0, -raw.numel() % 4))
    yield from torch.split(raw.view(torch.int32), WORDS)


_weights: dict[torch.device, tuple[torch.Tensor, ...]] = {}


def _tables(device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return the weight tables: the same on all ranks, whatever their devices; computed once."""
    if device not in _weights:
        generator = torch.Generator().manual_seed(0x68656164)
        drawn = torch.randint(-(1 << 63), (1 << 63) - 1, (_WEIGHED, WORDS), generator=generator, dtype=torch.int64)
        _weights[device] = tuple((drawn | 1).to(device))
    return _weights[device]
