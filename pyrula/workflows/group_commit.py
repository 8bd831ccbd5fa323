"""Group commit: the rows of many runs become durable together.

One flush is in flight; rows that arrive meanwhile travel in the next one. Rules:

- The rows of one source are written in the order they were added, in batches of bounded size.
- All rows added in one turn of the loop travel together: a flush starts in the next turn. What a flush wakes may add
  to the next one, if few rows wait for that.
- While the store can't be reached the rows stay, in order, and are sent until it answers; ``outage`` says since when.
- Any other failure is final for its source (its next row would follow a hole): the flush fails, what is queued behind
  it fails, what is added later fails. Other sources are not touched.

Knows batches and how to write them; nothing of runs, of Kafka, or of a particular store. The order of calls:
``lane()`` once an assignment of a source, ``add()`` a row, ``Flush.wait()`` before the next effect, ``close()``.
"""

import asyncio
import contextvars
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pyrula.workflows.clock import Clock, SystemClock
from pyrula.workflows.errors import LeaseLost, StoreUnavailable
from pyrula.workflows.store.port import Batch, Token
from pyrula.workflows.store.record_changes import RecordChange

logger = logging.getLogger("pyrula.store")

Write = Callable[[Sequence[Batch]], Awaitable[list[Exception | None]]]
Marks = Callable[[int], tuple[int, bytes | None]]
OnSettled = Callable[["Flush"], None]
OnOutage = Callable[[float | None, Exception | None], None]

# What one call of `write` carries at most; an outage may leave more than that behind.
_BATCHES_A_WRITE = 32
# So many rows are a flush worth its cost. They don't wait for what the last flush has woken, so that the store has
# something to do meanwhile.
_ENOUGH_ROWS = 64
_FIRST_DELAY, _LAST_DELAY = 0.05, 1.0


class Flush:
    """The fate of the rows of one source that travel together.

    `riders` belongs to the owner of the source: what it is going to see to in bulk, when it is told of the fate.
    """

    __slots__ = ("_callbacks", "_waiters", "changes", "done", "error", "queue", "riders", "rows")

    def __init__(self, queue: "SourceQueue") -> None:
        self.queue = queue
        self.rows: list[tuple[int, int, bytes]] = []
        self.changes: list[Callable[[], RecordChange]] | None = None
        self.riders: list[Any] = []
        self.done = False
        self.error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[Exception | None], None]] = []

    def wait(self) -> Awaitable[None]:
        """Done when the rows are durable; raises what became of them otherwise. Each caller has a future of its own,
        so that cancelling one leaves the others waiting."""
        future = asyncio.get_running_loop().create_future()
        if self.done:
            _settle(future, self.error)
        else:
            self._waiters.append(future)
        return future

    def on_done(self, callback: Callable[[Exception | None], None]) -> None:
        """Calls back with None or the error, in the order of registration, before any waiter goes on."""
        if self.done:
            callback(self.error)
        else:
            self._callbacks.append(callback)

    def settle(self, error: Exception | None) -> None:
        """For the group commit alone."""
        self.done, self.error = True, error
        self.rows = []
        callbacks, self._callbacks = self._callbacks, []
        if self.queue.on_settled is not None:
            callbacks.insert(0, self._tell_owner)
        for callback in callbacks:
            try:
                callback(error)
            except Exception:  # the other callers of this flush must hear of it too
                logger.exception("a callback of a journal flush raised")
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            _settle(future, error)

    def _tell_owner(self, error: Exception | None) -> None:
        assert self.queue.on_settled is not None
        self.queue.on_settled(self)


def _settle(future: "asyncio.Future[None]", error: Exception | None) -> None:
    if future.done():  # its waiter was cancelled
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # who was cut down before awaiting it doesn't want to read of it in the log


class SourceQueue:
    """The rows of one source on their way to the store, under one token."""

    __slots__ = ("_commit", "_marks", "_next", "error", "on_settled", "source", "token")

    def __init__(
        self, commit: "GroupCommit", source: bytes, token: Token, marks: Marks | None, on_settled: OnSettled | None
    ) -> None:
        self.source = source
        self.token = token
        self.on_settled = on_settled
        self.error: Exception | None = None
        self._commit = commit
        self._marks = marks
        self._next: Flush | None = None

    def add(self, position: int, index: int, data: bytes) -> Flush:
        """Queue a row (empty data deletes it). Returns the flush it travels in: the same for all rows of this source
        until it leaves."""
        flush = self._next
        if flush is None:
            flush = self._begin()
        flush.rows.append((position, index, data))
        return flush

    def touch(self) -> Flush:
        """A flush without a row of its own: it extends the journal's life, and is done when all rows so far are."""
        return self._next or self._begin()

    def change(self, take: Callable[[], RecordChange]) -> Flush:
        """Queue a change of a record's run, which is asked for when the flush leaves: it has all that was decided until
        then, and comes after the rows that were queued. Returns the flush it travels in."""
        flush = self.touch()
        if flush.changes is None:
            flush.changes = []
        flush.changes.append(take)
        return flush

    def close(self) -> None:
        """Drop what is queued, and fail it and whatever is still added; a flush that has left takes its course."""
        self.fail(LeaseLost(f"source {self.source.hex()} was let go"))

    def fail(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
        flush, self._next = self._next, None
        if flush is not None:
            self._commit.forget(flush)
            flush.settle(self.error)

    def _begin(self) -> Flush:
        flush = Flush(self)
        if self.error is None and self._commit.closed:
            self.close()
        if self.error is not None:
            flush.settle(self.error)
        else:
            self._next = flush
            self._commit.queue(flush)
        return flush

    def leave(self, max_rows: int, max_bytes: int) -> list[Batch]:
        """The queued rows as batches; rows added from here on wait for the next flush. For the group commit alone."""
        flush, self._next = self._next, None
        assert flush is not None
        rows = flush.rows
        size = sum([len(row[2]) for row in rows])
        if self._marks is None:
            high, witness = max((row[0] for row in rows), default=0), None
        else:
            high, witness = self._marks(size)
        parts = [rows] if len(rows) <= max_rows and size <= max_bytes else _split(rows, max_rows, max_bytes)
        batches = [Batch(self.source, self.token, part, high, witness) for part in parts]
        if flush.changes is not None:
            batches = batches if rows else []
            batches += [Batch(self.source, self.token, (), high, witness, take()) for take in flush.changes]
        return batches


def _split(rows: list[tuple[int, int, bytes]], max_rows: int, max_bytes: int) -> list[list[tuple[int, int, bytes]]]:
    parts: list[list[tuple[int, int, bytes]]] = []
    part: list[tuple[int, int, bytes]] = []
    size = 0
    for row in rows:
        if part and (len(part) >= max_rows or size + len(row[2]) > max_bytes):
            parts.append(part)
            part, size = [], 0
        part.append(row)
        size += len(row[2])
    parts.append(part)
    return parts


_Leaving = tuple[Flush, Batch]


class GroupCommit:
    """Writes the rows of many sources, one flush at a time.

    ``write`` is a store's ``append_rows``. ``on_outage`` is called with the outage's start (monotonic) and its latest
    error, and with (None, None) when it is over.
    """

    def __init__(
        self,
        write: Write,
        *,
        max_rows: int = 2000,
        max_bytes: int = 1 << 20,
        on_outage: OnOutage | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._write = write
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._on_outage = on_outage
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._queued: dict[Flush, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._starting: asyncio.Handle | None = None
        self._leaving: deque[_Leaving] = deque()
        # The flusher must not run in the context of whichever run happened to queue the first row.
        self._context = contextvars.copy_context()
        self.closed = False
        self.outage: float | None = None
        self.outage_error: Exception | None = None
        self.flushes = 0
        self.rows = 0

    def lane(
        self, source: bytes, token: Token, marks: Marks | None = None, on_settled: OnSettled | None = None
    ) -> SourceQueue:
        """A queue for a source under a token. ``marks`` gives (high, witness) as a flush leaves, and is told how many
        bytes its rows have; without it the high mark is the highest position among the rows. ``on_settled`` is called
        with each flush whose fate is known, before anybody else hears of it."""
        return SourceQueue(self, source, token, marks, on_settled)

    @property
    def idle(self) -> bool:
        return not self._queued and not self._leaving

    async def close(self) -> None:
        """Stop for good. What has not been written fails as let go; whether the flush under way arrived isn't known."""
        self.closed = True
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail_all(LeaseLost("the group commit was closed"))
        self._over()

    def _fail_all(self, error: Exception) -> None:
        left = [*dict.fromkeys(flush for flush, _ in self._leaving), *self._queued]
        self._leaving.clear()
        for flush in left:
            flush.queue.fail(error)
            if not flush.done:
                flush.settle(flush.queue.error)

    def queue(self, flush: Flush) -> None:
        """For a SourceQueue alone."""
        self._queued[flush] = None
        if self._task is None and self._starting is None:
            loop = asyncio.get_running_loop()
            self._starting = loop.call_soon(self._start, loop, context=self._context)

    def forget(self, flush: Flush) -> None:
        """For a SourceQueue alone."""
        self._queued.pop(flush, None)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._starting = None
        # the task copies the context this runs in, which is not that of whoever queued the first row
        self._task = loop.create_task(self._flush_all(), name="pyrula-group-commit")

    async def _flush_all(self) -> None:
        try:
            while self._queued:
                await self._flush()
                if sum([len(flush.rows) for flush in self._queued]) < _ENOUGH_ROWS:
                    # what the last flush woke may join the next one
                    await asyncio.sleep(0)
        except Exception as error:
            logger.exception("the journal's flusher failed")
            self._fail_all(error)
        finally:
            # nothing is awaited after the condition was false, so no row is left without a flusher
            self._task = None

    async def _flush(self) -> None:
        flushes, self._queued = self._queued, {}
        self.flushes += 1
        for flush in flushes:
            try:
                batches = flush.queue.leave(self._max_rows, self._max_bytes)
            except Exception as error:  # noqa: BLE001 - `marks` is the caller's code; its source alone fails
                flush.queue.fail(error)
                flush.settle(error)
            else:
                self.rows += len(flush.rows)
                self._leaving += [(flush, batch) for batch in batches]
        while self._leaving:
            part = [self._leaving[number] for number in range(min(len(self._leaving), _BATCHES_A_WRITE))]
            await self._persist(part)
            for flush, _ in part:
                self._leaving.popleft()
                if not flush.done and not (self._leaving and self._leaving[0][0] is flush):
                    flush.settle(None)

    async def _persist(self, part: list[_Leaving]) -> None:
        """Writes until every batch is written or its flush has failed."""
        delay = _FIRST_DELAY
        while part := [item for item in part if not self._dropped(*item)]:
            began = self._clock.monotonic()
            part, trouble = await self._attempt(part)
            if trouble is None:
                break
            self._out(trouble, began)
            await self._sleep(delay * random.uniform(0.8, 1.2))
            delay = min(delay * 2, _LAST_DELAY)
        self._over()

    @staticmethod
    def _dropped(flush: Flush, _: Batch) -> bool:
        if not flush.done and flush.queue.error is not None:
            flush.settle(flush.queue.error)
        return flush.done

    async def _attempt(self, part: list[_Leaving]) -> tuple[list[_Leaving], StoreUnavailable | None]:
        """One write. Gives back what is to be written again, with the reason: of a source of which the store could not
        take a batch at present, all batches, so that their order is kept."""
        try:
            answers = await self._write([batch for _, batch in part])
        except StoreUnavailable as error:
            return part, error
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            answers = [error] * len(part)
        again: dict[Flush, None] = {}
        trouble: StoreUnavailable | None = None
        for (flush, _), answer in zip(part, answers, strict=True):
            if flush.done or flush in again or answer is None:
                continue
            if isinstance(answer, StoreUnavailable):
                trouble = answer
                again[flush] = None
            else:
                flush.settle(answer)
                flush.queue.fail(answer)
        return [item for item in part if item[0] in again], trouble

    def _out(self, error: StoreUnavailable, began: float) -> None:
        self.outage_error = error
        if self.outage is None:
            self.outage = began
            logger.warning("the journal can't be written; it is kept here and tried again: %s", error)
        self._tell(self.outage, error)

    def _over(self) -> None:
        if self.outage is not None:
            logger.warning("the journal is written again, after %.1f s", self._clock.monotonic() - self.outage)
            self.outage = self.outage_error = None
            self._tell(None, None)

    def _tell(self, since: float | None, error: Exception | None) -> None:
        if self._on_outage is not None:
            try:
                self._on_outage(since, error)
            except Exception:  # it must not stop the flusher
                logger.exception("on_outage raised")
