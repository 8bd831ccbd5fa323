"""What happened to a run, oldest first: enough to draw a timeline. Types and fields are public (docs/formats-runs.md).

Who makes an event stand, writes it: the store for what it decides alone (`submitted`, `continued`, and the end of a
run that never started), the holder for all else, in the same script as the change itself. The holder's come a little
later than they happened, together; so a request may be written before what had happened when it came. All times are by
the store's clock.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from pyrula.workflows.codec import dumps, loads

__all__ = ["EVENT_TYPES", "Event", "InOrder", "decode_event", "encode_event", "in_order"]

EVENT_TYPES: Final[dict[str, str]] = {
    "submitted": "name, version, owner: the run was queued",
    "started": "worker, attempt: a worker has it and begins, or goes on after it waited or its worker ended",
    "step_started": "op, step, attempt",
    "step_completed": "op, step, attempt, seconds",
    "step_failed": "op, step, attempt, seconds, error, retry_in (seconds, none after the last attempt)",
    "waiting": "waits (kind, name, deadline): parked",
    "signal_received": "signal, id",
    "update_applied": "update, id",
    "update_failed": "update, id, error",
    "update_rejected": "update, id, error",
    "interrupt_raised": "wait_id, payload",
    "interrupt_resumed": "wait_id, action",
    "child_started": "op, run_id, name",
    "child_finished": "op, run_id, status",
    "emitted": "item: what the body gave ctx.emit",
    "cancel_requested": "",
    "paused": "reason",
    "unpaused": "",
    "retried": "attempt: the verb `retry`, or a further round of the run",
    "continued": "run_id of the link before; the first event of the next link",
    "completed": "",
    "failed": "error",
    "cancelled": "",
    "continued_as_new": "run_id of the next link",
}


class Event(NamedTuple):
    """One thing that happened, `at` in seconds since 1970."""

    type: str
    at: float
    data: dict[str, Any]


def encode_event(type: str, at: float, **data: Any) -> bytes:  # noqa: A002 - the public name
    return dumps([type, round(at, 6), data])


def decode_event(row: bytes) -> Event:
    kind, at, data = loads(row)
    return Event(kind, at, data)


class InOrder:
    """Puts the events of a link, given as they were written, in the order in which they happened: a request behind what
    came before it."""

    def __init__(self) -> None:
        self._requests: list[Event] = []

    def take(self, events: Iterable[Event]) -> list[Event]:
        """What can be told now, of these and those before."""
        ordered: list[Event] = []
        for event in events:
            if event.type == "cancel_requested":
                self._requests.append(event)
                continue
            while self._requests and (event.at >= self._requests[0].at or event.type in _ANSWERS):
                ordered.append(self._requests.pop(0))
            ordered.append(event)
        return ordered

    def rest(self) -> list[Event]:
        """What is left when there are no more."""
        rest, self._requests = self._requests, []
        return rest


def in_order(rows: Iterable[bytes]) -> list[Event]:
    """All events of a link as they happened."""
    order = InOrder()
    return order.take(map(decode_event, rows)) + order.rest()


_ANSWERS: Final = frozenset(("cancelled", "completed", "failed", "continued_as_new", "paused"))
