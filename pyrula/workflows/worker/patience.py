"""Asking the store until it answers."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pyrula.workflows.errors import StoreUnavailable

__all__ = ["ask_until_answered"]

T = TypeVar("T")

_FIRST_DELAY: Final = 0.05
_LAST_DELAY: Final = 2.0


async def ask_until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """For calls that may be sent again. Ends by cancellation, or by any other error of the store."""
    delay = _FIRST_DELAY
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))
            delay = min(delay * 2, _LAST_DELAY)
