"""A host of runs that are talked to, in memory: it writes what was queued as one change, and can crash between changes.

It keeps the promises of a store as far as the engine relies on them: a change is written whole or not at all, and what
was consumed isn't handed in again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

from pyrula.workflows import ManualClock
from pyrula.workflows.batching import TriggerEvent
from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.engine.run import RUN
from pyrula.workflows.execution import ChildRequest, Execution, Outcome
from pyrula.workflows.replay.journal import Fields, Journal, encode_row
from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.messages import Applied, Child, Interrupt, Kind, Message, Unread, Wait
from pyrula.workflows.store.payloads import encode_query, read_answer
from tests.engine.rig import dump

SECONDS = 60.0

Definition = WorkflowDefinition[Any, Any]


class Stored:
    """What a store has of one run."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.inbox: list[Unread] = []
        self.sent = 0
        self.applied: dict[str, list[Applied]] = {}
        self.open: dict[str, bytes] = {}
        self.children: list[Child] = []
        self.submitted: list[ChildRequest] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.changes = 0
        self.fed: dict[str, tuple[TriggerEvent, str]] = {}
        self.forgotten: list[str] = []

    def put(self, kind: Kind, name: str = "", payload: Any = None, message_id: str | None = None) -> Unread:
        self.sent += 1
        message = Message(kind, message_id or f"m{self.sent}", name, dumps(payload))
        unread = Unread(self.sent, message, 0.0)
        self.inbox.append(unread)
        return unread


class TalkHost:
    """The host of one lease on `stored`. A change is written in the next turn of the loop."""

    def __init__(self, stored: Stored, park_after: float = 1.0, lost_after: int | None = None) -> None:
        self.stored = stored
        self.park_after = park_after
        self.lost_after = lost_after
        self.idles = 0
        self.on_idle: Callable[[Execution], None] = lambda run: None
        self.on_change: Callable[[], None] = lambda: None
        self._queue: list[Callable[[], None]] = []
        self._flush: asyncio.Future[None] | None = None
        self._children = 0

    def _later(self, write: Callable[[], None]) -> None:
        self._queue.append(write)
        if self._flush is None:
            loop = asyncio.get_running_loop()
            self._flush = loop.create_future()
            loop.call_soon(self.flush)

    def flush(self) -> None:
        queue, self._queue = self._queue, []
        flush, self._flush = self._flush, None
        if queue and not (self.lost_after is not None and self.stored.changes >= self.lost_after):
            self.stored.changes += 1
            for write in queue:
                write()
            self.on_change()
        if flush is not None and not flush.done():
            flush.set_result(None)

    def append(self, run: Execution, index: int, entry: Fields | None) -> None:
        rows = self.stored.rows
        if entry is None:
            self._later(partial(rows.__delitem__, index))
        else:
            data = encode_row(entry, None)
            self._later(lambda: rows.__setitem__(index, data))

    def durable(self, run: Execution) -> Any:
        return self._flush

    def record(self, run: Execution) -> None:
        return None

    def consume(self, run: Execution, number: int) -> None:
        def write() -> None:
            left = [unread for unread in self.stored.inbox if unread.number != number]
            assert len(left) == len(self.stored.inbox) - 1, "consumed twice"
            self.stored.inbox = left

        self._later(write)

    def apply(self, run: Execution, applied: Applied) -> None:
        self._later(lambda: self.stored.applied.setdefault(applied.update_id, []).append(applied))

    def open(self, run: Execution, interrupt: Interrupt) -> None:
        def write() -> None:
            assert interrupt.wait_id not in self.stored.open
            self.stored.open[interrupt.wait_id] = interrupt.payload

        self._later(write)

    def close(self, run: Execution, wait_id: str) -> None:
        self._later(partial(self._close, wait_id))

    def _close(self, wait_id: str) -> None:
        self.stored.open.pop(wait_id, None)

    def adopt(self, run: Execution, child: Child) -> None:
        self._later(lambda: self.stored.children.append(child))

    def event(self, run: Execution, type: str, **data: Any) -> None:  # noqa: A002 - the port's name
        dumps(data)
        self._later(lambda: self.stored.events.append((type, loads(dumps(data)))))

    def idle(self, run: Execution) -> None:
        self.idles += 1
        self.on_idle(run)

    def new_child_id(self, run: Execution, name: str, stamp: Stamp | None) -> str:
        self._children += 1
        return f"child-{name}-{len(self.stored.children) + self._children}"

    async def submit(self, run: Execution, request: ChildRequest) -> None:
        assert any(child.run_id == request.run_id for child in self.stored.children), "submitted before it was durable"
        assert RUN.get() is None, "what a host starts is not the run's"
        self.stored.submitted.append(request)
        await asyncio.sleep(0)

    async def trigger(self, run: Execution, definition: WorkflowDefinition[..., Any], event: TriggerEvent) -> str:
        """Every third event starts a run; one whose id is known gets its first answer."""
        assert RUN.get() is None, "what a host starts is not the run's"
        assert event.id
        assert event.id not in self.stored.forgotten, "fed again"
        await asyncio.sleep(0)
        answer = "" if (len(self.stored.fed) + 1) % 3 else f"00-run-{len(self.stored.fed) // 3}"
        return self.stored.fed.setdefault(event.id, (event, answer))[1]

    def triggered(self, run: Execution, event: TriggerEvent) -> None:
        self._later(lambda: self.stored.forgotten.append(event.id))

    def tenant(self, run: Execution) -> tuple[str, Any]:
        return "ada", {"plan": "free"}


class Life:
    """A run over several leases: `begin`, `send`, `settle`, `crash` or `park`, `begin` again."""

    def __init__(
        self, body: Callable[..., Coroutine[Any, Any, Any]] | WorkflowDefinition[Any, Any], *args: Any
    ) -> None:
        self.definition = body if isinstance(body, WorkflowDefinition) else WorkflowDefinition(body, name="body")
        self.args = args
        self.stored = Stored()
        self.clock = ManualClock()
        self.park_after = 1.0
        self.run_id = "00-test"
        self.attempt = 1

    def begin(self, lost_after: int | None = None, journal: Journal | None = None) -> None:
        """A worker gets the run."""
        stored = self.stored
        self.host = TalkHost(stored, self.park_after, lost_after)
        if journal is None and stored.rows:
            journal = Journal.load(stored.rows.items())
        self.execution = Execution(
            self.definition, self.run_id, self.host, self.args,
            journal=journal, clock=self.clock, attempt=self.attempt,
        )  # fmt: skip
        for unread in list(stored.inbox):
            self.execution.deliver(unread)
        self.task = asyncio.ensure_future(self.execution.run())

    def send(self, kind: Kind, name: str = "", payload: Any = None, message_id: str | None = None) -> None:
        """A client sends a message, and the holder hears of it."""
        self.execution.deliver(self.stored.put(kind, name, payload, message_id))

    async def settle(self) -> None:
        """Until nothing moves any more without a message or the clock. Steps must not wait."""
        for _ in range(60):
            await asyncio.sleep(0)

    async def settle_once(self) -> None:
        """One turn of the loop."""
        await asyncio.sleep(0)

    async def query(self, name: str, *args: Any) -> Any:
        answer = await asyncio.wait_for(self.execution.query(name, encode_query(args, {}, "q")), SECONDS)
        value, failure = read_answer(answer)
        if failure is not None:
            raise AssertionError(f"{failure.type}: {failure.message}")
        return value

    async def crash(self) -> None:
        """The process dies: what wasn't written is lost."""
        self.host.lost_after = self.stored.changes
        self.execution.cut()
        await self.task

    async def park(self) -> tuple[Wait, ...]:
        """The run is parked; its waits."""
        waits = self.execution.hold()
        assert waits is not None, dump(self.execution)
        self.host.flush()
        self.execution.parked()
        outcome = await self.end()
        assert outcome.status == "parked"
        return waits

    def advance(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds).total_seconds())

    async def end(self) -> Outcome:
        done, _ = await asyncio.wait([self.task], timeout=SECONDS)
        assert done, dump(self.execution)
        self.host.flush()
        return self.task.result()
