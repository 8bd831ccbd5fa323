"""Daemon threads for sync steps. A thread can't be cancelled: whoever started a call has to wait for its end.

They are our own since those of an executor are joined when the interpreter exits, and a step that hangs would then keep
the process from ending. There are as many as calls at once, up to a limit over which calls wait in line; a thread that
found no work for a minute ends.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import Any, Final

__all__ = ["Ended", "call_in_thread"]

_IDLE_SECONDS: Final = 60.0
_MAX_THREADS: Final = 1_000

Ended = tuple[bool, Any, float]
"""Whether the call returned; its result or exception; the seconds it took."""

_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Ended]", Callable[[], Any]]


class _Pool:
    """Hands calls to threads. Its state is changed under its lock only."""

    def __init__(self) -> None:
        self._wakes = threading.Condition()
        self._calls: deque[_Call] = deque()
        self._idle = 0
        self._threads = 0

    def call(self, call: _Call) -> None:
        with self._wakes:
            self._calls.append(call)
            if len(self._calls) <= self._idle:
                self._wakes.notify()
            elif self._threads < _MAX_THREADS:
                self._threads += 1
                threading.Thread(target=self._serve, name="pyrula-step", daemon=True).start()

    def _next(self) -> _Call | None:
        with self._wakes:
            self._idle += 1
            if not self._calls:
                self._wakes.wait_for(lambda: self._calls, _IDLE_SECONDS)
            self._idle -= 1
            if self._calls:
                return self._calls.popleft()
            self._threads -= 1
            return None

    def _serve(self) -> None:
        while (taken := self._next()) is not None:
            loop, done, call = taken
            began = monotonic()
            try:
                fine, result = True, call()
            except BaseException as error:  # noqa: BLE001 - all of it belongs to the one who called
                fine, result = False, error
            ended = (fine, result, monotonic() - began)
            with suppress(RuntimeError):  # the loop is closed, nobody waits any more
                loop.call_soon_threadsafe(_deliver, done, ended, context=Context())
            del taken, loop, done, call, result, ended


_pool = _Pool()


def call_in_thread(call: Callable[[], Any]) -> "asyncio.Future[Ended]":
    """Starts `call` in a thread; the future tells how that ended."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Ended] = loop.create_future()
    _pool.call((loop, done, call))
    return done


def _deliver(done: "asyncio.Future[Ended]", ended: Ended) -> None:
    if not done.done():
        done.set_result(ended)
