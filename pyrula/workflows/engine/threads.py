"""Daemon threads for sync steps. A thread can't be cancelled: whoever started a call has to wait for its end.

They are our own since those of an executor are joined when the interpreter exits, and a step that hangs would then keep
the process from ending. A thread that found no work for a minute ends.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final

__all__ = ["call_in_thread"]

_IDLE_SECONDS: Final = 60.0

Ended = tuple[bool, Any, float]
"""Whether the call returned; its result or exception; when, by the monotonic clock that loops use."""

_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Ended]", Callable[[], Any]]


class _Worker:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: SimpleQueue[_Call] = SimpleQueue()

    def serve(self) -> None:
        while True:
            try:
                loop, done, call = self.calls.get(timeout=_IDLE_SECONDS)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # just taken: a call is on its way
                    continue
                return
            try:
                fine, result = True, call()
            except BaseException as error:  # noqa: BLE001 - all of it belongs to the one who called
                fine, result = False, error
            ended = (fine, result, monotonic())
            _idle.append(self)
            with suppress(RuntimeError):  # the loop is closed, nobody waits any more
                loop.call_soon_threadsafe(_deliver, done, ended, context=Context())
            del loop, done, call, result, ended


_idle: deque[_Worker] = deque()


def call_in_thread(call: Callable[[], Any]) -> "asyncio.Future[Ended]":
    """Starts `call` in a thread; the future tells how that ended."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Ended] = loop.create_future()
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        threading.Thread(target=worker.serve, name="pyrula-step", daemon=True).start()
    worker.calls.put((loop, done, call))
    return done


def _deliver(done: "asyncio.Future[Ended]", ended: Ended) -> None:
    if not done.done():
        done.set_result(ended)
