"""A replayer: a task in which one body after the other runs; and all of a binding's, of which some are free.

Every body runs in a replayer's task, so that it may ask for it and cancel it. The task itself is woken only for a body
that waits for something else than its rows, and for a head that can't begin yet.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pyrula.kafka.partition import Partition, RecordRun
from pyrula.workflows.context import Context
from pyrula.workflows.execution import Drive

__all__ = ["Crew", "Replayer"]

Head = Any

# So many tasks are made in one turn of the loop at most: thousands would hold up heartbeats.
AT_ONCE: Final = 128


class Replayer(Drive):
    """One such task.

    `busy` says that it has `run`, whose body has suspended; `context` is that run's, as long as both may be the next
    record's. `called` is resolved when the task has to see to its run, as that waits for more than its rows, or to
    `head`, which can't begin yet; and cancelled when somebody cancels the task.
    """

    __slots__ = ("busy", "called", "context", "head")

    called: asyncio.Future[None]

    def __init__(self) -> None:
        super().__init__()
        self.busy = False
        self.context: Context | None = None
        self.head: tuple[Partition, Head] | None = None

    def call(self) -> None:
        """Wake the task for what it has."""
        if not self.called.done():
            self.called.set_result(None)


class Crew:
    """The replayers of one binding, made as they are needed.

    A woken task awaits `begin` with its head, and `carry` with its run, which then has a CancelledError if the task was
    cancelled before; `free` is called when it has nothing to do.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[Partition, Head, Replayer], Awaitable[None]],
        carry: Callable[[RecordRun, Replayer, asyncio.CancelledError | None], Awaitable[None]],
        free: Callable[[], None],
    ) -> None:
        self._name = name
        self._begin = begin
        self._carry = carry
        self._tell_free = free
        self._free: list[Replayer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopped = False

    def take(self, most: int) -> Replayer | None:
        """One that is free. None: there will be in the next turn, if there are to be more; `most` in all."""
        free = self._free
        while free:
            replayer = free.pop()
            if not replayer.called.done():
                return replayer
        loop = asyncio.get_running_loop()
        for _ in range(max(1, min(len(self._tasks), most - len(self._tasks), AT_ONCE))):
            task = loop.create_task(self._replay(), name=f"replayer {self._name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return None

    def give_back(self, replayer: Replayer) -> None:
        """The replayer has nothing to do: it is free, unless its task is awake, which says then when it is."""
        replayer.busy = False
        if not replayer.called.done():
            self._free.append(replayer)

    def forget(self) -> None:
        """Those that are free let go of their last runs, whose records may be large."""
        for replayer in self._free:
            replayer.context = None
            replayer.run = None

    async def _replay(self) -> None:
        replayer = Replayer()
        while True:
            while replayer.task.cancelling():
                replayer.task.uncancel()
            replayer.reset()
            replayer.called = asyncio.get_running_loop().create_future()
            self._free.append(replayer)
            self._tell_free()
            cancelled = None
            try:
                await replayer.called
            except asyncio.CancelledError as error:
                cancelled = error
                if not replayer.busy and replayer.head is None:
                    if self.stopped:
                        raise
                    if replayer in self._free:
                        self._free.remove(replayer)
            if replayer.head is not None:
                partition, head = replayer.head
                try:
                    await self._begin(partition, head, replayer)
                finally:
                    replayer.head = cancelled = None
            if replayer.busy:
                await self._carry(replayer.run, replayer, cancelled)

    async def stop(self) -> None:
        """End the tasks; their runs must have ended before."""
        self.stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
