"""Until when the group surely still has this member: what may start, and what may be sent, without asking anybody.

A process that was suspended, whose loop was blocked, or whose broker went silent can't know whether its partitions run
elsewhere by now. The store and the broker refuse what it then writes, but a step that starts is an effect at once. So
nothing starts later than the session lasts after the last heartbeat that was answered; it waits for the next answer, or
for the end of the assignment. Knows no client and reads no clock.
"""

import asyncio
from collections.abc import Callable
from functools import partial


class Standing:
    """The standing of one member. `until` is compared with the monotonic clock by whoever starts something."""

    __slots__ = ("_seconds", "_waiting", "until")

    def __init__(self, seconds: float = float("inf")) -> None:
        self.until = float("inf")
        self._seconds = seconds
        self._waiting: list[Callable[[], None]] = []

    def proved(self, sent: float) -> None:
        """The group answered, as to a member, what was sent to it then."""
        self.until = sent + self._seconds
        self.wake()

    def wake(self) -> None:
        """Let those who wait look again: for a new answer, or since their assignment ends."""
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls back once, at the next `wake`."""
        self._waiting.append(callback)

    async def changed(self) -> None:
        """Until the next `wake`."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_change(partial(_resolve, woken))
        await woken


def _resolve(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)
