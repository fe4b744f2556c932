"""Computes which sample is at which position of a run: a pure function of (seed, position), so resuming needs one number."""

import xxhash

_ROUNDS = 6


def sample_at(position: int, samples: int, seed: int) -> int:
    """Return the sample, 0 .. samples-1, at `position` of the endless sequence; every epoch holds each sample once, in
    another order.

    A Feistel network over the next power of four, walked until it lands inside (cycle walking, Black and Rogaway,
    CT-RSA 2002): no table, whatever the number of samples.
    """
    epoch, index = divmod(position, samples)
    half = max(1, ((samples - 1).bit_length() + 1) // 2)
    while True:
        index = _permute(index, half, seed, epoch)
        if index < samples:
            return index


def _permute(value: int, half: int, seed: int, epoch: int) -> int:
    """Return a bijection of the numbers of 2 * half bits."""
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for turn in range(_ROUNDS):
        digest = xxhash.xxh3_64_intdigest(b"%d/%d/%d" % (epoch, turn, right), seed=seed)
        left, right = right, left ^ (digest & mask)
    return left << half | right
