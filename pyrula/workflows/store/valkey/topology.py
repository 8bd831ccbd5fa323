"""Who has which slot: one server has them all; the nodes of a cluster share them, and change that under way.

Rules: the map is learned when the store is opened and whenever it is in doubt (a node didn't answer, or has said that
the cluster is down), at most every fifth of a second; a redirection corrects it at once. While nobody can be asked the
last map stands. Any node that was ever met may be asked.
"""

import time
from binascii import crc_hqx
from functools import lru_cache
from typing import Any, Final

from pyrula.workflows.errors import PyrulaError, StoreUnavailable
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.address import Address
from pyrula.workflows.store.valkey.link import Link

SLOTS: Final = 16384

_BETWEEN: Final = 0.2
_TIMEOUT: Final = 2.0


@lru_cache(maxsize=4096)
def slot_of_tag(tag: bytes) -> int:
    return crc_hqx(tag, 0) % SLOTS


def slot_of(key: bytes) -> int:
    """The slot of a key, which is that of its hash tag if it has one.

    >>> slot_of(b"{orders:3}run") == slot_of(b"{orders:3}q")
    True
    """
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return slot_of_tag(key[start + 1 : end] if end > start + 1 else key)


class Topology:
    """The servers of a store, shared by all its connections."""

    def __init__(self, seed: Address, timeout: float, *, synced: bool = False) -> None:
        self.seed = seed
        self.synced = synced
        """Whether what is answered must be on disk."""
        self.clustered = False
        self.primaries: tuple[Address, ...] = (seed,)
        self._timeout = min(timeout, _TIMEOUT)
        self._owners: list[Address | None] = []
        self._known: dict[Address, None] = {seed: None}
        self._doubtful = False
        self._asked = 0.0
        self._turn = 0

    def owner(self, key: bytes | None) -> Address:
        """The node that has the key; of no key: any. Raises StoreUnavailable for a slot that nobody has."""
        if not self.clustered or key is None or not self._owners:
            return self.primaries[0]
        slot = slot_of(key)
        found = self._owners[slot]
        if found is None:
            self.doubt()
            raise StoreUnavailable(f"the cluster of {self.seed.text} has no node for slot {slot}")
        return found

    def doubt(self) -> None:
        self._doubtful = True

    async def settle(self) -> None:
        """Learns the map again if it is in doubt."""
        if self._doubtful and time.monotonic() - self._asked >= _BETWEEN:
            try:
                await self.learn()
            except StoreUnavailable:
                self._doubtful = True

    async def learn(self) -> None:
        """Asks one node after the other. Raises StoreUnavailable if none answers."""
        self._asked = time.monotonic()
        self.clustered = True
        trouble: PyrulaError | None = None
        known = list(self._known)
        # not always the same first: one that was cut off tells what was
        self._turn += 1
        for place in range(len(known)):
            address = known[(place + self._turn) % len(known)]
            link = Link(address, self._timeout)
            try:
                (ranges,) = await link.exchange([wire.command(b"CLUSTER", b"SLOTS")], 1)
                if isinstance(ranges, Exception):
                    raise link.error(ranges)
                self._take(address, ranges)
            except PyrulaError as error:
                trouble = error
            else:
                self._doubtful = False
                return
            finally:
                await link.drop()
        assert trouble is not None
        raise trouble

    def _take(self, asked: Address, ranges: Any) -> None:
        owners: list[Address | None] = [None] * SLOTS
        primaries: dict[Address, None] = {}
        for first, last, *nodes in ranges:
            for place, (host, port, *_) in enumerate(nodes):
                # a node that doesn't know its own name says none: it is where it was asked
                address = self.seed.at(host.decode() if host else asked.host, port)
                self._known[address] = None
                if place == 0:
                    primaries[address] = None
                    owners[first : last + 1] = [address] * (last - first + 1)
        if not primaries:
            raise StoreUnavailable(f"the cluster of {asked.text} has given its slots to nobody yet")
        self._owners, self.primaries = owners, tuple(primaries)

    def moved(self, slot: int, host: str, port: int, told_by: Address) -> None:
        """A node has said who has the slot now."""
        address = self.seed.at(host or told_by.host, port)
        self._known[address] = None
        self.clustered = True
        if self._owners:
            self._owners[slot] = address
            if address not in self.primaries:
                self.primaries = (*self.primaries, address)
        # where one slot went, others may have gone
        self.doubt()

    def listened(self, attempt: int) -> Address:
        """Whom to listen to: what is published on one node is heard on all."""
        if not self.clustered:
            return self.seed
        return self.primaries[attempt % len(self.primaries)]
