"""Drives suspended bodies by hand, and gets rid of one whose run is cut.

A body goes on either in its task, which awaits `carry`, or, if whoever knows that what it waits for has come makes it,
by `Execution.resume`; then the task stands for it all the same (a body may ask which task it is in, and cancel that).

A cut cancels the task and takes that back at once, so that the body sees a CancelledError where it waits. A body that
resists three rounds is moved to a task of its own and left behind: the caller goes on whatever the body does.
"""

import asyncio
from collections.abc import Generator
from contextlib import suppress
from contextvars import Context
from types import coroutine
from typing import Any, Final

from pyrula.workflows.engine.host import UNTIL_DURABLE
from pyrula.workflows.engine.leftovers import abandon
from pyrula.workflows.engine.run import RUN, Run
from pyrula.workflows.engine.settler import settler_of

__all__ = ["Drive", "GivenUp"]

ROUNDS: Final = 3
ROUND_SECONDS: Final = 0.1

ENDED: Final = object()
"""Instead of what a body waits for: it has returned."""


class GivenUp(BaseException):
    """The body was left behind; what it does is no longer waited for."""


class Drive:
    """One suspended body after the other, in one task.

    `yielded` is what the body of `run` waits for; `variables` is its context. `own` counts the cancellations of the
    task that come from the run itself, `outside` says its caller's was seen.
    """

    __slots__ = (
        "_base",
        "_given_up",
        "_loop",
        "_marked",
        "_rounds",
        "_sent",
        "_settler",
        "_thrown",
        "_timer",
        "outside",
        "own",
        "run",
        "task",
        "trusted",
        "variables",
        "yielded",
    )

    run: Any  # a Run, of the kind that its host has
    variables: Any  # a Context, until the body has ended
    trusted: bool

    def __init__(self, task: "asyncio.Task[Any] | None" = None) -> None:
        """Without a task it is the present one."""
        task = task or asyncio.current_task()
        assert task is not None
        self.task = task
        self._loop = task.get_loop()
        self._settler = settler_of(self._loop)
        self.reset()

    def reset(self) -> None:
        """Forget what became of the last body. Needed only if the task was cancelled or has awaited `carry`."""
        self._base = self.own = self._sent = self._rounds = 0
        self._given_up = self.outside = self._marked = False
        self.yielded: Any = None
        self._thrown: BaseException | None = None
        self._timer: asyncio.Handle | None = None

    def take(self, run: Run, variables: Context, yielded: Any) -> None:
        """The body of `run` has suspended, waiting for `yielded`."""
        self.trusted = trusted = self._loop.get_task_factory() is self._settler.factory
        if not trusted:
            run.straight = False
        self.run = run
        self.variables = variables
        self.yielded = yielded
        self._base = self.task.cancelling()

    def throw(self, error: BaseException) -> Any:
        """Raises the error in the body. What it waits for next, ENDED, or its exception raised."""
        try:
            return self.variables.run(self.run.body.throw, error)
        except StopIteration:
            return ENDED

    def count_own(self) -> None:
        """The body went on while the task stood for it: whoever cancelled that meanwhile was the body itself."""
        self.own = max(self.own, self.task.cancelling() - self._base)

    @coroutine
    def carry(self, early: BaseException | None = None) -> Generator[Any, Any, Any]:
        """Awaits the body from where it has suspended to its end, and gives its result or raises its exception.

        `early` cancelled the task before it came to wait for what the body waits for.
        """
        run: Run = self.run
        enter, cancelling = self.variables.run, self.task.cancelling
        send, throw = run.body.send, run.body.throw
        before = self._base
        yielded = self.yielded
        if early is not None and _cancels(yielded):
            early = None
        elif early is None and yielded is UNTIL_DURABLE:
            # The run was stopped: all that comes of waiting is a cancellation.
            yielded = next(self._loop.create_future().__await__())
        try:
            while True:
                if run.crew is not None and not self._marked:
                    # The task is the run's root now: its wake-ups are to be seen as the run's.
                    self._marked = True
                    RUN.set(run)
                if run.stopped is not None and self._timer is None:
                    self._timer = self._loop.call_soon(self._next_round, context=Context())
                try:
                    if early is not None:
                        raised, early = early, None
                        raise raised
                    yield yielded
                except BaseException as error:  # noqa: BLE001 - it is passed on to the body
                    if self._given_up:
                        raise self._left_behind(yielded) from None
                    self._hear(error)
                    before = cancelling()
                    yielded = enter(throw, error)
                else:
                    if self._given_up:
                        raise self._left_behind(yielded) from None
                    before = cancelling()
                    yielded = enter(send, None)
                self.own += max(0, cancelling() - before)
        except StopIteration as stop:
            return stop.value
        finally:
            self.own += max(0, cancelling() - before)
            if self._timer is not None:
                self._timer.cancel()
            if self._marked:
                RUN.set(None)

    def _hear(self, error: BaseException) -> None:
        """The task was woken by an exception, perhaps a cancellation of ours: that is taken back."""
        while self._sent:
            self._sent -= 1
            self.task.uncancel()
        if not isinstance(error, asyncio.CancelledError):
            return
        self._thrown = error
        # If a step waits, a time-out or group of its own may have done it; if not, it gives way later.
        if not self.run.attempting:
            self.give_way(self.task.cancelling())

    @property
    def known(self) -> int:
        """How many cancellations of the task were there before, or are the body's own."""
        return self._base + self.own

    def give_way(self, cancelling: int) -> None:
        """The task was cancelled so many times when it was woken, and what was executed doesn't claim it."""
        run: Run = self.run
        if cancelling > self.known and run.stopped is None and run.crew is None and run.alarms is None:
            # No timer, group or time-out of the body can have done it: its caller is being cancelled.
            self._rounds = 1
            self._timer = self._loop.call_later(ROUND_SECONDS, self._next_round, context=Context())
            self.outside = True
            run.stop("cut")

    def mark(self) -> None:
        """The run has a crew from now on. If the body waits meanwhile, its wake-up is to be seen as the run's."""
        if asyncio.current_task() is not self.task:
            for _, variables in self._wakeups():
                variables.run(RUN.set, self.run)
                self._marked = True

    def was_cancelled(self, error: BaseException | None) -> bool:
        """Whether the body ended, with that error or none, because its caller was cancelled by somebody else.

        The count alone doesn't tell: up to Python 3.12 a TaskGroup whose child fails leaves it one too high.
        """
        if self.outside or self.task.cancelling() <= self._base + self.own:
            return self.outside
        if self.run.crew is not None and self.run.stopped is not None:
            return False  # the tear-down's own cancellations look the same
        one = error
        while one is not None and one is not self._thrown:
            one = one.__context__
        return isinstance(error, asyncio.CancelledError) and one is not None

    async def absorb(self) -> None:
        """After the end: the body's cancellations of its own task aren't its caller's."""
        while self.own and self.task.cancelling() > self._base:
            self.own -= 1
            self.task.uncancel()
        if getattr(self.task, "_must_cancel", False):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    def abort(self) -> None:
        """Cancels the body, as if its task was cancelled; the task itself isn't."""
        self._sent += 1
        self.task.cancel()

    def cut(self) -> None:
        """Starts getting rid of the body. Not from within the body itself: it is seen to when it next suspends."""
        if self._timer is None and asyncio.current_task() is not self.task:
            self._next_round()

    def _next_round(self) -> None:
        if self._rounds < ROUNDS:
            self._rounds += 1
            self._sent += 1
            self.task.cancel()
            self._timer = self._loop.call_later(ROUND_SECONDS, self._next_round, context=Context())
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._given_up = True
        waiter: Any = getattr(self.task, "_fut_waiter", None)
        for callback, variables in self._wakeups():
            waiter.remove_done_callback(callback)
            woken = self._loop.create_future()
            woken.set_result(None)
            self._loop.call_soon(callback, woken, context=variables)
            return
        if waiter is not None:
            self._sent += 1
            self.task.cancel()

    def _wakeups(self) -> list[tuple[Any, Context]]:
        """How the task is woken by what it waits on: the callback and the task's context."""
        waiter = getattr(self.task, "_fut_waiter", None)
        callbacks = getattr(waiter, "_callbacks", None) or ()
        return [
            (callback, variables)
            for callback, variables in callbacks
            if getattr(callback, "__self__", None) is self.task
        ]

    def _left_behind(self, yielded: Any) -> GivenUp:
        while self._sent:
            self._sent -= 1
            self.task.uncancel()
        rest = asyncio.Task(_await(_rest(self.run.body, self.variables, yielded)), loop=self._loop, context=Context())
        abandon(self.run, rest, yielded, f"its body still runs after it was asked to end {ROUNDS} times")
        return GivenUp()


def _cancels(yielded: Any) -> bool:
    """Cancels what a body waits for: a task that was cancelled before it waits does so too. False if it can't be."""
    cancel = getattr(yielded, "cancel", None)
    return cancel is not None and bool(cancel())


async def _await(rest: Any) -> None:
    await rest


@coroutine
def _rest(body: Any, variables: Context, yielded: Any) -> Generator[Any, Any, Any]:
    """The rest of a body that was left behind."""
    enter, send, throw = variables.run, body.send, body.throw
    try:
        while True:
            if hasattr(yielded, "_asyncio_future_blocking"):
                yielded._asyncio_future_blocking = True  # noqa: SLF001 - as Future.__await__ does
            try:
                yield yielded
            except BaseException as error:  # noqa: BLE001 - it is passed on to the body
                yielded = enter(throw, error)
            else:
                yielded = enter(send, None)
    except StopIteration:
        return
