"""Answers queries, in a small pool of its own: a worker whose places are all taken still answers.

A run that is held here answers for itself. One that nobody holds is replayed from its journal, read-only, by a worker
of its workflow. Every refusal is an answer too, so that who asks needn't wait for nothing.
"""

import asyncio
import logging
from contextlib import suppress

from pyrula.workflows.clock import Clock
from pyrula.workflows.codec import loads
from pyrula.workflows.errors import StoreUnavailable
from pyrula.workflows.execution import LetGo
from pyrula.workflows.params import Params
from pyrula.workflows.replaying import replayed
from pyrula.workflows.store.payloads import Failure, encode_refusal
from pyrula.workflows.store.runs import Query, RunStore
from pyrula.workflows.worker.claims import woken_within
from pyrula.workflows.worker.life import Lives
from pyrula.workflows.worker.questions import answer
from pyrula.workflows.worker.served import Served

__all__ = ["Answers"]

log = logging.getLogger("pyrula.worker")


class Answers:
    """Takes questions from the store and answers them."""

    def __init__(
        self,
        store: RunStore,
        worker: str,
        served: Served,
        lives: Lives,
        clock: Clock,
        *,
        places: int,
        seconds: float,
        poll_interval: float,
        sends: bool,
    ) -> None:
        self._store = store
        self._worker = worker
        self._served = served
        self._lives = lives
        self._clock = clock
        self._places = places
        self._seconds = seconds
        self._interval = poll_interval
        self._sends = sends
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """There may be questions."""
        self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                self._wake.clear()
                with suppress(StoreUnavailable):  # whoever claims logs it
                    await self.take()
                await woken_within(self._wake, self._interval)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def take(self) -> None:
        """Take questions and begin to answer them."""
        room = self._places - len(self._tasks)
        if room <= 0:
            return
        for query in await self._store.questions(self._worker, self._served.pairs, room):
            task = asyncio.get_running_loop().create_task(
                answer(self._store, query, self._ask, self._seconds), name=f"query {query.name}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._answered)

    async def until_answered(self) -> None:
        """Wait for those that were taken."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _answered(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("a query wasn't answered", exc_info=task.exception())

    async def _ask(self, query: Query) -> bytes:
        held = self._lives.held.get(query.run_id)
        if held is not None and held.execution is not None:
            with suppress(LetGo):  # then its journal tells
                return await held.execution.query(query.name, query.payload)
        history = await self._store.history(query.run_id)
        definition = self._served.find(history.name, history.version)
        if definition is None:
            text = f"workflow {history.name!r}, version {history.version!r}, isn't served here any more"
            return encode_refusal(Failure("", text))
        async with replayed(
            definition,
            history.run_id,
            Params.of(definition).decode(history.params),
            history.rows,
            clock=self._clock,
            tenant=(history.owner, loads(history.metadata)),
            attempt=history.attempt,
            sends=self._sends,
        ) as run:
            return await run.query(query.name, query.payload)
