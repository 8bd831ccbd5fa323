"""Runs bodies against a journal in memory, each in an event loop of its own, under a watchdog that dumps the state."""

import asyncio
import io
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest

from pyrula.workflows import Clock, Context, StepError, SystemClock
from pyrula.workflows import execution as engine
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.execution import Execution, Outcome, install
from pyrula.workflows.replay.journal import DELIVERIES, Entry, Fields, Journal, encode_row

both = pytest.mark.parametrize("tasks", [False, True], ids=["straight", "tasks"])


def once(fn: Any, *args: Any) -> Callable[[Context], Awaitable[Any]]:
    """A body that executes one step and says how it ended."""

    async def body(ctx: Context) -> Any:
        try:
            return await ctx.step(fn, *args)
        except StepError as error:
            return ["failed", error.step, error.attempts, error.error_type, error.message, error.timed_out]

    return body


WATCHDOG_SECONDS = 60.0

Rows = list[tuple[int, bytes]]


class MemoryHost:
    """Keeps the rows of one run. `acknowledge` is called for what `durable` gives."""

    def __init__(self, rows: Iterable[tuple[int, bytes]] = ()) -> None:
        self.rows: dict[int, bytes] = dict(rows)
        self.entries: list[Entry] = []
        self.on_delivery: Callable[[Entry], None] = lambda entry: None
        self.unacknowledged: Callable[[], Awaitable[None] | None] = lambda: None
        self.the_record: object = None

    def append(self, run: Execution, index: int, entry: Fields | None) -> None:
        if entry is None:
            del self.rows[index]
            return
        entry = Entry._make(entry)
        if entry.kind in DELIVERIES:
            self.on_delivery(entry)
        assert index not in self.rows
        self.rows[index] = encode_row(entry, None)
        self.entries.append(entry)

    def durable(self, run: Execution) -> Awaitable[None] | None:
        return self.unacknowledged()

    def record(self, run: Execution) -> object:
        return self.the_record

    def kinds(self) -> list[tuple[str, str, str]]:
        """What was appended, in short."""
        return [(entry.kind, entry.op, entry.name) for entry in self.entries]


class LaterClock(SystemClock):
    """The machine's clock an hour later: what was to last so long is over."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


class Stuck(AssertionError):
    """A run didn't end; the text says where it stands."""


def execution(
    body: Callable[..., Coroutine[Any, Any, Any]] | WorkflowDefinition[Any, Any],
    host: MemoryHost,
    *args: Any,
    rows: Rows | None = None,
    run_id: str = "00-test",
    **options: Any,
) -> Execution:
    """An execution of a plain async function or a workflow, with the journal `rows`."""
    definition = body if isinstance(body, WorkflowDefinition) else WorkflowDefinition(body, name="body")
    journal = None if rows is None else Journal.load(rows)
    options.setdefault("clock", SystemClock())
    return Execution(definition, run_id, host, args, journal=journal, **options)


def with_tasks(run: Execution, wanted: bool = True) -> Execution:
    """Decides whether the run has the full machinery from the start, as if its workflow was known to make tasks."""
    if wanted:
        engine._remember(run.definition)
    else:
        engine._making_tasks.discard(id(run.definition))
    return run


async def watched(run: Execution, seconds: float = WATCHDOG_SECONDS) -> Outcome:
    """The run's outcome; Stuck with a dump of its state when there is none in time."""
    task = asyncio.ensure_future(run.run())
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        text = dump(run)
        task.cancel()
        raise Stuck(text)
    assert not task.cancelled(), dump(run)
    return task.result()


def dump(run: Execution) -> str:
    """Where a run stands: its machine, its tasks, and what each waits on."""
    out = io.StringIO()
    machine, crew = run.machine, run.crew
    print(f"run {run.run_id}: stopped={run.stopped} straight={run.straight} error={run.error!r}", file=out)
    if machine is not None:
        waiting = [str(operation) for operation in machine.waiting.values()]
        print(f"asked={machine.asked} cursor={machine.cursor} left={machine.left} waiting={waiting}", file=out)
        if machine.left:
            print(f"next: {machine.journal.recorded[machine.cursor]}", file=out)
    if crew is not None:
        print(f"live={crew.live} quiet={crew.quiet} completed={list(crew._completed)}", file=out)
        print(f"wanted={crew in crew._settler._wanted} scheduled={crew._settler._scheduled}", file=out)
        for task in crew.tasks.values():
            print(f"{task.place.path!r} at {task._fut_waiter!r}", file=out)
            task.print_stack(file=out)
    return out.getvalue()


def in_new_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Runs `main` in a fresh event loop that is prepared for workflows."""

    async def prepared() -> Any:
        install(asyncio.get_running_loop())
        return await main()

    return asyncio.run(prepared())


def play(
    body: Callable[..., Coroutine[Any, Any, Any]],
    *args: Any,
    rows: Rows | None = None,
    tasks: bool | None = None,
    noise: random.Random | None = None,
    host: MemoryHost | None = None,
    clock: Clock | None = None,
) -> tuple[Outcome, MemoryHost]:
    """Runs a body to its end in a fresh loop. `tasks`: with the full machinery from the start, or not."""
    host = MemoryHost(rows or ()) if host is None else host

    async def main() -> Outcome:
        asyncio.get_running_loop().set_exception_handler(_ignore)
        run = execution(body, host, rows=rows, clock=clock or SystemClock())
        if tasks is not None:
            with_tasks(run, tasks)
        run.args = args
        spinner = asyncio.ensure_future(_spin(noise)) if noise is not None else None
        try:
            return await watched(run)
        finally:
            if spinner is not None:
                spinner.cancel()

    return in_new_loop(main), host


def begin(body: Callable[..., Coroutine[Any, Any, Any]], *, rows: int, tasks: bool | None = None) -> Rows:
    """What a body journals until it is cut, which is when there are so many rows."""
    host = MemoryHost()

    async def main() -> None:
        run = execution(body, host)
        if tasks is not None:
            with_tasks(run, tasks)
        running = asyncio.ensure_future(watched(run))
        while len(host.rows) < rows and not running.done():  # noqa: ASYNC110 - a turn of the loop brings a row
            await asyncio.sleep(0)
        run.cut()
        assert (await running).status == "cut"

    in_new_loop(main)
    return sorted(host.rows.items())


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Bodies leave tasks behind whose exceptions nobody asks for; logging them would keep their frames alive."""


async def _spin(rng: random.Random) -> None:
    """Keeps the loop busy for a while, as other runs do."""
    for _ in range(rng.randrange(200)):
        await asyncio.sleep(0 if rng.random() < 0.9 else rng.random() / 2_000)
