"""A worker in the store's register: what it serves, and whether that fits what the others serve.

Rules: a workflow is bound to a topic, or has flow control, in all processes alike. The same version in both ways is an
error of configuration, at a worker's start and at a submit. Different versions are a rolling deploy: a warning, and
degraded health for as long as both are there. A worker enters itself before it looks, so that of two which start at
once at least one sees the other.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.store.registry import Enlisted, Registry, misfits

__all__ = ["Register", "served_of"]

log = logging.getLogger("pyrula.worker")

_SECONDS: Final = 10.0


def served_of(definition: WorkflowDefinition[Any, Any], topic: str | None = None) -> Enlisted:
    gated = definition.concurrency or definition.rate_limit or definition.trigger
    return Enlisted(definition.name, definition.version, topic, gated is not None)


class Register:
    """One worker's entry. `odd` says what doesn't fit just now, for its health."""

    def __init__(self, store: Registry, worker: str, served: Iterable[Enlisted]) -> None:
        self._store = store
        self._worker = worker
        self._served = tuple(served)
        self.odd: tuple[str, ...] = ()

    async def begin(self) -> None:
        """Enter the worker. ConfigurationError, naming the other worker, for what can't be served beside it."""
        await self._store.enlist(self._worker, self._served)
        try:
            await self._look()
        except ConfigurationError:
            await self._store.strike(self._worker)
            raise

    async def run(self) -> None:
        """Keep the entry, until it is cancelled. Who came later and doesn't fit was refused, or is told of in `odd`."""
        while True:
            await asyncio.sleep(_SECONDS)
            try:
                await self._store.enlist(self._worker, self._served)
                await self._look(refuse=False)
            except StoreUnavailable as error:
                log.debug("the register can't be reached: %s", error)

    async def end(self) -> None:
        await self._store.strike(self._worker)

    async def _look(self, *, refuse: bool = True) -> None:
        others = [entry for entry in await self._store.enlisted() if entry.worker != self._worker]
        odd = []
        for mine in self._served:
            for misfit in misfits(mine, others):
                if refuse and misfit.same_version:
                    raise ConfigurationError(misfit.text)
                odd.append(misfit.text)
        for text in odd:
            if text not in self.odd:
                log.warning("%s", text)
        self.odd = tuple(odd)
