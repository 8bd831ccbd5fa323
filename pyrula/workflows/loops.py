"""The event loop of runs: prepared when the first who hosts runs on it begins, given back when the last one ends."""

import asyncio
from weakref import WeakKeyDictionary

from pyrula.workflows.execution import install, uninstall

__all__ = ["give_back", "prepare"]


def prepare(loop: asyncio.AbstractEventLoop) -> None:
    """Raises ConfigurationError for a loop that runs can't be hosted on. Each call wants one of `give_back`."""
    install(loop)
    _hosts[loop] = _hosts.get(loop, 0) + 1


def give_back(loop: asyncio.AbstractEventLoop) -> None:
    _hosts[loop] -= 1
    if not _hosts[loop]:
        uninstall(loop)


_hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
