"""A SystemExit, KeyboardInterrupt or GeneratorExit raised by a body or a step is a failure of that body or step.

Let through, it would end the process, and the next one as soon as it has the same record. What Ctrl-C raises goes on.
"""

import signal
import threading
from types import TracebackType
from typing import Final

__all__ = ["EXITS", "OwnExit", "is_interrupt"]

EXITS: Final = (SystemExit, KeyboardInterrupt, GeneratorExit)


class OwnExit(Exception):
    """A BaseException of a body's or an attempt's own: a SystemExit, a CancelledError though nobody cancelled it."""

    def __init__(self, error: BaseException, whose: str = "the step") -> None:
        self.kind = type(error).__qualname__
        super().__init__(str(error) or f"{whose} raised {self.kind}")


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
