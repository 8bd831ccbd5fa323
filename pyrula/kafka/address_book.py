"""All partitions of this process whose runs can be reached, and when each of them is to look.

Each partition is registered in the store before anything of it starts. From then on wake-ups say where to look, and one
look a second at what has changed makes up for those that were missed. What is found is for the partition's `Addresses`
to act on.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final, Literal

from pyrula.kafka.addresses import Addresses, Registered
from pyrula.kafka.attending import AttendingStore, Slots, Verdict
from pyrula.kafka.binding import Binding
from pyrula.kafka.partition import Partition
from pyrula.kafka.record import address_of
from pyrula.kafka.settling import Settling
from pyrula.workflows.clock import Clock
from pyrula.workflows.codec import dumps
from pyrula.workflows.errors import StoreError, StoreUnavailable
from pyrula.workflows.store.lanes import NO_QUEUE, LaneBounds
from pyrula.workflows.store.port import Token
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.records import Registration
from pyrula.workflows.store.runs import Subscription

__all__ = ["AddressBook"]

log = logging.getLogger("pyrula.kafka")

POLL_SECONDS: Final = 1.0


class AddressBook:
    """All partitions of this process whose runs can be reached."""

    def __init__(self, store: AttendingStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._worker = secrets.token_hex(8)
        self._open: dict[str, Addresses] = {}
        self._settling = Settling(store)
        self._served: dict[Binding, tuple[Slots, Verdict, LaneBounds]] = {}
        self._subscription: Subscription | None = None
        self._polling: asyncio.Task[None] | None = None

    def serve(self, binding: Binding, slots: Slots, verdict: Verdict, bounds: LaneBounds = NO_QUEUE) -> None:
        """Who bounds and ends the runs of a binding, and how much may be queued behind those that were handed over."""
        self._served[binding] = slots, verdict, bounds

    def unserve(self, binding: Binding) -> None:
        """The binding has no runs any more."""
        self._served.pop(binding, None)

    async def start(self) -> None:
        """Listen and look from now on. Raises StoreUnavailable."""
        await self._settling.start()
        self._subscription = self._store.on_inbox(self._worker, self._woken)
        self._polling = asyncio.get_running_loop().create_task(self._poll(), name="look at addressed runs")

    async def stop(self) -> None:
        """End it; the partitions were let go before."""
        await self._settling.stop()
        if self._subscription is not None:
            self._subscription.close()
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])

    async def register(
        self,
        binding: Binding,
        topic: str,
        number: int,
        source: bytes,
        token: Token,
        below: int,
        over: Literal["nothing", "ended", "everything"],
    ) -> Registered:
        """Make the runs of a partition reachable. Raises LeaseLost and StoreUnavailable."""
        about = {"cluster": binding.cluster, "group": binding.group, "topic": topic, "partition": number}
        registration = Registration(
            source,
            address_of(binding.cluster, binding.group, topic, number),
            binding.workflow.name,
            binding.workflow.version,
            self._worker,
            dumps(about),
            below,
            over,
        )
        board = await self._store.register_source(token, registration)
        return Registered(registration, board, await self._store.lanes(source, registration.address))

    def open(
        self, partition: Partition, registered: Registered, end: Callable[[], int | None], *, hands_over: bool = True
    ) -> None:
        """The partition begins; `end` gives the end of its log, as far as that is known. `hands_over`: runs that wait
        for long may go on from the store, by whoever serves the binding then."""
        slots, verdict, bounds = self._served[partition.binding]
        addresses = Addresses(partition, registered, self._store, slots, verdict, self._clock, end, hands_over, bounds)
        partition.addresses = addresses
        partition.entrust = self._settling.entrust
        key = f"{partition.shard}-{registered.registration.address}"
        self._open[key] = addresses

        def forget() -> None:
            addresses.close()
            if self._open.get(key) is addresses:
                del self._open[key]

        partition.on_close = forget

    def _woken(self, run_id: str) -> None:
        if not run_id:
            for addresses in list(self._open.values()):
                addresses.look()
            return
        record = RecordId.parse(run_id)
        found = None if record is None else self._open.get(f"{record.shard}-{record.address}")
        if found is not None:
            found.look()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            shards: dict[int, list[Addresses]] = {}
            for addresses in self._open.values():
                shards.setdefault(addresses.partition.shard, []).append(addresses)
            try:
                await asyncio.gather(*(self._look(shard, found) for shard, found in shards.items()))
            except StoreUnavailable:
                pass  # who writes the journal tells of it
            except StoreError as error:
                log.warning("it can't be seen who has addressed a record's run: %s", error)

    async def _look(self, shard: int, found: list[Addresses]) -> None:
        news = await self._store.news(shard, [one.registration.address for one in found])
        for addresses, number in zip(found, news, strict=True):
            if number != addresses.news:
                addresses.news = number
                addresses.look()
