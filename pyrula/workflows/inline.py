"""Runs workflows in this process, without a worker: whoever waits for a run drives it.

Rules: nothing moves but in a call on a handle or the client, and no task outlives such a call. A call that starts or
tells a run drives all runs until none can go on; one that waits for a run drives on, over sleeps and time-outs too,
until what it waits for is there. Runs park at each wait, so that where they are is in the store alone. Whoever waits
for a paused run is told so by the log, since nothing that time does lets it go on.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from pyrula.workflows.client import RunHandle, WorkflowClient
from pyrula.workflows.clock import Clock, SystemClock
from pyrula.workflows.definition import WorkflowDefinition, definition_of, registered_definitions
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.execution import Output
from pyrula.workflows.loops import give_back, prepare
from pyrula.workflows.store.batches import Buffer
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.messages import Wait
from pyrula.workflows.store.payloads import read_failure
from pyrula.workflows.store.runs import RunStore, Subscription
from pyrula.workflows.worker.answers import Answers
from pyrula.workflows.worker.beats import Heartbeat
from pyrula.workflows.worker.claims import Claimer, woken_within
from pyrula.workflows.worker.firing import Firing
from pyrula.workflows.worker.life import Lives
from pyrula.workflows.worker.options import WorkerOptions
from pyrula.workflows.worker.served import Served
from pyrula.workflows.worker.triggers import Triggers

__all__ = ["Driver", "InlineWorkflowRunner", "Starter"]

log = logging.getLogger("pyrula.workflows")

R = TypeVar("R")
T = TypeVar("T")

_PLACES: Final = 100
_POLL_SECONDS: Final = 0.05
_QUERY_SECONDS: Final = 10.0


class Driver:
    """Drives all runs of a store that this process can execute; one call at a time drives, others wait beside it.

    When that one has what it wants, another one drives."""

    park_after = 0.0
    sends = False

    def __init__(self, store: RunStore, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.served = Served()
        worker = f"inline-{secrets.token_hex(8)}"
        self.lives = Lives(self.served, self, worker, self._on_free)
        self._worker = worker
        self._claimer = Claimer(store, worker, self.served, self.lives, places=_PLACES, poll_interval=_POLL_SECONDS)
        self._firing = Firing(store, self.served, poll_interval=_POLL_SECONDS)
        self.triggers = Triggers(
            store,
            self.served,
            clock,
            poll_interval=_POLL_SECONDS,
            on_run=self.on_triggered,
            on_refused=self._on_refused,
        )
        self._answers = Answers(
            store,
            worker,
            self.served,
            self.lives,
            clock,
            places=_PLACES,
            seconds=_QUERY_SECONDS,
            poll_interval=_POLL_SECONDS,
            sends=self.sends,
        )
        self._moved = asyncio.Event()
        self._calls = 0
        self._turn = asyncio.Lock()
        self._ending: asyncio.Future[None] | None = None
        self._inbox: Subscription
        self._beating: asyncio.Task[None]

    def serve(self, definition: WorkflowDefinition[Any, Any]) -> None:
        """Drive runs of this one, too."""
        if self.served.find(definition.name, definition.version) is not definition:
            self.served.add(definition)

    def on_event(self, run_id: str, workflow: str, type: str, at: float, data: dict[str, Any]) -> None:  # noqa: A002
        pass

    def on_parked(self, run_id: str, waits: Sequence[Wait]) -> None:
        pass

    def on_outputs(self, run_id: str, outputs: Sequence[Output]) -> None:
        pass

    def on_triggered(self, workflow: str, run_id: str) -> None:
        """A batch whose time had come has become this run."""

    def _on_refused(self, buffer: Buffer, error: Exception) -> None:
        raise error

    def _on_free(self) -> None:
        self._moved.set()

    async def sent(self, run_id: str) -> None:
        """Drive until nothing can go on by itself."""
        if self._turn.locked():
            # called by a step, or beside a call that drives: that one sees to it
            self._moved.set()
            return
        async with self._prepared():
            await self._drive(self._settled())

    async def until(
        self,
        run_id: str,
        read: Callable[[], Awaitable[T | None]],
        seconds: float | None,
        *,
        woken: asyncio.Event | None = None,
    ) -> T | None:
        """See `client.waiting.Waits`."""
        found: list[T] = []

        async def there() -> bool:
            value = await read()
            if value is not None:
                found.append(value)
            return value is not None

        limit = None if seconds is None else self.clock.monotonic() + seconds
        async with self._prepared():
            while self._turn.locked():
                if await there() or (limit is not None and self.clock.monotonic() >= limit):
                    return found[0] if found else None
                self._moved.set()
                await asyncio.sleep(_POLL_SECONDS)
            await self._drive(self._waited_for(run_id, there, limit, woken))
        return found[0] if found else None

    async def _drive(self, work: Coroutine[Any, Any, None]) -> None:
        async with self._turn:
            await work

    @asynccontextmanager
    async def _prepared(self) -> AsyncIterator[None]:
        """Around every call; the last one that is left lets go of what still executes."""
        while self._ending is not None:
            await asyncio.wait([self._ending])
        self._calls += 1
        if self._calls == 1:
            self._begin()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._ending = asyncio.get_running_loop().create_future()
                try:
                    await self._end()
                finally:
                    self._ending.set_result(None)
                    self._ending = None

    def _begin(self) -> None:
        for definition in registered_definitions().values():
            with suppress(ConfigurationError):  # one that can't be executed has no runs to be driven
                self.serve(definition)
        loop = asyncio.get_running_loop()
        prepare(loop)
        self._inbox = self.store.on_inbox(self._worker, self._on_message)
        # others may look on, and must not take this for a worker that died
        heartbeat = Heartbeat(self.store, self._worker, self.lives, WorkerOptions(), SystemClock(), self._on_free)
        self._beating = loop.create_task(heartbeat.run(), name="heartbeat")

    async def _end(self) -> None:
        if self.lives:
            # bodies whose caller's time is over: they go on in another call, or elsewhere
            self.lives.draining = True
            self.lives.cut()
            await self.lives.until_empty(None)
            self.lives.draining = False
        self._inbox.close()
        self._beating.cancel()
        await asyncio.wait([self._beating])
        await self.store.leave(self._worker)
        give_back(asyncio.get_running_loop())

    def _on_message(self, run_id: str) -> None:
        for held in list(self.lives.held.values()):
            if run_id in ("", held.lease.run_id):
                held.look_for_messages()

    async def _settled(self) -> None:
        while await self._go_on():
            await self._until_moved(None, None)

    async def _go_on(self) -> bool:
        """Take what can be taken. Whether anything moves."""
        await self._firing.fire_due()
        while await self.triggers.fire_due():
            pass
        while await self._claimer.claim_once():
            pass
        await self._answers.take()
        await self._answers.until_answered()
        return bool(self.lives)

    async def _until_moved(self, seconds: float | None, woken: asyncio.Event | None) -> None:
        """Until a run has been let go, or `woken` is set, or there may be a question."""
        self._moved.clear()
        if len(self.lives):
            pause = _POLL_SECONDS if seconds is None else min(seconds, _POLL_SECONDS)
            await woken_within(self._moved if woken is None else woken, pause)

    async def _waited_for(
        self, run_id: str, there: Callable[[], Awaitable[bool]], limit: float | None, woken: asyncio.Event | None
    ) -> None:
        told = False
        while True:
            moves = await self._go_on()
            if woken is not None:
                woken.clear()
            if await there():
                return
            if not moves and not told:
                told = await self._tell_paused(run_id)
            left = None if limit is None else limit - self.clock.monotonic()
            if left is not None and left <= 0:
                return
            if moves:
                await self._until_moved(left, woken)
            elif not await self.pass_time(left, woken):
                return

    async def _tell_paused(self, run_id: str) -> bool:
        detail = await self.store.detail(run_id)
        if detail.status is not RunStatus.PAUSED:
            return False
        why = "" if detail.error is None else f" ({read_failure(detail.error).message})"
        log.warning("run %s is paused%s: who waits for it waits until somebody unpauses it", detail.run_id, why)
        return True

    async def next_due(self) -> float | None:
        """When a run or a batch falls due next."""
        moments = await self.store.next_due(), await self.triggers.next_due()
        return min((moment for moment in moments if moment is not None), default=None)

    async def pass_time(self, left: float | None, woken: asyncio.Event | None) -> bool:
        """Nothing moves before the next timer, or what others do. False: nothing ever will."""
        due = await self.next_due()
        pause = _POLL_SECONDS if due is None else min(_POLL_SECONDS, max(0.0, due - self.store.now()))
        await woken_within(woken or asyncio.Event(), pause if left is None else min(pause, left))
        return True


class Starter:
    """What starts runs that a driver drives, and has a `client` of them."""

    def __init__(self, driver: Driver) -> None:
        self.client = WorkflowClient(driver.store, waits=driver)
        self._serve = driver.serve

    async def start(
        self,
        workflow: WorkflowDefinition[..., R],
        params: Mapping[str, Any] | BaseModel | None = None,
        *,
        idempotency_key: str | None = None,
        owner: str = "",
        metadata: Any = None,
        priority: int = 0,
    ) -> RunHandle[R]:
        """Start a run, and drive it until it waits or ends."""
        definition = definition_of(workflow)
        if definition is not None:
            self._serve(definition)
        return await self.client.submit(
            workflow,
            params,
            idempotency_key=idempotency_key,
            owner=owner,
            metadata=metadata,
            priority=priority,
        )


class InlineWorkflowRunner(Starter):
    """Starts runs and drives them in this process.

    >>> runner = InlineWorkflowRunner()
    >>> run = await runner.start(charge, {"amount_cents": 500})
    >>> await run.result()

    Without a store it makes one in memory. With one that outlives the process, a later runner or worker goes on with
    its runs; it drives those of all workflows that are imported, whoever submitted them.
    """

    def __init__(self, store: RunStore | None = None) -> None:
        self.store = store or MemoryStore()
        super().__init__(Driver(self.store, SystemClock()))

    async def close(self) -> None:
        """Close the store."""
        await self.client.close()
