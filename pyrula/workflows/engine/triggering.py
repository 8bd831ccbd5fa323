"""`ctx.trigger`: an event for another workflow's trigger, fed once whatever becomes of this run.

The event's id is made here and durable as a note before the event leaves, so that whoever executes the operation again
sends the same event. A run that is tried again behind it has the answer kept (retry.py).
"""

import asyncio
import secrets
from contextvars import Context
from dataclasses import replace
from typing import Any, NamedTuple

from pyrula.workflows.batching import TriggerEvent
from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.engine.host import FeedingHost
from pyrula.workflows.engine.operations import CrewOperation, Deliverer
from pyrula.workflows.engine.remains import Torn
from pyrula.workflows.engine.run import Run
from pyrula.workflows.errors import PyrulaError
from pyrula.workflows.replay.journal import Entry

__all__ = ["Feeding", "TriggerOperation", "feed", "read_run_id", "written"]


class Feeding(NamedTuple):
    """What is to be fed, to whom."""

    definition: WorkflowDefinition[..., Any]
    event: TriggerEvent


async def feed(run: Run, op: str, feeding: Feeding) -> tuple[str | None, TriggerEvent | None]:
    """The id of the run that the event started, None if it started none; and the event if it was fed under an id of
    this run's."""
    journal, host = run.journal, run.feeding
    assert journal is not None
    definition, event = feeding
    if host is None:
        raise PyrulaError(f"run {run.run_id}: this run can't feed triggers; do it by a client, in a step")
    kept = journal.note("answer", op)
    if kept is not None and kept.name == definition.name:
        return loads(kept.value or b"[]")[1], None
    own = not event.id
    if own:
        note = journal.note("trigger", op)
        if note is None:
            note = Entry("trigger", op, "trigger", definition.name, None, None, dumps(secrets.token_hex(16)))
            run.write(note)
        event = replace(event, id=loads(note.value or b'""'), lasting=True)
    waiter = run.host.durable(run)
    if waiter is not None:
        await run.acknowledged(waiter)
    # in a task and a context of its own: what the host starts to send it is not the run's
    sending = asyncio.Task(_send(host, run, definition, event), context=Context(), name=f"trigger {definition.name}")
    return await sending or None, event if own else None


async def _send(host: FeedingHost, run: Run, definition: WorkflowDefinition[..., Any], event: TriggerEvent) -> str:
    return await host.trigger(run, definition, event)


def written(run: Run, fed: TriggerEvent | None) -> None:
    """The answer to that event has been queued as a row."""
    if fed is not None and run.feeding is not None:
        run.feeding.triggered(run, fed)


def read_run_id(entry: Entry) -> str | None:
    """The run that an entry says was started."""
    run_id: str | None = loads(entry.value or b"null")
    return run_id


class TriggerOperation(CrewOperation):
    """Feeds an event, by a task of the engine's."""

    __slots__ = ("_fed", "_feeding", "_run", "_task")

    def __init__(self, feeding: Feeding) -> None:
        super().__init__("trigger", feeding.definition.name)
        self._feeding = feeding
        self._run: Run | None = None
        self._fed: TriggerEvent | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, crew: Deliverer) -> None:
        self._run = crew.run
        self._task = asyncio.Task(self._feed(crew), loop=crew.loop, context=Context(), name=f"trigger {self.name}")
        crew.on_executing(self._task)

    async def _feed(self, crew: Deliverer) -> None:
        try:
            run_id, self._fed = await feed(crew.run, self.id, self._feeding)
        except Torn:
            return
        except Exception as error:  # noqa: BLE001 - it can't be told to the body without being journaled
            crew.on_broken(error)
        else:
            crew.on_completed(self, "value", dumps(run_id), run_id)

    def deliver(self, kind: str, answer: Any) -> None:
        super().deliver(kind, answer)
        if self._run is not None:
            written(self._run, self._fed)

    def give_up(self) -> None:
        """It is on its way."""

    @property
    def under_way(self) -> bool:
        return self._task is not None
