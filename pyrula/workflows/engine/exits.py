"""A SystemExit, KeyboardInterrupt or GeneratorExit raised by a body or a step is a failure of that body or step.

Let through, it would end the process, and the next one as soon as it has the same record. What Ctrl-C raises goes on.
"""

import functools
import signal
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final

__all__ = ["EXITS", "Contained", "OwnExit", "TimedOut", "is_interrupt"]

EXITS: Final = (SystemExit, KeyboardInterrupt, GeneratorExit)


class OwnExit(Exception):
    """A BaseException of a body's or an attempt's own: a SystemExit, a CancelledError though nobody cancelled it.

    Its type has that one's name, which is what users find as the type of the error and in its trace."""

    def __new__(cls, error: BaseException, whose: str = "the step") -> "OwnExit":
        return super().__new__(_named(type(error).__qualname__), error, whose)

    def __init__(self, error: BaseException, whose: str = "the step") -> None:
        super().__init__(str(error) or f"{whose} raised {type(error).__qualname__}")


class TimedOut(TimeoutError):
    """The time of an attempt, or of the whole step, is up."""


TimedOut.__module__, TimedOut.__qualname__ = "builtins", "TimeoutError"


@functools.lru_cache(maxsize=64)
def _named(name: str) -> type[OwnExit]:
    return type(name, (OwnExit,), {"__module__": "builtins"})


class Contained(Coroutine[Any, Any, Any]):
    """A coroutine for a task of a body's own: asyncio would pass its exit on to the loop, and so end the process."""

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro = coro
        self.__qualname__ = getattr(coro, "__qualname__", type(coro).__qualname__)

    def send(self, value: Any) -> Any:
        try:
            return self._coro.send(value)
        except EXITS as error:
            if is_interrupt(error):
                raise
            raise OwnExit(error, "a task of the body") from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._coro.throw(*error)
        except EXITS as raised:
            if is_interrupt(raised) or raised is error[0]:
                raise
            raise OwnExit(raised, "a task of the body") from raised

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Any:
        return self._coro.__await__()

    def __repr__(self) -> str:
        return repr(self._coro)

    @property
    def cr_code(self) -> Any:
        """As of the coroutine, for the texts of tasks and their stacks."""
        return getattr(self._coro, "cr_code", None)

    @property
    def cr_frame(self) -> Any:
        return getattr(self._coro, "cr_frame", None)

    @property
    def cr_running(self) -> Any:
        return getattr(self._coro, "cr_running", False)

    @property
    def cr_await(self) -> Any:
        return getattr(self._coro, "cr_await", None) or getattr(self._coro, "gi_yieldfrom", None)


def is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C raised it. A worker catches SIGINT, so that this is so only where nothing caught it."""
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True
    innermost: TracebackType | None = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    # asyncio's handler raises it in the frame of its own.
    return innermost is not None and innermost.tb_frame.f_globals.get("__name__") == "asyncio.runners"
