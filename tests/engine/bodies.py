"""Random bodies: a small language of statements, its hypothesis strategies, and the body that interprets a program.

Everything a body sees goes to one trace, in the order in which it sees it, so that two runs have equal traces only if
their operations, values and interleaving are equal. A step's uid is its statement's number and the path of loops to it.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from pyrula.workflows import Context, Retry, StepError, step

Block = list[Any]


class Boom(Exception):
    """What failing blocks raise."""


class Steps:
    """The steps of random bodies. `executed` lists the uids in order; delays and values come from `rng`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.executed: list[str] = []
        self.work = step(retry=Retry(max_attempts=1), name="work")(self._work)
        self.fail = step(retry=Retry(max_attempts=2, initial=0), name="fail")(self._fail)

    async def _work(self, uid: str, settled: bool) -> dict[str, Any]:
        self.executed.append(uid)
        await self._delay()
        return {"uid": uid, "n": len(uid) if settled else self.rng.randrange(1000)}

    async def _fail(self, uid: str) -> None:
        self.executed.append(uid)
        await self._delay()
        raise Boom(uid)

    async def _delay(self) -> None:
        kind = self.rng.randrange(4)
        if kind == 1:
            for _ in range(self.rng.randrange(6)):
                await asyncio.sleep(0)
        elif kind > 1:
            await asyncio.sleep(self.rng.random() / 500)


class World:
    """What one run of a body shares between its tasks."""

    def __init__(self) -> None:
        self.trace: list[Any] = []
        self.last = 0
        self.total = 0
        self.locks = [asyncio.Lock(), asyncio.Lock()]
        self.semaphore = asyncio.Semaphore(2)


class Interpreter:
    """Interprets a program. `world` is that of the last run."""

    def __init__(self, program: Block, steps: Steps, settled: bool = False) -> None:
        self.program = program
        self.steps = steps
        self.settled = settled
        self.world = World()

    async def body(self, ctx: Context) -> Any:
        self.world = world = World()
        try:
            await self.block(ctx, self.program, "")
        except Boom as boom:
            world.trace.append(["boom", str(boom)])
        return [len(world.trace), world.total, world.last]

    def see(self, *what: Any) -> None:
        self.world.trace.append([*what, self.world.last])

    async def block(self, ctx: Context, block: Block, at: str) -> int:
        for statement in block:
            await getattr(self, f"do_{statement[0]}")(ctx, at, *statement[1:])
        return self.world.last

    async def do_step(self, ctx: Context, at: str, uid: int) -> None:
        value = await ctx.step(self.steps.work, f"{uid}{at}", self.settled)
        self.world.last = value["n"]
        self.world.total += value["n"]
        self.see("step", value["uid"])

    async def do_fail(self, ctx: Context, at: str, uid: int) -> None:
        try:
            await ctx.step(self.steps.fail, f"{uid}{at}")
        except StepError as error:
            self.see("failed", error.message)

    async def do_now(self, ctx: Context, at: str) -> None:
        self.see("now", (await ctx.now()).isoformat())

    async def do_random(self, ctx: Context, at: str) -> None:
        number = await ctx.random()
        self.world.last = int(number * 1000)
        self.see("random", number)

    async def do_uuid(self, ctx: Context, at: str) -> None:
        self.see("uuid", str(await ctx.uuid()))

    async def do_send(self, ctx: Context, at: str) -> None:
        await ctx.send("topic", self.world.last)
        self.see("sent")

    async def do_sleep(self, ctx: Context, at: str, ms: int) -> None:
        await ctx.sleep(ms / 1000)
        self.see("slept")

    async def do_yield(self, ctx: Context, at: str, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.see("yielded")

    async def do_plain(self, ctx: Context, at: str) -> None:
        await asyncio.sleep(self.steps.rng.random() / 300)

    async def do_loop(self, ctx: Context, at: str, times: int, block: Block) -> None:
        for number in range(times):
            await self.block(ctx, block, f"{at}.{number}")

    async def do_branch(self, ctx: Context, at: str, one: Block, two: Block) -> None:
        await self.block(ctx, one if self.world.last % 2 else two, at)

    async def do_statebranch(self, ctx: Context, at: str, one: Block, two: Block) -> None:
        await self.block(ctx, one if len(self.world.trace) % 2 else two, at)

    async def do_steps(self, ctx: Context, at: str, uid: int, count: int) -> None:
        made = (ctx.step(self.steps.work, f"{uid}{at}.{number}", self.settled) for number in range(count))
        values = await asyncio.gather(*made)
        self.world.last = values[-1]["n"]
        self.see("steps", [value["uid"] for value in values])

    async def do_gather(self, ctx: Context, at: str, blocks: list[Block], exceptions: bool) -> None:
        results = await asyncio.gather(*(self.block(ctx, block, at) for block in blocks), return_exceptions=exceptions)
        self.see("gathered", [repr(result) for result in results])

    async def do_boom(self, ctx: Context, at: str) -> None:
        raise Boom(at)

    async def do_caught(self, ctx: Context, at: str, block: Block) -> None:
        try:
            await self.block(ctx, block, at)
        except Boom:
            self.see("caught")

    async def do_finally(self, ctx: Context, at: str, block: Block, cleanup: Block) -> None:
        try:
            await self.block(ctx, block, at)
        finally:
            self.see("cleaning")
            await self.block(ctx, cleanup, at + "f")

    async def do_group(self, ctx: Context, at: str, blocks: list[Block]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for block in blocks:
                    group.create_task(self.block(ctx, block, at))
        except* Boom as booms:
            self.see("group", len(booms.exceptions))

    async def do_race(self, ctx: Context, at: str, blocks: list[Block]) -> None:
        tasks = [asyncio.create_task(self.block(ctx, block, at)) for block in blocks]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:  # in the order of a set
            self.see("won", tasks.index(task), repr(task.exception() or task.result()))
        for task in pending:
            task.cancel()
        results = await asyncio.gather(*pending, return_exceptions=True)
        self.see("lost", [type(result).__name__ for result in results])

    async def do_wait(self, ctx: Context, at: str, blocks: list[Block], ms: int) -> None:
        done, pending = await ctx.wait(
            [self.block(ctx, block, at) for block in blocks], timeout=ms / 1000, return_when=asyncio.FIRST_EXCEPTION
        )
        self.see("waited", len(done), len(pending), [repr(task.exception() or task.result()) for task in done])

    async def do_as_completed(self, ctx: Context, at: str, blocks: list[Block]) -> None:
        async for task in ctx.as_completed(self.block(ctx, block, at) for block in blocks):
            self.see("completed", repr(task.exception() or task.result()))

    async def do_shield(self, ctx: Context, at: str, block: Block) -> None:
        await asyncio.shield(self.block(ctx, block, at))
        self.see("shielded")

    async def do_lock(self, ctx: Context, at: str, which: int, block: Block) -> None:
        async with self.world.locks[which]:
            await self.block(ctx, block, at)

    async def do_semaphore(self, ctx: Context, at: str, block: Block) -> None:
        async with self.world.semaphore:
            await self.block(ctx, block, at)

    async def do_background(self, ctx: Context, at: str, block: Block) -> None:
        task = asyncio.create_task(self.block(ctx, block, at))
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: "asyncio.Task[int]") -> None:
        if not task.cancelled():
            self.see("background", repr(task.exception()))

    async def do_cancel(self, ctx: Context, at: str, turns: int, block: Block) -> None:
        task = asyncio.create_task(self.block(ctx, block, at))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        results = await asyncio.gather(task, return_exceptions=True)
        self.see("cancelled", type(results[0]).__name__)

    async def do_pipe(self, ctx: Context, at: str, items: int, block: Block) -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(1)

        async def produce() -> None:
            for number in range(items):
                await self.block(ctx, block, f"{at}.{number}")
                await queue.put(number)

        producer = asyncio.create_task(produce())
        for _ in range(items):
            self.see("got", await queue.get())
        await producer

    async def do_event(self, ctx: Context, at: str, block: Block, meanwhile: Block) -> None:
        event = asyncio.Event()

        async def waiter(number: int) -> None:
            await event.wait()
            self.see("woken", number)
            await self.block(ctx, meanwhile, f"{at}.{number}")

        waiters = [asyncio.create_task(waiter(number)) for number in range(2)]
        await self.block(ctx, block, at)
        event.set()
        await asyncio.gather(*waiters)

    async def do_timeout(self, ctx: Context, at: str, ms: int, block: Block) -> None:
        try:
            async with ctx.timeout(ms / 1000):
                await self.block(ctx, block, at)
        except TimeoutError:
            self.see("timed out")


def numbered(program: Block) -> Block:
    """The program with a number of its own in each statement that executes a step."""
    count = 0

    def visit(part: Any) -> Any:
        nonlocal count
        if not isinstance(part, (list, tuple)):
            return part
        if part and part[0] in ("step", "fail", "steps"):
            count += 1
            return [part[0], count, *part[1:]]
        return [visit(one) for one in part]

    result: Block = visit(program)
    return result


_SIMPLE = [
    st.just(["step"]),
    st.just(["step"]),
    st.just(["step"]),
    st.just(["fail"]),
    st.sampled_from((["now"], ["random"], ["uuid"], ["send"])),
    st.builds(lambda ms: ["sleep", ms], st.integers(0, 2)),
    st.builds(lambda turns: ["yield", turns], st.integers(1, 3)),
]


def _blocks(inner: st.SearchStrategy[Block]) -> st.SearchStrategy[list[Block]]:
    return st.lists(inner, min_size=1, max_size=4)


def _sequential(inner: st.SearchStrategy[Block]) -> list[st.SearchStrategy[Any]]:
    return [
        st.builds(lambda times, block: ["loop", times, block], st.integers(1, 3), inner),
        st.builds(lambda one, two: ["branch", one, two], inner, inner),
        st.builds(lambda one, two: ["statebranch", one, two], inner, inner),
        st.builds(lambda block, cleanup: ["finally", block, cleanup], inner, inner),
        st.builds(lambda block: ["caught", [*block, ["boom"]]], inner),
    ]


def _settled(inner: st.SearchStrategy[Block]) -> list[st.SearchStrategy[Any]]:
    return [
        st.builds(lambda count: ["steps", count], st.integers(1, 4)),
        st.builds(lambda blocks, flag: ["gather", blocks, flag], _blocks(inner), st.booleans()),
        st.builds(lambda block: ["shield", block], inner),
        st.builds(lambda blocks: ["group", blocks], _blocks(inner)),
    ]


def _concurrent(inner: st.SearchStrategy[Block]) -> list[st.SearchStrategy[Any]]:
    failing = st.builds(lambda block: [*block, ["boom"]], inner)
    flat = st.lists(st.one_of(_SIMPLE), min_size=1, max_size=3)
    return [
        st.builds(lambda blocks, last: ["group", [*blocks, last]], _blocks(inner), failing),
        st.builds(lambda blocks, last: ["gather", [*blocks, last], True], _blocks(inner), failing),
        st.builds(lambda blocks: ["race", blocks], _blocks(st.one_of(inner, failing))),
        st.builds(lambda blocks, ms: ["wait", blocks, ms], _blocks(st.one_of(inner, failing)), st.integers(0, 3)),
        st.builds(lambda blocks: ["as_completed", blocks], _blocks(st.one_of(inner, failing))),
        st.builds(lambda which, block: ["lock", which, block], st.integers(0, 1), flat),
        st.builds(lambda block: ["semaphore", block], flat),
        st.builds(lambda block: ["background", block], inner),
        st.builds(lambda turns, block: ["cancel", turns, block], st.integers(0, 4), inner),
        st.builds(lambda items, block: ["pipe", items, block], st.integers(1, 3), flat),
        st.builds(lambda block, meanwhile: ["event", block, meanwhile], inner, flat),
        st.builds(lambda ms, block: ["timeout", ms, block], st.integers(0, 3), inner),
    ]


def _programs(make: Callable[[st.SearchStrategy[Block]], list[st.SearchStrategy[Any]]]) -> st.SearchStrategy[Block]:
    flat = st.lists(st.one_of(_SIMPLE), min_size=1, max_size=3)

    def deeper(inner: st.SearchStrategy[Block]) -> st.SearchStrategy[Block]:
        return st.lists(st.one_of(*_SIMPLE, *make(inner)), min_size=1, max_size=3)

    block = st.recursive(flat, deeper, max_leaves=8)
    return st.lists(st.one_of(*_SIMPLE, *make(block)), min_size=1, max_size=4).map(numbered)


def one_task() -> st.SearchStrategy[Block]:
    """Programs that make no task."""
    return _programs(_sequential)


def settled_values() -> st.SearchStrategy[Block]:
    """Programs whose result depends on the values of their steps only, not on when they complete."""
    return _programs(_settled)


def plain_awaits() -> st.SearchStrategy[Block]:
    """As `settled_values`, with plain sleeps of random length: they race with operations, but steer nothing."""
    flat = st.lists(st.one_of(*_SIMPLE, st.just(["plain"])), min_size=1, max_size=4)
    block = st.recursive(flat, lambda inner: st.lists(st.one_of(*_SIMPLE, *_settled(inner)), max_size=3), max_leaves=8)
    return st.lists(st.one_of(*_SIMPLE, st.just(["plain"]), *_settled(block)), min_size=1, max_size=4).map(numbered)


def any_program() -> st.SearchStrategy[Block]:
    """All of the language."""
    return _programs(lambda inner: [*_sequential(inner), *_settled(inner), *_concurrent(inner)])
