"""What a run is told and asked: its unread messages in order, and the handlers that its body has registered.

It is made when there is something to keep, since most runs are never talked to. Messages are sorted here and applied by
`mail`, when the run is settled.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Final, cast

from pyrula.workflows.engine.run import RUN
from pyrula.workflows.engine.update import UpdateHandler
from pyrula.workflows.replay.journal import Entry, Journal
from pyrula.workflows.store.messages import Kind, Message, Unread
from pyrula.workflows.store.payloads import Failure, encode_answer, encode_refusal, failure_of, read_query

__all__ = ["Desk", "message_note"]

_ORDERS: Final = frozenset(("update", "cancel", "pause"))

# What an operation's entry is called, where that isn't the kind of the message which answers it.
_ANSWERED_BY: Final = {"interrupt": "resume"}


class Desk:
    """The messages and handlers of one run.

    `orders` are updates, cancels and pauses, which the body doesn't ask for; `letters` are the others, by kind and
    name, for the operations that wait for them. `questions` are queries that wait for the run to settle. `pausing` is
    the payload of the message that asks for a pause, `held` is set while the run may be parked at any moment.
    """

    __slots__ = (
        "_restored",
        "cancel_requested",
        "held",
        "letters",
        "orders",
        "pausing",
        "queries",
        "questions",
        "read_only",
        "seen",
        "updates",
    )

    def __init__(self) -> None:
        self.orders: deque[Unread] = deque()
        self.letters: dict[tuple[str, str], deque[Unread]] = {}
        self.seen = 0
        self.cancel_requested = False
        self.updates: dict[str, UpdateHandler] = {}
        self.queries: dict[str, Callable[..., Any]] = {}
        self.questions: list[asyncio.Future[None]] = []
        self.pausing: bytes | None = None
        self.held = False
        self.read_only = False
        self._restored = False

    @property
    def urgent(self) -> bool:
        """Whether the run needs the full machinery to be told something."""
        return bool(self.orders or self.updates or self.read_only)

    def receive(self, unread: Unread) -> bool:
        """Sorts a message in. False for one that was received before."""
        if unread.number <= self.seen:
            return False
        self.seen = unread.number
        self._sort_in(unread)
        return True

    def _sort_in(self, unread: Unread) -> None:
        message = unread.message
        if message.kind in _ORDERS:
            self.orders.append(unread)
            self.cancel_requested = self.cancel_requested or message.kind == "cancel"
        else:
            self.letters.setdefault((message.kind, message.name), deque()).append(unread)

    def restore(self, journal: Journal) -> None:
        """Messages whose delivery a retry took back are there again, before all others.

        Their numbers are below 1: the store has counted them as read.
        """
        notes = [note for (kind, _), note in journal.notes.items() if kind == "message"]
        if self._restored or not notes:
            return
        self._restored = True
        delivered = {
            (_ANSWERED_BY.get(entry.opkind, entry.opkind), entry.message)
            for entry in journal.recorded
            if entry.message is not None
        }
        orders, letters = self.orders, self.letters
        self.orders, self.letters = deque(), {}
        for index, note in enumerate(notes):
            message = Message(cast(Kind, note.opkind), note.message or "", note.name, note.value or b"null")
            if (message.kind, message.id) not in delivered:
                self._sort_in(Unread(index - len(notes), message, 0.0))
        self.orders.extend(orders)
        for key, later in letters.items():
            self.letters.setdefault(key, deque()).extend(later)

    def reset(self) -> None:
        """The body begins anew: its handlers aren't there yet, and what was restored is in the journal again."""
        self.updates, self.queries, self.pausing, self.held = {}, {}, None, False
        self._restored = False
        self.orders = deque(unread for unread in self.orders if unread.number > 0)
        for key, letters in list(self.letters.items()):
            self.letters[key] = kept = deque(unread for unread in letters if unread.number > 0)
            if not kept:
                del self.letters[key]

    def take(self, key: tuple[str, str]) -> Unread:
        """The first letter of that kind and name."""
        letters = self.letters[key]
        unread = letters.popleft()
        if not letters:
            del self.letters[key]
        return unread

    def answer(self, name: str, payload: bytes) -> bytes:
        """A query's answer by the body's handler as things stand now; a refusal is an answer too."""
        handler = self.queries.get(name)
        if handler is None:
            known = ", ".join(sorted(self.queries)) or "none"
            return encode_refusal(Failure("", f"the run knows no query {name!r} (it has: {known})"))
        variables = copy_context()
        variables.run(RUN.set, None)  # what it might start or ask for, it doesn't as the run
        try:
            args, kwargs = read_query(payload)
            value = variables.run(handler, *args, **kwargs)
            if asyncio.iscoroutine(value):
                value.close()
                raise TypeError(f"the handler of query {name!r} is async; a query can't wait for anything")
            return encode_answer(value, f"query {name!r}")
        except Exception as error:  # noqa: BLE001 - all of it is for the one who asked
            return encode_refusal(failure_of(error))

    def settle_questions(self) -> None:
        """Queries may be answered now."""
        questions, self.questions = self.questions, []
        for question in questions:
            if not question.done():
                question.set_result(None)


def message_note(entry: Entry) -> Entry | None:
    """The note that keeps the message of a delivery which is taken back. None if it had none."""
    if entry.message is None or entry.kind == "cancel":
        return None
    kind = _ANSWERED_BY.get(entry.opkind, entry.opkind)
    return Entry("message", f"{kind}:{entry.message}", kind, entry.name, None, entry.message, entry.value)
