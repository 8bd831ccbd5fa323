"""What SIGTERM and SIGINT do to the workers of a process: all of them drain, and the process ends in time.

Handlers belong to the process, not to a worker: the first worker puts them in place, the last one takes them away. The
deadline is watched by a thread, since the loop may hang in a body or in the socket of a dead broker. A second signal
ends the process at once. Nothing of this is cleanly undone for what runs: it is neither failed nor charged.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

log = logging.getLogger("pyrula.worker")

# After drain_timeout, this long for commits, closing connections and logs; then the process ends.
EXIT_SECONDS = 10.0
_NUMBERS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, eq=False)
class _Drainable:
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]
    drain_timeout: float


class Signals:
    """The signals of this process."""

    def __init__(self) -> None:
        self._workers: list[_Drainable] = []
        self._kept: dict[int, Any] = {}
        self._caught = False

    def watch(
        self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None], drain_timeout: float
    ) -> Callable[[], None]:
        """Have `stop` called in the loop at a signal, and end the process EXIT_SECONDS after the drain_timeout that
        follows, unless the loop has been closed by then. Answers what ends the watch.

        Only the main thread can catch signals: elsewhere nothing is watched.
        """
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        worker = _Drainable(loop, stop, drain_timeout)
        if not self._workers:
            self._caught = False
            self._kept = {number: signal.signal(number, self._handle) for number in _NUMBERS}
        self._workers.append(worker)

        def forget() -> None:
            self._workers.remove(worker)
            if not self._workers:
                for number, handler in self._kept.items():
                    signal.signal(number, handler)

        return forget

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._caught:
            os._exit(128 + number)
        self._caught = True
        for worker in self._workers:
            worker.loop.call_soon_threadsafe(_begin, number, worker.stop)
        longest = max(worker.drain_timeout for worker in self._workers)
        loops = [worker.loop for worker in self._workers]
        timer = threading.Timer(longest + EXIT_SECONDS, _exit_now, (number, loops))
        timer.daemon = True
        timer.start()


def _begin(number: int, stop: Callable[[], None]) -> None:
    log.info("%s: draining", signal.Signals(number).name)
    stop()


def _exit_now(number: int, loops: list[asyncio.AbstractEventLoop]) -> None:
    if all(loop.is_closed() for loop in loops):
        return
    # In a thread of its own: whatever hangs may hold a lock of the logging.
    words = threading.Thread(target=_last_words, daemon=True)
    words.start()
    words.join(1.0)
    os._exit(128 + number)


def _last_words() -> None:
    log.critical("the worker did not end in time: the process ends now; what ran is neither failed nor charged")
    logging.shutdown()


process_signals = Signals()
