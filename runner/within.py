"""Bounds the time of an awaitable, also on Python 3.10, which has no `asyncio.timeout`, and whose asyncio has a TimeoutError of its own."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, awaited: Awaitable[T]) -> T:
    """Return what `awaited` returns; cancel it and raise TimeoutError after `seconds`."""
    try:
        return await asyncio.wait_for(awaited, seconds)
    except asyncio.TimeoutError:
        raise TimeoutError from None
