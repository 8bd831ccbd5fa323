"""Random bodies under random schedules of messages, completions and crashes.

What is checked: after each change that was written, a replay brings the body to where it stood, as a query sees it; a
step with an entry isn't executed again; each update is applied once, and the store is told once; nothing sent is lost.

PYRULA_REPLAY_EXAMPLES sets how many schedules are tried.
"""

import asyncio
import os
import random
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pyrula.workflows import Context, RunCancelled
from pyrula.workflows.codec import loads
from pyrula.workflows.replaying import replayed
from pyrula.workflows.store.payloads import encode_query, read_answer
from tests.engine.rig import dump, in_new_loop
from tests.engine.talk_rig import Life, Stored

EXAMPLES = int(os.environ.get("PYRULA_REPLAY_EXAMPLES", "60"))

Block = list[Any]
Action = tuple[str, int]

ops = st.one_of(
    st.tuples(st.just("step")),
    st.tuples(st.just("signal"), st.sampled_from("ab")),
    st.tuples(st.just("timed"), st.sampled_from("ab")),
    st.tuples(st.just("interrupt")),
    st.tuples(st.just("turns"), st.integers(1, 4)),
    st.tuples(st.just("now")),
    st.tuples(st.just("count")),
)
blocks: st.SearchStrategy[Block] = st.recursive(
    st.lists(ops, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            ops,
            st.tuples(st.just("gather"), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just("group"), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just("try"), inner, inner),
            st.tuples(st.just("background"), inner),
        ),
        max_size=4,
    ),
    max_leaves=8,
)
actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["turns", "turns", "step", "step", "signal", "signal", "update", "update", "update", "resume", "settle",
             "cut", "crash", "park", "cancel"]
        ),
        st.integers(0, 5),
    ),
    min_size=3,
    max_size=40,
)  # fmt: skip


class World:
    """What one lease's body works on: its trace, and the steps that wait to be completed."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.pending: dict[str, asyncio.Future[str]] = {}
        self.started: list[str] = []


class Case:
    """One random body under one random schedule."""

    def __init__(self, program: Block, handler: Block) -> None:
        self.program = program
        self.handler = handler
        self.world = World()
        self.snapshots: list[Stored] = []
        self.updates = 0
        self.signals = 0
        self.life = Life(self.body)

    async def body(self, ctx: Context) -> list[str]:
        world = self.world

        def note(item: str) -> str:
            world.trace.append(f"note {item}")
            return item

        async def work(item: str) -> str:
            world.trace.append(f"begin {item}")
            try:
                await self.execute(ctx, world, self.handler, f"h{item}")
            finally:
                world.trace.append(f"end {item}")
            return item

        ctx.on_query("trace", lambda: list(world.trace))
        ctx.on_update("note", note)
        ctx.on_update("work", work)
        await self.execute(ctx, world, self.program, "m")
        await ctx.wait_for_signal("end")
        return world.trace

    async def execute(self, ctx: Context, world: World, block: Block, path: str) -> None:
        for number, (kind, *rest) in enumerate(block):
            label = f"{path}.{number}"
            if kind == "step":
                world.trace.append(await ctx.step(self.step, world, label))
            elif kind == "signal":
                world.trace.append(f"{label} got {await ctx.wait_for_signal(rest[0])}")
            elif kind == "timed":
                world.trace.append(f"{label} got {await ctx.wait_for_signal(rest[0], timeout=10_000)}")
            elif kind == "interrupt":
                world.trace.append(f"{label} {(await ctx.interrupt(label)).action}")
            elif kind == "turns":
                for _ in range(rest[0]):
                    await asyncio.sleep(0)
            elif kind == "now":
                world.trace.append(f"{label} {await ctx.now()}")
            elif kind == "count":
                world.trace.append(f"{label} after {len(world.trace)}")
            elif kind == "gather":
                await asyncio.gather(
                    *(self.execute(ctx, world, inner, f"{label}.{n}") for n, inner in enumerate(rest[0]))
                )
            elif kind == "group":
                async with asyncio.TaskGroup() as group:
                    for n, inner in enumerate(rest[0]):
                        group.create_task(self.execute(ctx, world, inner, f"{label}.{n}"))
            elif kind == "background":
                asyncio.ensure_future(self.execute(ctx, world, rest[0], label))  # noqa: RUF006
            else:
                try:
                    await self.execute(ctx, world, rest[0], label)
                except RunCancelled:
                    world.trace.append(f"{label} cancelled")
                    await self.execute(ctx, world, rest[1], f"{label}c")
                    raise

    async def step(self, world: World, label: str) -> str:
        world.started.append(label)
        world.pending[label] = asyncio.get_running_loop().create_future()
        return f"{label} {await world.pending[label]}"

    def begin(self, lost_after: int | None = None) -> None:
        journaled = set(self.labels(self.life.stored))
        self.world = World()
        self.life.begin(lost_after)
        self.world.started = started = _Refusing(journaled)
        assert started == []
        self.life.host.on_change = lambda: self.snapshots.append(deepcopy(self.life.stored))
        self.snapshots = [deepcopy(self.life.stored)]

    def labels(self, stored: Stored) -> list[str]:
        entries = [loads(data) for data in stored.rows.values()]
        return [entry[7].split()[0] for entry in entries if entry[1] == "value" and entry[3] == "step"]

    async def check_lease(self, whole: bool) -> None:
        """Every part of what this lease wrote replays to a part of what its body did."""
        trace = list(self.world.trace)
        for stored in self.snapshots:
            seen = await self.read(stored)
            # A body that was cut in the middle of its turns hasn't come as far as its replay, which comes to rest.
            length = len(seen) if whole else min(len(seen), len(trace))
            assert seen[:length] == trace[:length], (seen, trace)
        if whole:
            assert seen == trace, (seen, trace)

    async def read(self, stored: Stored) -> Any:
        world, self.world = self.world, World()
        rows = sorted(stored.rows.items())
        async with replayed(self.life.definition, self.life.run_id, {}, rows, clock=self.life.clock) as run:
            async with asyncio.timeout(60):
                answer = await run.query("trace", encode_query((), {}, "q"))
        started, self.world = self.world.started, world
        assert started == []
        value, failure = read_answer(answer)
        assert failure is None, failure
        return value

    async def act(self, kind: str, number: int) -> None:
        life, world = self.life, self.world
        if kind == "turns":
            for _ in range(number):
                await asyncio.sleep(0)
        elif kind == "settle":
            await life.settle()
        elif kind == "step" and world.pending:
            label = sorted(world.pending)[number % len(world.pending)]
            world.pending.pop(label).set_result(str(number))
        elif kind == "signal":
            self.signals += 1
            life.send("signal", "ab"[number % 2], self.signals)
        elif kind == "update":
            self.updates += 1
            item = str(self.updates)
            life.send("update", "note" if number % 2 else "work", {"item": item}, f"u{item}")
        elif kind == "resume" and life.stored.open:
            wait_id = sorted(life.stored.open)[number % len(life.stored.open)]
            del life.stored.open[wait_id]
            life.send("resume", wait_id, {"action": str(number), "value": None})
        elif kind == "cancel" and number == 0 and not life.execution.cancel_requested:
            if not any(loads(data)[1] == "cancel" for data in life.stored.rows.values()):
                life.send("cancel", message_id="cancel")
        elif kind == "park":
            await self.park()
        elif kind == "crash":
            await life.query("trace")  # it has come to rest
            await life.settle()
            trace = await life.query("trace")
            await self.let_go(whole=True)
            self.begin()
            again = await life.query("trace")
            assert again[: len(trace)] == trace, (again, trace)
        elif kind == "cut":
            await self.let_go(whole=False)
            self.begin()

    async def park(self) -> None:
        waits = self.life.execution.hold()
        if waits is None:
            return
        assert self.world.pending == {}
        self.life.host.flush()
        trace = list(self.world.trace)
        self.life.execution.parked()
        assert (await self.life.end()).status == "parked"
        self.world.trace = trace
        await self.check_lease(whole=True)
        self.begin()

    async def let_go(self, whole: bool) -> None:
        trace = list(self.world.trace)
        await self.life.crash()
        self.world.trace = trace
        await self.check_lease(whole)

    async def finish(self) -> None:
        """Everything that can be brought to an end is."""
        life = self.life
        for number in range(200):
            await life.settle()
            if life.task.done():
                break
            for label in sorted(self.world.pending):
                self.world.pending.pop(label).set_result("last")
            for wait_id in sorted(life.stored.open):
                del life.stored.open[wait_id]
                life.send("resume", wait_id, {"action": "last", "value": None})
            if number % 3 == 2:
                for name in ("a", "b", "end"):
                    life.send("signal", name, "last")
        outcome = await life.end()
        assert outcome.status in ("completed", "cancelled"), (outcome, dump(life.execution))
        await self.check_lease(whole=False)
        for update in range(1, self.updates + 1):
            unread = [one for one in life.stored.inbox if one.message.id == f"u{update}"]
            answers = life.stored.applied.get(f"u{update}", [])
            assert len(answers) + len(unread) == 1, f"u{update}"
            applied = [item for item in self.world.trace if item in (f"note {update}", f"begin {update}")]
            assert len(applied) == (1 if answers and answers[0].outcome != "rejected" else 0), f"u{update}"


class _Refusing(list[str]):
    """The steps that were started; one with an entry must not be."""

    def __init__(self, journaled: set[str]) -> None:
        super().__init__()
        self._journaled = journaled

    def append(self, label: str) -> None:
        assert label not in self._journaled, f"{label} was executed again"
        super().append(label)


async def run(program: Block, handler: Block, schedule: list[Action], seed: int) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    case = Case(program, handler)
    case.begin()
    rng = random.Random(seed)
    for kind, number in schedule:
        if case.life.task.done():
            break
        await case.act(kind, number)
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    await case.finish()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # a run that hangs takes its time, so that shrinking has no end
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(blocks, blocks, actions, st.integers(0, 1 << 30))
def test_random_schedules(program: Block, handler: Block, schedule: list[Action], seed: int) -> None:
    in_new_loop(lambda: run(program, handler, schedule, seed))
