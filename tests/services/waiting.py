"""Waiting for a condition instead of sleeping for a while: the failure says what was waited for."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

_T = TypeVar("_T")


def wait_until(predicate: Callable[[], _T], *, description: str, timeout: float = 120.0, interval: float = 0.02) -> _T:
    """The predicate's first true value. AssertionError naming the description and the last value after the time-out."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s for {description}; last value: {value!r}")
        time.sleep(interval)
    return value


@overload
async def wait_until_async(
    predicate: Callable[[], Awaitable[_T]], *, description: str, timeout: float = ..., interval: float = ...
) -> _T: ...


@overload
async def wait_until_async(
    predicate: Callable[[], _T], *, description: str, timeout: float = ..., interval: float = ...
) -> _T: ...


async def wait_until_async(
    predicate: Callable[[], Any], *, description: str, timeout: float = 120.0, interval: float = 0.005
) -> Any:
    """The same in an event loop; the predicate may be a plain or an async function."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s for {description}; last value: {value!r}")
        await asyncio.sleep(interval)
