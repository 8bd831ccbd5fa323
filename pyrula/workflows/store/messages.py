"""What is sent to a run and what its holder writes about it: plain data that both stores and their callers speak.

Times are seconds since 1970 by the store's clock. Payloads, params, values and errors are JSON bytes that the store
never looks into.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from pyrula.workflows.codec import Fragment, dumps
from pyrula.workflows.store.lifecycle import RunStatus

__all__ = [
    "MAX_UNREAD",
    "WAIT_STATUS",
    "Applied",
    "Change",
    "Child",
    "Delivered",
    "End",
    "Interrupt",
    "Kind",
    "Lease",
    "Message",
    "Parent",
    "Reply",
    "Unread",
    "Wait",
    "WaitKind",
    "child_result",
    "earliest",
    "wakes",
]

MAX_UNREAD: Final = 1000
"""Unread messages of one run; cancels and children's results come in beyond it. 1 MiB each (model.MAX_VALUE)."""

Kind = Literal["signal", "update", "resume", "cancel", "child", "pause"]
WaitKind = Literal["sleep", "signal", "interrupt", "child", "retry"]

_WAKING: Final = frozenset({"update", "resume", "cancel", "pause"})

WAIT_STATUS: Final[Mapping[str, RunStatus]] = {
    "sleep": RunStatus.SLEEPING,
    "signal": RunStatus.SIGNAL_WAITING,
    "interrupt": RunStatus.INTERRUPT_WAITING,
    "child": RunStatus.CHILD_WAITING,
    "retry": RunStatus.RETRYING,
}


class Lease(NamedTuple):
    """The right to write for a run: this worker's, in this epoch. Every claim, reap and release raises the epoch."""

    run_id: str
    worker: str
    epoch: int


class Message(NamedTuple):
    """Something to be delivered to a run.

    `id` deduplicates over the run's chain, for signals and updates until retention after they were applied. `name` is
    the signal's, the update's, the interrupt's wait id, or what the parent calls its wait for the child.
    """

    kind: Kind
    id: str
    name: str = ""
    payload: bytes = b"null"


class Unread(NamedTuple):
    """A message in an inbox. Numbers grow over the chain; messages are in the order of their numbers."""

    number: int
    message: Message
    at: float


class Delivered(NamedTuple):
    """`duplicate`: a message of this id was there before. `applied`: an update that has its answer already.

    `status` is the run's after the delivery: for a cancel, what it led to.
    """

    run_id: str
    status: RunStatus
    duplicate: bool = False
    applied: "Applied | None" = None


class Applied(NamedTuple):
    """An update's end: `outcome` "ok" with the handler's value, "error" or "rejected" with the error.

    A rejected one may be sent again under its id.
    """

    update_id: str
    outcome: Literal["ok", "error", "rejected"]
    value: bytes


class Wait(NamedTuple):
    """Something durable a run waits for: a signal's name, an interrupt's wait id, a child's wait. A sleep, a retry and
    a time-out have a deadline."""

    kind: WaitKind
    name: str = ""
    deadline: float | None = None


class Interrupt(NamedTuple):
    """An open interrupt, which one `resume` may answer."""

    wait_id: str
    payload: bytes


class Child(NamedTuple):
    """A child that its parent is answerable for. A child's result that was consumed ends that."""

    run_id: str
    on_parent_close: Literal["cancel", "abandon"] = "cancel"


class Parent(NamedTuple):
    """Where a run's result goes: as a "child" message named `wait` to this run."""

    run_id: str
    wait: str


def wakes(waits: Sequence[Wait], kind: str, name: str) -> bool:
    """Whether a run that waits for these goes on when it gets such a message."""
    return kind in _WAKING or any(wait.kind == kind and wait.name == name for wait in waits)


def earliest(waits: Sequence[Wait]) -> float | None:
    return min((wait.deadline for wait in waits if wait.deadline is not None), default=None)


def child_result(run_id: str, status: str, value: bytes, error: bytes | None) -> bytes:
    """The payload of a "child" message."""
    fragment = None if error is None else Fragment(error)
    return dumps({"run_id": run_id, "status": status, "value": Fragment(value), "error": fragment})


@dataclass(frozen=True, slots=True)
class Change:
    """What a holder writes about its run, all or nothing, with an append, a park or a finish.

    `number` counts the changes of one lease from 1: a change that was written is not written again. `seen` is the
    highest message number the holder has. `rows` are (index, data); b"" deletes. `consumed` are numbers of messages.
    """

    number: int
    seen: int = 0
    rows: Sequence[tuple[int, bytes]] = ()
    consumed: Sequence[int] = ()
    applied: Sequence[Applied] = ()
    opened: Sequence[Interrupt] = ()
    closed: Sequence[str] = ()
    children: Sequence[Child] = ()
    events: Sequence[bytes] = ()
    attempt: int | None = None
    alone: bool = False


class Reply(NamedTuple):
    """The store's answer to an append or a park: messages numbered above `seen`. `parked`: the run isn't held any more,
    and the messages are none."""

    messages: tuple[Unread, ...] = ()
    parked: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """How a run, or this link of its chain, ends.

    For "continued_as_new" `params` and `version` are the next link's. The end is kept for `seconds`; None: for the
    store's retention.
    """

    status: Literal["completed", "failed", "cancelled", "continued_as_new"]
    value: bytes = b"null"
    error: bytes | None = None
    params: bytes | None = None
    version: str | None = None
    events: Sequence[bytes] = field(default=())
    seconds: int | None = None
