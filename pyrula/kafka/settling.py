"""Until what was entrusted to the store is surely on its disk, the offsets of the records concerned stay open.

A server that syncs its file once a second answers before the disk has it. So while anything is entrusted the server is
asked, a few times a second, how its file stands. With `appendfsync everysec` that is known after three answers: one in
which no fsync was under way (all that had been answered before it is written then), one more than a second later (the
next fsync has begun by then), and one after that in which none is under way: that fsync is over. It takes two seconds.

A server that was started again, or another one in its place, may have lost what isn't settled: the partitions concerned
are opened again, from the offset that the group has committed, and their records are found in the store or run again.
"""

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import Final, Protocol

from pyrula.kafka.partition import Partition
from pyrula.workflows.errors import StoreError
from pyrula.workflows.store.lanes import Persistence

__all__ = ["Settling"]

log = logging.getLogger("pyrula.kafka")

LOOK_SECONDS: Final = 0.3
# How long a server that gets to its work may put off the fsync of what it has written.
SYNC_SECONDS: Final = 1.2


class _Store(Protocol):
    @property
    def settles(self) -> bool: ...

    async def persistence(self) -> Persistence: ...


class _Entrusted:
    """Offsets of a partition, and how far it is known that the disk has them."""

    __slots__ = ("begun", "idle", "offsets", "partition", "since")

    def __init__(self, partition: Partition, offsets: Sequence[int], since: float) -> None:
        self.partition = partition
        self.offsets = offsets
        self.since = since
        self.idle: float | None = None
        self.begun = False

    def settled(self, found: Persistence, sent: float, answered: float) -> bool:
        """Whether the disk surely has them, by one more answer."""
        if not found.mode or sent < self.since:
            return False
        if found.mode == "always" or (self.begun and not found.pending):
            return True
        if self.idle is None:
            self.idle = None if found.pending else answered
        elif sent - self.idle >= SYNC_SECONDS:
            self.begun = True
        return False


class Settling:
    """What was entrusted to the store by the partitions of this process."""

    def __init__(self, store: _Store) -> None:
        self._store = store
        self._server = ""
        self._waiting: list[_Entrusted] = []
        self._looking: asyncio.Task[None] | None = None
        self._told = False

    async def start(self) -> None:
        """Know the server, so that another one is told from it. Raises StoreUnavailable."""
        if self._store.settles:
            self._server = (await self._store.persistence()).server

    def entrust(self, partition: Partition, offsets: Sequence[int]) -> None:
        """The store has answered that it has these records: they are complete once that is sure."""
        if not self._store.settles:
            partition.settled(offsets)
            return
        self._waiting.append(_Entrusted(partition, offsets, monotonic()))
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="look for the store's fsync")

    async def _look(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(LOOK_SECONDS)
                sent = monotonic()
                try:
                    found = await self._store.persistence()
                except StoreError as error:
                    log.debug("it can't be told whether the store's disk has what was handed over: %s", error)
                    continue
                self._take(found, sent, monotonic())
        finally:
            self._looking = None

    def _take(self, found: Persistence, sent: float, answered: float) -> None:
        waiting = [one for one in self._waiting if not one.partition.closed]
        if found.server != self._server:
            self._server, self._waiting = found.server, []
            for partition in dict.fromkeys(one.partition for one in waiting):
                log.warning(
                    "%s[%d]: the store was started again; what was handed over just before may be lost, so the "
                    "partition is opened again",
                    *partition.tp,
                )
                partition.reopen()
            return
        if not found.mode and not self._told:
            self._told = True
            log.warning("the store keeps no append-only file any more: offsets of records handed over stay open")
        self._waiting = []
        for one in waiting:
            if one.settled(found, sent, answered):
                one.partition.settled(one.offsets)
            else:
                self._waiting.append(one)

    async def stop(self) -> None:
        """End it; what isn't settled is found in the store by whoever has the partition next."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
