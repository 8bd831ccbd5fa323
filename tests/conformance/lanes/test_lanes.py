"""The protocol of lanes, over the real stores: workers take records from a log, hand some over and take lanes home.

A small model of the group and its workers goes at random, as long lists of choices say: workers are assigned and crash,
answers are lost, copies of what was sent come late, runs that were handed over or queued behind such a one are
executed, cancelled, parked again, or were blocked by a failure and are retried. After each step nothing may be lost,
and at the end everything is brought home.
"""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyrula.kafka.record import record_identity, stream_digest
from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.store.lanes import HandingOver, Homecoming, LaneBounds, LaneState, LinedUp, LiningUp, lane_of
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.messages import Change, End, Message, Wait
from pyrula.workflows.store.port import Batch, Token
from pyrula.workflows.store.record_changes import RecordChange, RecordId
from pyrula.workflows.store.records import Registration
from pyrula.workflows.store.refusals import TransitionRefused
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.records.rig import Rig

WAIT = (Wait("signal", "go"),)
SERVED = [("@orders", "1")]
PLACE = ("default", "billing", "orders", 3)


def registered(below: int, worker: str = "w") -> Registration:
    return Registration(record_identity(*PLACE), f"k{stream_digest(*PLACE[:3])}-3", "cart", "1", worker, b"{}", below)


@dataclass
class World:
    """The log, what the group has committed, and what was done; `parks` says which records park when they run, `bound`
    how many may be queued behind a head."""

    keys: str
    parks: set[int]
    bound: int = 0
    committed: int = 0
    generation: int = 0
    done: dict[int, list[int]] = field(default_factory=dict)
    clock: Any = field(default_factory=lambda: itertools.count(1))
    handed: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)

    @property
    def bounds(self) -> LaneBounds:
        return LaneBounds(self.bound, 1 << 20, 1 << 20)

    def cancel(self, offset: int) -> None:
        self.cancelled.add(offset)
        self.done.setdefault(offset, []).append(next(self.clock))

    def complete(self, offset: int) -> None:
        key = self.keys[offset]
        for earlier in range(offset):
            if self.keys[earlier] == key:
                assert earlier in self.done, f"{key}{offset} completes before {key}{earlier}"
        self.done.setdefault(offset, []).append(next(self.clock))


class Worker:
    """An assignee. What it knows dies with it; what it has sent may arrive later."""

    def __init__(self, world: World, store: Any) -> None:
        self.world = world
        self.store = store
        self.late: list[Callable[[], Any]] = []
        self.assigned = False
        self.token = Token(1, 1)
        self.complete: set[int] = set()
        self.lanes: dict[str, LaneState] = {}
        self.generation = 0

    def id(self, offset: int) -> RecordId:
        shard = self.store.shard_of(record_identity(*PLACE))
        return RecordId(shard, registered(0).address, offset, self.token.incarnation)

    async def assign(self) -> None:
        world = self.world
        world.generation += 1
        self.generation = world.generation
        self.token = (await self.store.claim_source(record_identity(*PLACE), self.generation)).token
        await self.store.register_source(self.token, registered(world.committed))
        found = await self.store.lanes(record_identity(*PLACE), registered(0).address)
        self.lanes = {key: found[lane_of(key.encode())] for key in set(world.keys) if lane_of(key.encode()) in found}
        self.complete = set()
        self.assigned = True

    @property
    def current(self) -> bool:
        return self.assigned and self.generation == self.world.generation

    def heads(self) -> list[int]:
        """The first record of each key that isn't complete, as far as this worker knows."""
        heads: dict[str, int] = {}
        for offset in range(self.world.committed, len(self.world.keys)):
            key = self.world.keys[offset]
            lane = self.lanes.get(key)
            if lane is not None and offset <= lane.floor:
                self.complete.add(offset)
            if offset not in self.complete:
                heads.setdefault(key, offset)
        return list(heads.values())

    async def work(self, choice: int) -> None:
        """The next record of some key: at home it runs, and parks or completes; away, the store is asked."""
        heads = self.heads()
        if not heads or not self.current:
            return
        offset = heads[choice % len(heads)]
        key = self.world.keys[offset]
        lane = self.lanes.get(key)
        if lane is not None and lane.away and choice % 3:
            await self.line_up(offset, key, choice)
        elif lane is not None and lane.away:
            await self.ask(offset, key)
        elif offset in self.world.parks and choice % 13 > 3:  # a body may park this time and not the next
            await self.park(offset, key, choice)
        else:
            assert offset not in self.world.handed, f"{key}{offset} runs though it was handed over"
            self.world.complete(offset)
            self.complete.add(offset)

    async def ask(self, offset: int, key: str) -> None:
        try:
            asked = [(lane_of(key.encode()), offset)]
            (answer,) = await self.store.come_home(registered(0), self.token, asked, self.world.bounds)
        except LeaseLost:
            self.assigned = False
            return
        if answer.where == "taken":
            self.complete.add(offset)
        elif answer.where == "home":
            self.lanes[key] = self.lanes[key]._replace(away=False)

    async def line_up(self, offset: int, key: str, choice: int) -> None:
        """Up to three records of the key, from this one on. Nothing later of the key is sent before the answer."""
        world, token = self.world, self.token
        offsets = [
            each for each in range(offset, len(world.keys)) if world.keys[each] == key and each not in self.complete
        ]
        offsets = offsets[: 1 + choice % 3]
        sent = [LiningUp(lane_of(key.encode()), [(self.id(each), b"{}") for each in offsets])]

        async def send() -> LinedUp | None:
            try:
                (answer,) = await self.store.line_up(registered(0), token, "@orders", sent, world.bounds)
            except LeaseLost:
                return None
            assert isinstance(answer, LinedUp)
            return answer

        if choice % 5 == 0:
            self.late.append(send)  # a copy that comes later
        if choice % 7 == 0:
            self.late.append(send)  # it is on its way when its sender dies
            self.assigned = False
            return
        answer = await send()
        if choice % 11 == 0:
            answer = await send()  # the answer was lost: it is sent again
        if answer is None:
            self.assigned = False
            return
        for each in offsets[: answer.taken]:
            world.handed.add(each)
            self.complete.add(each)
        if answer.rest == "home":
            self.lanes[key] = self.lanes[key]._replace(away=False)

    async def park(self, offset: int, key: str, choice: int) -> None:
        world, token = self.world, self.token
        change = RecordChange(self.id(offset), f"{id(self)}{self.generation}", 1, RunStatus.SIGNAL_WAITING, WAIT)
        batch = Batch(record_identity(*PLACE), token, (), offset, None, change)
        (refused,) = await self.store.append_rows([batch])
        if refused is not None:
            self.assigned = False
            return
        failure = b'{"type":"","message":"no"}' if choice % 17 == 0 else None
        waits = WAIT if failure is None else ()
        run = HandingOver(self.id(offset), lane_of(key.encode()), "@orders", b"{}", 1, 0, waits, [(0, b"row")], failure)

        async def send() -> bool:
            try:
                return bool((await self.store.hand_over(registered(0), token, run)).taken)
            except LeaseLost:
                return False

        if choice % 5 == 0:
            self.late.append(send)  # a copy that comes later
        if choice % 7 == 0:
            self.late.append(send)  # it is on its way when its sender dies
            self.assigned = False
            return
        taken = await send()
        if choice % 11 == 0:
            taken = await send()  # the answer was lost: it is sent again
        if not taken:
            self.assigned = False
            return
        world.handed.add(offset)
        self.lanes[key] = LaneState(offset, True)
        self.complete.add(offset)

    async def commit(self) -> None:
        if not self.current:
            return
        self.heads()
        upto = self.world.committed
        while upto in self.complete:
            upto += 1
        self.world.committed = upto
        try:
            await self.store.prune_source(record_identity(*PLACE), self.token, upto, None)
            await self.store.pass_records(registered(0), self.token, upto, list(range(upto)))
        except LeaseLost:
            self.assigned = False


class Model:
    """A world with two workers and one executor of what was handed over."""

    def __init__(self, keys: str, parks: set[int], bound: int, stores: list[Any]) -> None:
        self.world = World(keys, parks, bound)
        self.workers = [Worker(self.world, store) for store in stores]
        self.store = stores[0]
        self.late: list[Callable[[], Any]] = []

    async def step(self, choice: int) -> None:
        action, choice = choice % 10, choice // 10
        worker = self.workers[choice % 2]
        if action == 0:
            await worker.assign()
        elif action == 1:
            self.late += worker.late
            self.workers[choice % 2] = Worker(self.world, worker.store)
        elif action == 2 and (late := [*self.late, *worker.late]):
            await late[choice % len(late)]()
        elif action == 3:
            await worker.commit()
        elif action in (4, 5):
            await self.execute(choice)
        else:
            await worker.work(choice)
        await self.check()

    async def execute(self, choice: int) -> None:
        """One of the runs in the store goes on: it gets what it waits for, or is cancelled, and ends or parks again."""
        offsets = sorted(await self.handed())
        if not offsets:
            return
        offset = offsets[choice // 12 % len(offsets)]
        run_id = str(self.workers[0].id(offset))
        if choice % 3 == 0:
            delivered = await self.store.deliver(run_id, Message("cancel", "cancel"))
            if delivered.status in TERMINAL:
                self.world.cancel(offset)
        else:
            await self.store.deliver(run_id, Message("signal", f"s{next(self.world.clock)}", "go"))
            with suppress(TransitionRefused):  # unless it is blocked
                await self.store.retry(run_id)
        claims = await self.store.claim("x", SERVED, 1)
        for claimed in claims.runs:
            offset = int(claimed.lease.run_id.rsplit("-", 1)[1])
            assert claimed.rows in (((0, b"row"),), ())
            change = Change(1, consumed=[unread.number for unread in claimed.messages])
            if choice % 4 == 0:
                await self.store.park(claimed.lease, change, WAIT)
                continue
            self.world.complete(offset)
            await self.store.finish(claimed.lease, change, End("completed"))

    async def handed(self) -> set[int]:
        """Those that the store has and that haven't ended."""
        found = set()
        for offset in range(len(self.world.keys)):
            run_id = str(self.workers[0].id(offset))
            events = await self.store.events_of(run_id, 0)
            over = any(b'"handed_over"' in event or b'"lined_up"' in event for event in events)
            if over and await self.store.status(run_id) not in TERMINAL:
                found.add(offset)
        return found

    async def check(self) -> None:
        """What counts as complete was completed, or the store has it, and no more is queued than may be."""
        world = self.world
        lanes = await self.store.lanes(record_identity(*PLACE), registered(0).address)
        assert all(lane.queued <= world.bound and (lane.away or not lane.queued) for lane in lanes.values())
        live = None
        for offset in range(world.committed):
            if offset not in world.done:
                live = await self.handed() if live is None else live
                assert offset in live, f"{world.keys[offset]}{offset} is lost"

    async def bring_home(self) -> None:
        """No more faults: everything ends, and every lane comes home."""
        worker = self.workers[0]
        for late in [*self.late, *self.workers[0].late, *self.workers[1].late]:
            await late()
        for _ in range(200):
            if not worker.current:
                await worker.assign()
            for choice in (1, 2, 3):
                await worker.work(choice)
            await self.execute(1)
            await worker.commit()
            await self.check()
            if self.world.committed == len(self.world.keys) and not await self.handed():
                break
        assert self.world.committed == len(self.world.keys)
        assert sorted(self.world.done) == list(range(len(self.world.keys)))
        last = {offset: times[-1] for offset, times in self.world.done.items()}
        for offset, key in enumerate(self.world.keys):
            for earlier in range(offset):
                if self.world.keys[earlier] == key and not {earlier, offset} & self.world.cancelled:
                    assert last[earlier] < last[offset], f"the last word of {key} is not its last record's"
        await worker.assign()
        assert not any(lane.away or lane.queued or lane.size for lane in worker.lanes.values())


async def play(stores: list[Any], keys: str, parks: set[int], bound: int, choices: list[int]) -> None:
    for store in stores:
        await store.open()
    try:
        model = Model(keys, parks, bound, stores)
        await model.workers[0].assign()
        for choice in choices:
            await model.step(choice)
        await model.bring_home()
    finally:
        for store in stores:
            await store.close()


LOGS = st.text("ab", min_size=2, max_size=6)
PARKS = st.sets(st.integers(0, 5), max_size=4)
BOUNDS = st.integers(0, 3)
CHOICES = st.lists(st.integers(0, 100_000), max_size=60)


@settings(max_examples=150, deadline=None)
@given(keys=LOGS, parks=PARKS, bound=BOUNDS, choices=CHOICES)
def test_lanes_in_memory(keys: str, parks: set[int], bound: int, choices: list[int]) -> None:
    first = MemoryStore()
    asyncio.run(play([first, first.twin()], keys, parks, bound, choices))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=LOGS, parks=PARKS, bound=BOUNDS, choices=CHOICES)
def test_lanes_on_a_server(
    valkey: str, namespace: str, keys: str, parks: set[int], bound: int, choices: list[int]
) -> None:
    unique = f"{namespace}-{next(counter)}"
    stores = [ValkeyStore(valkey, namespace=unique, shards=1) for _ in range(2)]
    asyncio.run(play(stores, keys, parks, bound, choices))


counter = itertools.count()


async def test_a_lane_goes_and_comes_home(rig: Rig) -> None:
    lane = lane_of(b"a")
    await rig.change(3, 1, status=RunStatus.SIGNAL_WAITING, waits=WAIT, rows=[(0, b"row")])
    run = HandingOver(rig.id(3), lane, "@orders", b'{"value":1}', 2, 0, WAIT, [(0, b"row")])
    assert (await rig.store.hand_over(rig.registration, rig.token, run)).taken
    assert await rig.store.lanes(record_identity(*PLACE), rig.registration.address) == {
        lane: LaneState(3, True, str(rig.id(3)))
    }
    asked = [(lane, 3), (lane, 4), (lane_of(b"b"), 1)]
    answers = await rig.store.come_home(rig.registration, rig.token, asked)
    assert [answer.where for answer in answers] == ["taken", "full", "home"]
    assert await rig.other.status(str(rig.id(3))) == RunStatus.SIGNAL_WAITING
    detail = await rig.other.detail(str(rig.id(3)))
    assert (detail.name, detail.attempt, detail.params) == ("cart", 2, b'{"value":1}')
    await rig.signal(3)
    (claimed,) = (await rig.other.claim("x", SERVED, 5)).runs
    assert (claimed.rows, claimed.params, claimed.attempt) == (((0, b"row"),), b'{"value":1}', 2)
    assert await rig.rows(rig.store, 1) == []
    rig.token = (await rig.store.claim_source(record_identity(*PLACE), 1)).token
    await rig.other.finish(claimed.lease, Change(1), End("completed", b"7"))
    assert await rig.store.come_home(rig.registration, rig.token, [(lane, 4)]) == [Homecoming("home")]
    assert (await rig.other.result(str(rig.id(3)))).value == b"7"
    await rig.store.prune_source(record_identity(*PLACE), rig.token, 4, None)
    assert await rig.store.pass_records(rig.registration, rig.token, 4, [3]) == [lane]
    assert await rig.store.lanes(record_identity(*PLACE), rig.registration.address) == {}
    assert (await rig.other.result(str(rig.id(3)))).value == b"7"


async def test_what_came_in_between_is_read_first(rig: Rig) -> None:
    await rig.change(3, 1, status=RunStatus.SIGNAL_WAITING, waits=WAIT)
    await rig.signal(3)
    run = HandingOver(rig.id(3), None, "@orders", b"{}", 1, 0, WAIT, [])
    answer = await rig.store.hand_over(rig.registration, rig.token, run)
    assert (answer.taken, [unread.number for unread in answer.messages]) == (False, [1])
    assert await rig.other.status(str(rig.id(3))) == RunStatus.SIGNAL_WAITING


async def test_only_the_holder_of_a_source_moves_its_lanes(rig: Rig) -> None:
    await rig.change(3, 1, status=RunStatus.SIGNAL_WAITING, waits=WAIT)
    old = rig.token
    await rig.claim(rig.other, 2)
    run = HandingOver(rig.id(3), lane_of(b"a"), "@orders", b"{}", 1, 0, WAIT, [])
    with pytest.raises(LeaseLost):
        await rig.store.hand_over(rig.registration, old, run)
    with pytest.raises(LeaseLost):
        await rig.store.come_home(rig.registration, old, [(lane_of(b"a"), 4)])


async def test_a_record_without_a_lane_leaves_a_mark(rig: Rig) -> None:
    await rig.change(3, 1, status=RunStatus.SIGNAL_WAITING, waits=WAIT)
    run = HandingOver(rig.id(3), None, "@orders", b"{}", 1, 0, WAIT, [])
    assert (await rig.store.hand_over(rig.registration, rig.token, run)).taken
    assert (await rig.store.hand_over(rig.registration, rig.token, run)).taken
    assert await rig.claim(rig.other, 2) == {3: -2}
    assert await rig.store.lanes(record_identity(*PLACE), rig.registration.address) == {}
