"""Runs of records that were handed over and stand still until a person says so: they failed for good but aren't dead
letters, don't match today's code, or were paused.

Nobody holds them, so it is the store that is asked: every few seconds, and soon after one of this process was paused.
What is told is as old as that.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from pyrula.kafka.binding import Binding
from pyrula.kafka.record import stream_digest
from pyrula.workflows.errors import StoreError
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.listing import Page, Wanted
from pyrula.workflows.store.payloads import read_failure
from pyrula.workflows.store.record_changes import RecordId
from pyrula.workflows.store.runs import RunDetail
from pyrula.workflows.worker.claims import woken_within

__all__ = ["HeldRecords"]

log = logging.getLogger("pyrula.kafka")

LOOK_SECONDS: Final = 10.0
_MOST: Final = 1000
_NAMED: Final = 3
_LONGEST: Final = 200


class _Store(Protocol):
    async def list_runs(self, wanted: Wanted) -> Page: ...

    async def detail(self, run_id: str) -> RunDetail: ...


class HeldRecords:
    """How many of each binding are held in the store, and which the first are."""

    def __init__(self, store: _Store, bindings: Callable[[], Iterable[Binding]]) -> None:
        self._store = store
        self._bindings = bindings
        self._counts: dict[str, int] = {}
        self._reasons: dict[str, tuple[str, ...]] = {}
        self._wake = asyncio.Event()

    def look_soon(self) -> None:
        """One was paused, or goes on."""
        self._wake.set()

    def count(self, binding: Binding) -> int:
        """At most 1,000."""
        return self._counts.get(binding.name, 0)

    def reasons(self, binding: Binding) -> tuple[str, ...]:
        """A line for each of the first few: which, why, and what helps."""
        return self._reasons.get(binding.name, ())

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            self._wake.clear()
            try:
                for binding in self._bindings():
                    await self._look(binding)
            except StoreError as error:
                log.debug("held records can't be looked up: %s", error)
            await woken_within(self._wake, LOOK_SECONDS)

    async def _look(self, binding: Binding) -> None:
        wanted = Wanted(name=binding.workflow.name, statuses=frozenset((RunStatus.PAUSED,)), limit=_MOST)
        topics = {f"k{stream_digest(binding.cluster, binding.group, topic)}": topic for topic in binding.topics}
        found = []
        for line in (await self._store.list_runs(wanted)).runs:
            record = RecordId.parse(line.run_id)
            if record is not None and (topic := topics.get(record.address.rpartition("-")[0])) is not None:
                found.append((topic, record))
        reasons = [await self._reason(*one) for one in found[:_NAMED]]
        if len(found) > _NAMED:
            reasons.append(f"and {len(found) - _NAMED} more records are held in the store")
        self._counts[binding.name], self._reasons[binding.name] = len(found), tuple(reasons)

    async def _reason(self, topic: str, record: RecordId) -> str:
        place = f"{topic}[{record.address.rpartition('-')[2]}] offset {record.position}"
        error = (await self._store.detail(str(record))).error
        why = "" if error is None else read_failure(error).message.strip()[:_LONGEST]
        return f"{place} is held in the store until run {record} is retried, unpaused or cancelled: {why or 'paused'}"
