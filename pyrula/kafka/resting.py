"""The run of one record that stands still: shown as waiting, its slot free, until something wakes it.

Rules: a run that rests takes a slot again before anything goes on in it. While it is being handed over nothing wakes
it; what would have is made up for if it stays.
"""

import asyncio
from contextvars import Context

from pyrula.kafka.attending import Slots
from pyrula.kafka.departing import Departing
from pyrula.kafka.partition import Partition, RecordRun
from pyrula.kafka.run_changes import Changes
from pyrula.workflows.clock import Clock
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import WAIT_STATUS, earliest, wakes

__all__ = ["Rest"]


class Rest:
    """One run's rests, one after the other."""

    def __init__(
        self, partition: Partition, changes: Changes, slots: Slots, departing: Departing, clock: Clock
    ) -> None:
        self.on = False
        self._partition = partition
        self._changes = changes
        self._slots = slots
        self._departing = departing
        self._clock = clock
        self._returning = False
        self._called = False
        self._timer: asyncio.TimerHandle | None = None

    def _undisturbed(self) -> bool:
        return self.on and not (self._returning or self._called or self._partition.closed)

    def begin(self, run: RecordRun) -> None:
        """If the run does stand still. Where it may be handed over, that is begun."""
        if self.on or self._partition.closed or run.stopped is not None:
            return
        waits = run.hold()
        if waits is None:
            return
        self.on = True
        changes, status = self._changes, WAIT_STATUS[waits[0].kind]
        if (status, waits) != (changes.status, changes.waits):
            changes.show(status, waits)
            changes.event("waiting", waits=[wait._asdict() for wait in waits])
            changes.touch()
        due = earliest(waits)
        if due is not None:
            loop = asyncio.get_running_loop()
            left = max(0.0, due - self._clock.now().timestamp())
            self._timer = loop.call_later(left, self.wake, context=Context())
        self._slots.rest(self._partition)
        if self._departing.possible:
            self._departing.at_rest(run, waits, self._undisturbed)

    def hear(self, kind: str, name: str) -> None:
        """A message was delivered to the run: it wakes one that waits for it."""
        if self.on and wakes(self._changes.waits, kind, name):
            self.wake()

    def wake(self) -> None:
        """It may go on, once it has a slot."""
        if self._departing.under_way:
            self._called = True
        elif self.on and not self._returning:
            self._returning = True
            self._slots.come_back(self._partition, self._back)

    def stays(self) -> None:
        """It wasn't handed over: if it was to wake meanwhile, it does."""
        if self._called:
            self._called = False
            self.wake()

    def _back(self) -> bool:
        self._returning = False
        if not self.on:
            return False
        self._end()
        assert self._changes.run is not None
        self._changes.run.go_on()
        return True

    def break_off(self) -> None:
        """Its body has ended. If it stood still it takes its slot again, so that it can be given back."""
        if self.on:
            self._end()
            self._slots.enter(self._partition, rested=True)

    def _end(self) -> None:
        self.on = False
        self._changes.show(RunStatus.RUNNING)
        self.let_go()
        self._timer = None

    def let_go(self) -> None:
        """The partition was let go."""
        if self._timer is not None:
            self._timer.cancel()
