"""The parts of a run that come and go, as far as the run itself has to know them."""

import asyncio
from typing import Any, Protocol

__all__ = ["CrewLike", "DriveLike", "TeardownLike"]


class DriveLike(Protocol):
    """What drives a suspended body in its caller's task."""

    task: "asyncio.Task[Any]"
    trusted: bool
    own: int

    def cut(self) -> None:
        """The run was stopped: get rid of the body."""

    def mark(self) -> None:
        """The run has a crew from now on."""


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

    @property
    def teardown(self) -> TeardownLike:
        """What ends its tasks."""

    def count(self) -> object:
        """Counts an operation that nothing is delivered for."""

    async def ask(self, operation: Any) -> Any:
        """Asks for an operation and waits for its delivery."""

    async def hand_in(self, kind: str, name: str, op: str, answer: tuple[str, bytes, Any]) -> Any:
        """Delivers what was executed on the straight path."""

    def on_alarm(self, alarm: asyncio.TimerHandle) -> None:
        """A timer was armed that would cancel the present task."""
