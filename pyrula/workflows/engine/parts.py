"""The parts of a run that come and go, as far as the run itself has to know them."""

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any, Protocol

from pyrula.workflows.replay.journal import Journal
from pyrula.workflows.store.messages import Unread, Wait

__all__ = ["CrewLike", "DeskLike", "DriveLike", "TeardownLike"]


class DriveLike(Protocol):
    """What drives a suspended body in its caller's task."""

    task: "asyncio.Task[Any]"
    trusted: bool
    own: int
    yielded: Any
    variables: Any

    def throw(self, error: BaseException) -> Any:
        """Raises the error in the body; what it waits for next, or ENDED."""

    def count_own(self) -> None:
        """The body went on while the task stood for it."""

    def carry(self, early: BaseException | None = None) -> Awaitable[Any]:
        """Awaits the body to its end."""

    def was_cancelled(self, error: BaseException | None) -> bool:
        """Whether the body ended because its caller was cancelled by somebody else."""

    async def absorb(self) -> None:
        """After the end: the body's cancellations of its own task aren't its caller's."""

    def cut(self) -> None:
        """The run was stopped: get rid of the body."""

    def mark(self) -> None:
        """The run has a crew from now on."""

    @property
    def known(self) -> int:
        """How many cancellations of the task were there before, or are the body's own."""

    def give_way(self, cancelling: int) -> None:
        """The task was cancelled so many times when it was woken, and what was executed doesn't claim it."""

    def abort(self) -> None:
        """Cancels the body, as if its task was cancelled."""


class DeskLike(Protocol):
    """What a run is told and asked."""

    orders: "deque[Unread]"
    letters: "dict[tuple[str, str], deque[Unread]]"
    seen: int
    cancel_requested: bool
    updates: "dict[str, Any]"
    queries: "dict[str, Any]"
    questions: "list[asyncio.Future[None]]"
    pausing: bytes | None
    held: bool
    read_only: bool

    @property
    def urgent(self) -> bool:
        """Whether the run needs the full machinery to be told something."""

    def receive(self, unread: Unread) -> bool:
        """Sorts a message in."""

    def restore(self, journal: Journal) -> None:
        """Messages whose delivery a retry took back are there again."""

    def take(self, key: tuple[str, str]) -> Unread:
        """The first message of that kind and name."""

    def answer(self, name: str, payload: bytes) -> bytes:
        """A query's answer."""

    def settle_questions(self) -> None:
        """Queries may be answered now."""

    def reset(self) -> None:
        """The body begins anew."""


class TeardownLike(Protocol):
    """What ends a crew's tasks."""

    gone: bool

    def begin(self) -> None:
        """The run was stopped."""

    async def wait(self) -> None:
        """Until the tasks are gone."""


class CrewLike(Protocol):
    """The full machinery of a run, as far as the straight path has to know it."""

    executing: "set[asyncio.Task[Any]]"
    live: bool
    quiet: bool
    own: bool

    @property
    def cancelled(self) -> bool:
        """Whether a cancel of the run was delivered."""

    def look(self) -> None:
        """There may be something to be delivered, or to be answered."""

    def idle_waits(self, park_after: float) -> tuple[Wait, ...] | None:
        """What the run waits for, if nothing else could bring it on."""

    @property
    def handling(self) -> int:
        """How many updates were taken and have not ended."""

    async def handlers_ended(self) -> None:
        """Until the updates that were taken have ended."""

    async def take_over(self, operation: Any, op: str) -> Any:
        """An operation that was counted on the straight path and not executed to its end there."""

    @property
    def teardown(self) -> TeardownLike:
        """What ends its tasks."""

    def on_stop(self) -> None:
        """The run was stopped."""

    def on_rest(self) -> None:
        """A step waits for its next attempt."""

    def count(self) -> object:
        """Counts an operation that nothing is delivered for."""

    async def ask(self, operation: Any) -> Any:
        """Asks for an operation and waits for its delivery."""

    async def hand_in(self, kind: str, name: str, op: str, answer: tuple[str, bytes, Any]) -> Any:
        """Delivers what was executed on the straight path."""

    def on_alarm(self, alarm: asyncio.TimerHandle) -> None:
        """A timer was armed that would cancel the present task."""
