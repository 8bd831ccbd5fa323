"""The messages to the run of one record: those that its body hasn't been given, those it has and didn't consume.

Pure. Rules: each is given once to a body, in the order of their numbers; a body that begins anew is given all that
weren't consumed. A pause is consumed by nobody: it stands until it is taken back, whoever has the run.
"""

from collections.abc import Iterable, Iterator, Sequence

from pyrula.workflows.store.messages import Unread, Wait, wakes
from pyrula.workflows.store.records import RecordState

__all__ = ["RunInbox"]


class RunInbox:
    """`given` is the last number that the body has; `open` are the interrupts that wait for an answer."""

    def __init__(self) -> None:
        self.given = 0
        self.open: set[str] = set()
        self._unread: dict[int, Unread] = {}
        self._restarts = 0

    @property
    def latest(self) -> int:
        """The highest number that is known here."""
        return max(self.given, max(self._unread, default=0))

    def put(self, messages: Iterable[Unread]) -> None:
        """Messages of the run, perhaps for the second time."""
        for unread in messages:
            self._unread.setdefault(unread.number, unread)

    def take_in(self, state: RecordState) -> bool:
        """What the store has of the run. Whether somebody has asked since for one that is held to go on."""
        self.put(unread for unread in state.messages if unread.number > self.given)
        self.open.update(interrupt.wait_id for interrupt in state.interrupts)
        if state.restarts <= self._restarts:
            return False
        self._restarts = state.restarts
        self.forget_pauses()
        return True

    def new(self) -> Iterator[Unread]:
        """What the body hasn't been given, and is given now."""
        for number in sorted(number for number in self._unread if number > self.given):
            self.given = number
            yield self._unread[number]

    def all(self) -> Iterator[Unread]:
        """What a body is given that begins."""
        for number in sorted(self._unread):
            self.given = max(self.given, number)
            yield self._unread[number]

    def consume(self, number: int) -> bool:
        """The body has read it. Whether that is to be written."""
        unread = self._unread.get(number)
        if unread is not None and unread.message.kind == "pause":
            return False
        self._unread.pop(number, None)
        return number > 0

    def answers(self, wait_id: str) -> bool:
        """Whether an answer to this interrupt is there."""
        unread = (unread.message for unread in self._unread.values())
        return any(message.kind == "resume" and message.name == wait_id for message in unread)

    def wakes(self, waits: Sequence[Wait]) -> bool:
        """Whether something is there for one that waits for these."""
        return any(wakes(waits, unread.message.kind, unread.message.name) for unread in self._unread.values())

    def cancels(self) -> list[int]:
        """Numbers of those that ask for its end."""
        return [number for number, unread in self._unread.items() if unread.message.kind == "cancel"]

    def forget_pauses(self) -> list[int]:
        """They were taken back. Their numbers."""
        numbers = [number for number, unread in self._unread.items() if unread.message.kind == "pause"]
        for number in numbers:
            del self._unread[number]
        return numbers
