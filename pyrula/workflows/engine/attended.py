"""What a host does with a run beside running it: messages in, questions answered, parking, and its next round."""

import asyncio
from copy import copy
from math import inf
from typing import Self

from pyrula.workflows.codec import dumps
from pyrula.workflows.engine.crew import Crew
from pyrula.workflows.engine.desk import Desk
from pyrula.workflows.engine.parts import DeskLike
from pyrula.workflows.engine.retry import end_of_kept, kept_notes, rows_to_drop
from pyrula.workflows.engine.run import Run
from pyrula.workflows.errors import NonDeterminismError, PyrulaError
from pyrula.workflows.replay.journal import Entry, Journal
from pyrula.workflows.store.messages import Unread, Wait
from pyrula.workflows.store.payloads import encode_refusal, failure_of

__all__ = ["Attended", "LetGo"]


class LetGo(PyrulaError):
    """The run was cut or parked before a question was answered."""


class Attended(Run):
    """What a host does with a run beside running it."""

    __slots__ = ()

    async def admit(self) -> None:
        await super().admit()
        if self.crew is None and self.desk is not None and self.desk.urgent:
            Crew.of(self)

    def deliver(self, unread: Unread) -> None:
        """Hands in a message, in the order of the numbers; one that was handed in before is ignored.

        It is delivered when the run is settled, and the host told then (`consume`).
        """
        if self.desk is None:
            self.desk = Desk()
        if self.desk.receive(unread) and self.stopped is None:
            self.look()

    def look(self) -> None:
        """A message or a question came: whether it can be attended to."""
        desk = self.desk
        if desk is None or self.stopped is not None:
            return
        if self.crew is None and (desk.urgent or desk.questions):
            self.straight = False
            if self.drive is not None:
                Crew.of(self)
        if self.crew is not None:
            self.crew.look()

    @property
    def seen(self) -> int:
        """The highest number of a message that was handed in."""
        return 0 if self.desk is None else self.desk.seen

    @property
    def cancel_requested(self) -> bool:
        """Whether a cancel was handed in."""
        return self.desk is not None and self.desk.cancel_requested

    async def query(self, name: str, payload: bytes) -> bytes:
        """The answer of the body's handler, once the run has come to rest, or to its end. Nothing is journaled.

        Raises LetGo when the run isn't held here any more.
        """
        desk = await self.come_to_rest()
        if self.stopped in ("cut", "parked"):
            raise LetGo(f"run {self.run_id} was let go before it could be asked; ask again whoever holds it now")
        if isinstance(self.error, NonDeterminismError):
            return encode_refusal(failure_of(self.error))
        return desk.answer(name, payload)

    async def come_to_rest(self) -> DeskLike:
        """Waits until the run has come to rest, or to its end."""
        if self.desk is None:
            self.desk = Desk()
        while not self._at_rest():
            question: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.desk.questions.append(question)
            self.look()
            await question
        return self.desk

    def _at_rest(self) -> bool:
        desk, crew = self.desk, self.crew
        if self.stopped is not None or (desk is not None and desk.held):
            return True
        if crew is not None:
            return crew.quiet and (crew.live or (desk is not None and desk.read_only))
        return self.drive is not None and not (self.machine is not None and self.machine.left)

    @property
    def waits(self) -> tuple[Wait, ...]:
        """What the run waits for, in order of request, if nothing else could bring it on."""
        crew = self.crew
        return (None if crew is None or self.stopped is not None else crew.idle_waits(-inf)) or ()

    def hold(self) -> tuple[Wait, ...] | None:
        """For parking: the run's waits if it is still idle. From then on nothing is delivered to it."""
        host, desk, crew = self.talking, self.desk, self.crew
        if host is None or desk is None or crew is None or self.stopped is not None or desk.pausing is not None:
            return None
        waits = crew.idle_waits(host.park_after)
        desk.held = waits is not None
        return waits

    def go_on(self) -> None:
        """It wasn't parked after all."""
        if self.desk is not None:
            self.desk.held = False
            self.look()

    def parked(self) -> None:
        """It was: the body is torn down, and `run()` returns "parked"."""
        self.stop("parked")

    def retry(self) -> Self:
        """After "failed": the next round, an object of the same class with what its subclass added.

        If the failure came from a step, the journal is cut back to before that step's error, else it is kept whole.
        """
        again = copy(self)
        again.reset()
        journal = self.journal
        if journal is not None and self.error is not None:
            dropped = rows_to_drop(journal, self.error)
            for index in sorted(dropped, reverse=True):  # a part of the deletions leaves a journal that replays
                self.host.append(again, index, None)
            kept = kept_notes(journal.entries(), dropped, [])
            again.journal = journal = journal.without(dropped)
            for note in kept:
                again.write(note)
        again.attempt = self.attempt + 1
        again.journal = Journal() if journal is None else journal
        again.write(Entry("attempt", "", "", "", None, None, dumps(again.attempt)))
        again.journal = again.journal.without(set())
        return again

    def again(self) -> Self:
        """The same round once more, an object of the same class: what was journaled is replayed. Of a run that was cut
        though nothing was wrong with it."""
        again = copy(self)
        again.reset()
        if self.journal is not None:
            again.journal = self.journal.without(set())
        return again

    def note_failure(self, error: BaseException) -> None:
        """Where a retry would go on, for whoever has the run then: it won't have the error."""
        if self.talking is not None:
            if self.journal is None:
                self.begin()
            assert self.journal is not None
            end = end_of_kept(self.journal.entries(), error)
            self.write(Entry("failed", "", "", "", None, None, dumps(end)))
