"""Computes divisors and multiples of a number, as hints list them."""

from collections.abc import Sequence
from math import isqrt

# Trial division ends here: all divisors of numbers up to its square are found, and of larger ones the small and the large.
_LARGEST_TRIAL = 4096
_SHOWN = 16


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, ascending."""
    small = [candidate for candidate in range(1, min(isqrt(number), _LARGEST_TRIAL) + 1) if number % candidate == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def nearest_multiples(number: int, of: int) -> list[int]:
    """Return the multiples below and above a number that is none; only the one above where the other would be 0."""
    below = number - number % of
    return [below, below + of] if below else [of]


def listed_numbers(numbers: Sequence[int]) -> str:
    """`1, 2 or 4`; of many the smallest and the largest."""
    shown = [str(number) for number in numbers]
    if len(shown) > _SHOWN:
        shown = [*shown[: _SHOWN - 1], "...", shown[-1]]
        return ", ".join(shown)
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
