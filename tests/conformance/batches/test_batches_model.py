"""Random events, moments and takers on both stores at once: all answers are the same, every event is in one batch."""

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pyrula.workflows.batching import TriggerEvent, Window
from pyrula.workflows.codec import dumps, loads
from pyrula.workflows.model import MAX_VALUE
from pyrula.workflows.store.batches import Due, EventBatch, Fed
from tests.conformance.batches.rig import Rig, memory_rig, valkey_rig
from tests.conformance.server import Server

NAMES = ["a", "b"]
WINDOWS = [Window(10, 1), Window(10, 2), Window(10, 3), Window(30, 5), Window(10), Window(10, None, 25)]

names = st.sampled_from(NAMES)
few = st.integers(0, 2)
owners = st.sampled_from(["", "", "ann"])
feeds = st.tuples(
    st.just("feed"),
    names,
    few,
    owners,
    st.sampled_from(WINDOWS),
    st.sampled_from([None, None, None, "e0", "e1", "e2", "e3"]),
    # a fifth of them so large that five don't fit
    st.sampled_from([0, 0, 0, 0, 250_000]),
    st.booleans(),
)
commands = st.one_of(
    feeds,
    feeds,
    feeds,
    st.tuples(st.just("again"), st.integers(0, 1 << 16)),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.2, 1.0, 5.0, 10.0, 30.0])),
    st.tuples(st.just("take"), names, st.integers(0, 5)),
    st.tuples(st.just("plan"), st.integers(0, 3), few),
    st.tuples(st.just("drop"), st.integers(0, 3)),
    st.tuples(st.just("forget"), st.integers(0, 1 << 16)),
)
plays = st.lists(commands, min_size=20, max_size=80)


class Both:
    """The two stores, and what a test has learned from them. A batch's id is its own in each store: its number here is
    that of its first meeting."""

    def __init__(self, one: Rig, two: Rig) -> None:
        self.rigs = one, two
        self.numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self.fed: list[TriggerEvent] = []
        self.taken: list[tuple[EventBatch, EventBatch]] = []
        self.in_order: dict[tuple[str, str, str], list[Any]] = {}
        self.in_batches: dict[tuple[str, str, str], list[Any]] = {}
        self.dropped: set[int] = set()
        self.serial = 0

    def number(self, which: int, batch_id: str) -> int:
        return self.numbers[which].setdefault(batch_id, len(self.numbers[which])) if batch_id else -1

    def plain(self, which: int, value: Any) -> Any:
        """Without what may differ."""
        if isinstance(value, EventBatch):
            number = self.number(which, value.id)
            buffer = value.buffer._replace(shard=0)
            return (
                number,
                buffer,
                value.key,
                value.params,
                value.count,
                value.reason,
                round(value.opened_at, 3),
                value.plan,
                value.owner,
            )
        if isinstance(value, Fed):
            return self.number(which, value.batch), value.run_id, self.plain(which, value.head)
        if isinstance(value, Due):
            return {buffer._replace(shard=0) for buffer in value.buffers}, value.next_due and round(value.next_due, 3)
        if isinstance(value, list):
            return [(one.key, one.owner, one.events, round(one.opened_at, 3), round(one.due_at, 3)) for one in value]
        return value

    async def each(self, call: Callable[[Rig, int], Awaitable[Any]]) -> list[Any]:
        answers = [await call(rig, which) for which, rig in enumerate(self.rigs)]
        assert self.plain(0, answers[0]) == self.plain(1, answers[1])
        return answers

    def keep(self, answers: list[Any]) -> None:
        """Batches that somebody has now."""
        one, two = answers
        if one is not None:
            self.taken = [*self.taken[-3:], (one, two)]

    async def feed(
        self, name: str, key: int, owner: str, window: Window, event_id: str | None, size: int, lasting: bool
    ) -> None:
        self.serial += 1
        value = [self.serial, "x" * size]
        own = event_id or f"own{self.serial}"
        again = lasting or event_id is not None
        event = TriggerEvent(name, f"k{key}", dumps(value), window, own, lasting=again, owner=owner)
        before = {(one.place, one.id) for one in self.fed}
        answers = await self.each(lambda rig, _: rig.store.feed(event))
        if (event.place, event.id) not in before:
            self.in_order.setdefault((event.name, event.key, event.owner), []).append(self.serial)
        self.fed.append(event)
        self.keep([fed.head for fed in answers])

    async def again(self, number: int) -> None:
        if self.fed:
            event = self.fed[number % len(self.fed)]
            answers = await self.each(lambda rig, _: rig.store.feed(event))
            self.keep([fed.head for fed in answers])

    async def advance(self, seconds: float) -> None:
        for rig in self.rigs:
            await rig.advance(seconds)

    async def take(self, name: str, number: int) -> None:
        dues = await self.each(lambda rig, _: rig.store.due_batches([name]))
        buffers = [sorted(due.buffers, key=lambda buffer: buffer.digest) for due in dues]
        if buffers[0]:
            place = number % len(buffers[0])
            self.keep(await self.each(lambda rig, which: rig.store.take_batch(buffers[which][place])))

    async def plan(self, number: int, plan: int) -> None:
        if self.taken:
            pair = self.taken[number % len(self.taken)]
            await self.each(lambda rig, which: rig.store.plan_batch(pair[which], b"plan%d" % plan))

    async def drop(self, number: int) -> None:
        if self.taken:
            await self.drop_pair(self.taken[number % len(self.taken)])

    async def drop_pair(self, pair: tuple[EventBatch, EventBatch]) -> tuple[EventBatch, EventBatch] | None:
        number = self.number(0, pair[0].id)
        if number not in self.dropped:
            # batches of a key come in order, so the first time it is dropped it is the head
            self.dropped.add(number)
            found = [event[0] for event in loads(pair[0].params)["events"]]
            assert len(pair[0].params) <= MAX_VALUE
            self.in_batches.setdefault((pair[0].buffer.name, pair[0].key, pair[0].owner), []).extend(found)
        answers = await self.each(lambda rig, which: rig.store.drop_batch(pair[which], f"run{number}"))
        self.keep(answers)
        return None if answers[0] is None else (answers[0], answers[1])

    async def forget(self, number: int) -> None:
        """As a client may that doesn't send it again: so that it doesn't, here."""
        own = [event for event in self.fed if event.id.startswith("own")]
        if own:
            event = own[number % len(own)]
            for rig in self.rigs:
                rig.store.forget_event(event)
            self.fed = [one for one in self.fed if one.id != event.id]

    async def compare(self) -> None:
        for name in NAMES:
            await self.each(lambda rig, _, name=name: rig.store.open_batches(name))
            await self.each(lambda rig, _, name=name: rig.store.due_batches([name]))

    async def finish(self) -> None:
        """All that was fed becomes runs."""
        for _ in range(500):
            await self.advance(30)
            dues = await self.each(lambda rig, _: rig.store.due_batches(NAMES))
            if not dues[0].buffers:
                break
            for name in NAMES:
                for place in range(6):
                    before = self.taken
                    await self.take(name, place)
                    pair = self.taken[-1] if self.taken is not before else None
                    while pair is not None:
                        pair = await self.drop_pair(pair)
        assert self.in_batches == self.in_order


@pytest.mark.parametrize("twice", [False, True], ids=["once", "each_script_twice"])
def test_both_stores_answer_random_events_alike(valkey: str, twice: bool) -> None:
    with asyncio.Runner() as runner:

        @settings(
            max_examples=int(os.environ.get("PYRULA_EXAMPLES", "25")),
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(plays)
        def play(steps: list[tuple[Any, ...]]) -> None:
            runner.run(_play(valkey, steps, twice))

        play()


def _send_twice(store: Any) -> None:
    """As if the first answer to each script had been lost. (A `take` whose answer is lost leaves it to others.)"""
    send = store._batch_script

    def script(name: str, *arguments: Any) -> Any:
        if name != "take":
            send(name, *arguments).add_done_callback(lambda answer: answer.exception())
        return send(name, *arguments)

    store._batch_script = script


async def _play(valkey: str, steps: list[tuple[Any, ...]], twice: bool) -> None:
    server = Server(valkey, f"n{uuid.uuid4().hex[:12]}")
    one, two = memory_rig(), valkey_rig(server)
    try:
        await one.open()
        await two.open()
        if twice:
            _send_twice(two.store)
        both = Both(one, two)
        for command, *arguments in steps:
            await getattr(both, command)(*arguments)
            await both.compare()
        await both.finish()
        tag = b"{%b:0}" % server.namespace.encode()
        left = {key for key in await server.keys() if not key.startswith(tag + b"ti:")}
        assert left <= {b"{%b}meta" % server.namespace.encode(), tag + b"meta"}
        assert one.store._board.batches._gathered == {}
    finally:
        await two.close()
        await server.clear()
        await server.close()
