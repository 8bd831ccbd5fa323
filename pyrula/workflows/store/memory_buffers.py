"""Buffers of events in memory, and the batches they make. All calls are synchronous, so each is atomic."""

import heapq
import itertools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pyrula.workflows.batching import TriggerEvent, Window, batch_params, room_for
from pyrula.workflows.store.batches import (
    LEASE_SECONDS,
    OWN_ID_SECONDS,
    Buffer,
    Due,
    EventBatch,
    Fed,
    OpenBatch,
    Reason,
)
from pyrula.workflows.store.ids import digest
from pyrula.workflows.store.runs import RETENTION_SECONDS


@dataclass(slots=True)
class _Open:
    id: str
    window: Window
    opened_at: float
    due_at: float
    size: int = 0
    events: list[bytes] = field(default_factory=list)

    def due_after(self, now: float) -> float:
        """When it is due, after an event at `now`."""
        window = self.window
        if window.max_events is not None:
            return self.opened_at + window.seconds
        latest = float("inf") if window.max_wait is None else self.opened_at + window.max_wait
        return min(now + window.seconds, latest)

    def reason(self) -> Reason:
        """Why it is due."""
        longest = self.window.max_wait
        return "max_wait" if longest is not None and self.due_at >= self.opened_at + longest else "window"


@dataclass(slots=True)
class _Gathered:
    """All of one workflow, key and owner."""

    buffer: Buffer
    key: str
    owner: str
    open: _Open | None = None
    sealed: list[EventBatch] = field(default_factory=list)
    leased_until: float = 0.0
    expected: float | None = None

    @property
    def due_at(self) -> float:
        """When there is something to take."""
        moments = [self.leased_until] if self.sealed else []
        return min(moments if self.open is None else [*moments, self.open.due_at])


class Batches:
    """The events and batches of a store, shared by its twins. `now` is the store's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._gathered: dict[Buffer, _Gathered] = {}
        self._known: dict[bytes, str] = {}
        """Of an event's id: the run of the batch it filled, "" if it filled none, "#" and the batch if there is no run
        yet."""
        self._ends: list[tuple[float, int, bytes]] = []
        self._due: dict[str, list[tuple[float, int, Buffer]]] = {}
        """By name, a heap; what was moved since is dropped when it is met."""
        self._serial = itertools.count()

    def feed(self, event: TriggerEvent) -> Fed:
        now = self._now()
        self._expire(now)
        buffer = Buffer(event.name, 0, digest("batch", *event.place, size=16))
        gathered = self._gathered.get(buffer) or _Gathered(buffer, event.key, event.owner)
        known = event_digest(event)
        answer = self._known.get(known)
        if answer is not None:
            return Fed(answer[1:], "", self._head(gathered)) if answer[:1] == "#" else Fed("", answer)
        self._gathered[buffer] = gathered
        fed = self._take(event, gathered, known, now)
        self._expect(gathered)
        return fed

    def _take(self, event: TriggerEvent, gathered: _Gathered, known: bytes, now: float) -> Fed:
        if gathered.open is not None and gathered.open.due_at <= now:
            self._seal(gathered, gathered.open.reason())
        pushed = gathered.open is not None and gathered.open.size + len(event.data) + 1 > room_for(event.key)
        if pushed:
            assert gathered.open is not None
            self._seal(gathered, "size")
        present = gathered.open
        if present is None:
            present = gathered.open = _Open(secrets.token_hex(8), event.window, now, now)
        present.events.append(event.data)
        present.size += len(event.data) + 1
        filled = present.window.max_events is not None and len(present.events) >= present.window.max_events
        self._known[known] = f"#{present.id}" if filled else ""
        until = now + (RETENTION_SECONDS if event.lasting else OWN_ID_SECONDS)
        heapq.heappush(self._ends, (until, next(self._serial), known))
        if filled:
            self._seal(gathered, "max_events", known)
            return Fed(present.id, "", self._head(gathered))
        present.due_at = present.due_after(now)
        return Fed("", "", self._head(gathered) if pushed else None)

    def _seal(self, gathered: _Gathered, reason: Reason, event: bytes = b"") -> None:
        ready = gathered.open
        assert ready is not None
        gathered.open = None
        count = len(ready.events)
        params = batch_params(gathered.key, b",".join(ready.events), count)
        gathered.sealed.append(
            EventBatch(
                gathered.buffer,
                ready.id,
                gathered.key,
                params,
                count,
                reason,
                ready.opened_at,
                event,
                owner=gathered.owner,
            )
        )
        if len(gathered.sealed) == 1:
            gathered.leased_until = 0.0

    def _head(self, gathered: _Gathered) -> EventBatch | None:
        if not gathered.sealed:
            return None
        gathered.leased_until = self._now() + LEASE_SECONDS
        self._expect(gathered)
        return gathered.sealed[0]

    def _expect(self, gathered: _Gathered) -> None:
        if gathered.expected != gathered.due_at:
            gathered.expected = gathered.due_at
            entry = gathered.due_at, next(self._serial), gathered.buffer
            heapq.heappush(self._due.setdefault(gathered.buffer.name, []), entry)

    def _expire(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            self._known.pop(heapq.heappop(self._ends)[2], None)

    def forget(self, event: TriggerEvent) -> None:
        self._known.pop(event_digest(event), None)

    def due(self, names: Sequence[str]) -> Due:
        now = self._now()
        buffers: dict[Buffer, None] = {}
        moments: list[float] = []
        for name in names:
            heap = self._due.get(name, [])
            found = []
            while heap and (heap[0][0] <= now or self._moved(heap[0])):
                entry = heapq.heappop(heap)
                if not self._moved(entry) and entry[2] not in buffers:
                    buffers[entry[2]] = None
                    found.append(entry)
            moments += [heap[0][0]] if heap else []
            for entry in found:
                heapq.heappush(heap, entry)
            if not heap:
                self._due.pop(name, None)
        return Due(tuple(buffers), min(moments, default=None))

    def _moved(self, entry: tuple[float, int, Buffer]) -> bool:
        gathered = self._gathered.get(entry[2])
        return gathered is None or gathered.due_at != entry[0]

    def take(self, buffer: Buffer) -> EventBatch | None:
        gathered, now = self._gathered.get(buffer), self._now()
        if gathered is None:
            return None
        if gathered.open is not None and gathered.open.due_at <= now:
            self._seal(gathered, gathered.open.reason())
            self._expect(gathered)
        return self._head(gathered) if gathered.leased_until <= now else None

    def plan(self, batch: EventBatch, plan: bytes) -> bytes:
        gathered = self._gathered.get(batch.buffer)
        if gathered is None or not gathered.sealed or gathered.sealed[0].id != batch.id:
            return b""
        head = gathered.sealed[0]
        if not head.plan:
            head = gathered.sealed[0] = replace(head, plan=plan)
        return head.plan

    def drop(self, batch: EventBatch, run_id: str) -> EventBatch | None:
        gathered = self._gathered.get(batch.buffer)
        if gathered is None:
            return None
        if gathered.sealed and gathered.sealed[0].id == batch.id:
            del gathered.sealed[0]
            if batch.event in self._known:
                self._known[batch.event] = run_id
            if gathered.sealed or gathered.open is not None:
                self._expect(gathered)
            else:
                del self._gathered[batch.buffer]
        return self._head(gathered)

    def open(self, name: str) -> list[OpenBatch]:
        found = [
            OpenBatch(gathered.key, len(present.events), present.opened_at, present.due_at, gathered.owner)
            for buffer, gathered in self._gathered.items()
            if buffer.name == name and (present := gathered.open) is not None
        ]
        return sorted(found, key=lambda batch: (batch.key, batch.owner))


def event_digest(event: TriggerEvent) -> bytes:
    """What stands for an event's id, which counts within its workflow, key and owner."""
    return digest("event", *event.place, event.id, size=16)
