"""What scripts of submitted runs are told and what they tell, as bytes. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from pyrula.workflows.stamps import Stamp
from pyrula.workflows.store.ids import digest
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import WAIT_STATUS, Applied, Change, Child, Interrupt, Message, Unread, Wait
from pyrula.workflows.store.valkey.run_keys import gate_of

_LETTERS = {"ok": b"o", "error": b"e", "rejected": b"r"}
_OUTCOMES = {letter[0]: outcome for outcome, letter in _LETTERS.items()}
STATUS_LETTERS = {
    RunStatus.QUEUED: b"q",
    RunStatus.RUNNING: b"r",
    RunStatus.SLEEPING: b"s",
    RunStatus.SIGNAL_WAITING: b"g",
    RunStatus.INTERRUPT_WAITING: b"i",
    RunStatus.CHILD_WAITING: b"c",
    RunStatus.RETRYING: b"t",
    RunStatus.PAUSED: b"p",
    RunStatus.COMPLETED: b"d",
    RunStatus.FAILED: b"f",
    RunStatus.CANCELLED: b"x",
}
"""As the index has them (listing.lua). A chain as a whole never ends as continued_as_new."""
LISTED = {letter: status for status, letter in STATUS_LETTERS.items()}
# numbers beyond this aren't exact in a script
_LAST_MICROSECOND = 9_000_000_000_000_000


def change_arguments(change: Change | None) -> list[bytes]:
    """A change as change.lua reads it."""
    if change is None:
        return [b""]
    arguments = [
        b"%d" % change.number,
        b"%d" % change.seen,
        b"" if change.attempt is None else b"%d" % change.attempt,
        b"1" if change.alone else b"",
    ]
    rows: dict[int, bytes] = {}
    gone: dict[int, bytes] = {}
    for index, data in change.rows:
        # the last word on an index counts
        rows.pop(index, None)
        gone.pop(index, None)
        (rows if data else gone)[index] = data
    _counted(arguments, 2, (part for index, data in rows.items() for part in (b"%d" % index, data)))
    _counted(arguments, 1, (b"%d" % index for index in gone))
    _counted(arguments, 1, (b"%d" % number for number in change.consumed))
    _counted(arguments, 2, (part for applied in change.applied for part in _applied(applied)))
    _counted(arguments, 2, (part for opened in change.opened for part in (opened.wait_id.encode(), opened.payload)))
    _counted(arguments, 1, (wait_id.encode() for wait_id in change.closed))
    children = ((child.run_id.encode(), child.on_parent_close.encode()) for child in change.children)
    _counted(arguments, 2, (part for child in children for part in child))
    _counted(arguments, 1, change.events)
    return arguments


def _counted(arguments: list[bytes], width: int, values: Iterable[bytes]) -> None:
    place = len(arguments)
    arguments.append(b"")
    arguments.extend(values)
    arguments[place] = b"%d" % ((len(arguments) - place - 1) // width)


def _applied(applied: Applied) -> tuple[bytes, bytes]:
    return applied.update_id.encode(), _LETTERS[applied.outcome] + applied.value


def read_applied(update_id: str, stored: bytes | None) -> Applied | None:
    return Applied(update_id, _OUTCOMES[stored[0]], stored[1:]) if stored else None  # type: ignore[arg-type]


def wait_arguments(waits: Sequence[Wait]) -> list[bytes]:
    arguments = [WAIT_STATUS[waits[0].kind].encode(), b"%d" % len(waits)]
    for wait in waits:
        arguments += [wait.kind.encode(), wait.name.encode(), microseconds(wait.deadline)]
    return arguments


def microseconds(seconds: float | None) -> bytes:
    return b"" if seconds is None else b"%d" % min(max(round(seconds * 1e6), 0), _LAST_MICROSECOND)


def seconds_of(text: bytes | int | None) -> float | None:
    return None if text is None or text == b"" else float(text) / 1e6


def gate_arguments(name: str, owner: str, stamp: Stamp | None) -> list[bytes]:
    """A run's gates as submit.lua reads them; the digests of cohorts are for queue.lua."""
    if stamp is None:
        return [b""]
    limit, rate = stamp.limit, stamp.rate
    told = [b"1", b"", b"0", b"", b"0", b"0"]
    limited: list[str] = []
    rated: list[str] = []
    if limit is not None:
        told[1:3] = gate_of("l", name, limit.key), b"%d" % limit.max
        limited = [limit.key, str(limit.max)]
    if rate is not None:
        interval = 1e6 / rate.per_second
        told[3:] = gate_of("r", name, rate.key), repr(interval).encode(), repr((rate.burst - 1) * interval).encode()
        rated = [rate.key, repr(rate.per_second), str(rate.burst)]
    return [
        *told,
        digest("cohort", owner, str(len(limited)), *limited, *rated),
        digest("cohort", owner, str(len(limited)), *limited),
    ]


def read_waits(waits: Sequence[Any]) -> tuple[Wait, ...]:
    return tuple(Wait(kind.decode(), name.decode(), seconds_of(deadline)) for kind, name, deadline in waits)


def message_arguments(message: Message) -> list[bytes]:
    return [message.kind.encode(), message.id.encode(), message.name.encode(), message.payload]


def read_messages(messages: Sequence[Any]) -> tuple[Unread, ...]:
    return tuple(
        Unread(number, Message(kind.decode(), message_id.decode(), name.decode(), payload), at / 1e6)
        for number, kind, message_id, name, payload, at in messages
    )


def read_extras(flat: Sequence[bytes]) -> tuple[tuple[Interrupt, ...], tuple[Child, ...]]:
    """Open interrupts and children."""
    pairs = [(name[:1], name[1:].decode(), value) for name, value in zip(flat[::2], flat[1::2], strict=True)]
    interrupts = tuple(Interrupt(name, value) for kind, name, value in pairs if kind == b"w")
    children = tuple(Child(name, value.decode()) for kind, name, value in pairs if kind == b"c")  # type: ignore[arg-type]
    return interrupts, children


def read_status(text: bytes) -> RunStatus:
    return RunStatus(text.decode())
