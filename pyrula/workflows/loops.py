"""The event loop of runs: prepared when the first who hosts runs on it begins, given back when the last one ends.

And how a worker that runs in it is told to stop, from wherever that is.
"""

import asyncio
from weakref import WeakKeyDictionary

from pyrula.workflows.execution import install, uninstall

__all__ = ["Stopping", "give_back", "prepare"]


def prepare(loop: asyncio.AbstractEventLoop) -> None:
    """Raises ConfigurationError for a loop that runs can't be hosted on. Each call wants one of `give_back`."""
    install(loop)
    _hosts[loop] = _hosts.get(loop, 0) + 1


def give_back(loop: asyncio.AbstractEventLoop) -> None:
    _hosts[loop] -= 1
    if not _hosts[loop]:
        uninstall(loop)


_hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()


class Stopping:
    """Whether a worker is to stop. `asked` is set, in the worker's loop, once it is."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def begun(self) -> bool:
        """Whether the worker ever ran."""
        return self._loop is not None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The worker runs, in this loop."""
        self._loop = loop

    def ask(self) -> None:
        """From anywhere: a signal's handler, another thread, before the worker runs."""
        if self._loop is None or self._loop.is_closed():
            self.asked.set()
        else:
            self._loop.call_soon_threadsafe(self.asked.set)
