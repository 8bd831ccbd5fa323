"""Random commands on both stores at once: each answer, each refusal and the state of every run must be the same."""

import asyncio
import dataclasses
import os
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pyrula.workflows.errors import PyrulaError
from pyrula.workflows.store.events import decode_event
from pyrula.workflows.store.ids import RunId, new_run_id
from pyrula.workflows.store.lifecycle import PARKED, TERMINAL, TRANSITIONS, RunStatus
from pyrula.workflows.store.listing import Counts, Line, Wanted
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.messages import (
    Applied,
    Change,
    Child,
    Delivered,
    End,
    Interrupt,
    Lease,
    Message,
    Parent,
    Unread,
    Wait,
)
from pyrula.workflows.store.runs import Query, RunStore, Schedule, Submission, Suspect
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.server import ClusterServer, Server

# Of each way to play, in parts that the processes of a run share.
EXAMPLES, PARTS = int(os.environ.get("PYRULA_EXAMPLES", "25")), 5
WORKERS = ["w1", "w2", "w3"]
SERVED = [("a", "1"), ("a", "2"), ("b", "1")]
KINDS = ["signal", "update", "resume", "cancel", "child", "pause"]

few = st.integers(0, 3)
maybe = st.booleans()


@st.composite
def waits(draw: st.DrawFn) -> list[Wait]:
    kinds = draw(st.lists(st.sampled_from(["sleep", "signal", "interrupt", "child", "retry"]), min_size=1, max_size=3))
    return [Wait(kind, f"n{draw(few)}", draw(st.sampled_from([None, None, 1.0, 4e9, 4e9 + 1]))) for kind in kinds]


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(KINDS))
    fixed = {"cancel": "cancel", "pause": "pause"}.get(kind)
    name = draw(st.sampled_from(["", "i0", "i1", "n0", "n1"])) if fixed is None else ""
    return Message(kind, fixed or f"m{draw(few)}", name, b"%d" % draw(few))


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """A change without its number; children are places in the list of runs."""
    numbers = st.lists(st.integers(1, 6), max_size=3, unique=True)
    outcomes = st.sampled_from(["ok", "error", "rejected"])
    return {
        "rows": draw(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([b"", b"x", b"y"])), max_size=3)),
        "consumed": draw(numbers),
        "applied": [Applied(f"m{draw(few)}", draw(outcomes), b"1")] if draw(maybe) else [],
        "opened": [Interrupt(f"i{draw(few) % 2}", b"2")] if draw(maybe) else [],
        "closed": ["i0"] if draw(few) == 0 else [],
        "seen": draw(st.integers(0, 4)),
        "attempt": draw(st.sampled_from([None, None, 7])),
        "alone": draw(few) == 0,
    }


numbering = st.sampled_from(["next", "next", "next", "next", "same", "gap"])
place = st.integers(0, 1 << 16)
submits = st.tuples(
    st.just("submit"),
    st.sampled_from(["a", "a", "b"]),
    st.sampled_from([None, "1", "1", "2"]),
    few,
    st.sampled_from([None, None, None, "k1", "k2"]),
    st.none() | place,
    st.none() | messages(),
)
claims = st.tuples(st.just("claim"), st.sampled_from(WORKERS), st.sampled_from([7, 7, 7, 1, 2, 4]), st.integers(1, 3))
ends = st.sampled_from(["completed", "failed", "cancelled", "continued_as_new"])
common = [
    claims,
    claims,
    st.tuples(st.just("deliver"), place, st.just(0), messages()),
    st.tuples(st.just("deliver"), place, few, messages()),
    st.tuples(st.just("append"), place, numbering, changes(), st.none() | st.tuples(place, maybe)),
    st.tuples(st.just("append"), place, numbering, changes(), st.none() | st.tuples(place, maybe)),
    st.tuples(st.just("park"), place, numbering, changes(), waits()),
    st.tuples(st.just("park"), place, numbering, changes(), waits()),
    st.tuples(st.just("leave"), place, numbering, changes(), st.sampled_from(["pause", "release"])),
    st.tuples(st.just("finish"), place, numbering, changes(), ends),
    st.tuples(st.just("verb"), place, st.sampled_from(["unpause", "retry"])),
    st.tuples(st.just("reap"), st.sampled_from(WORKERS)),
]
rare = [
    submits,
    st.tuples(st.just("again"), place),
    st.tuples(st.just("beat"), st.sampled_from(WORKERS), st.integers(0, 15)),
    st.tuples(st.just("go"), st.sampled_from(WORKERS)),
    st.tuples(st.just("ask"), place),
    st.tuples(st.just("questions"), st.sampled_from(WORKERS), st.integers(1, 7)),
    st.tuples(st.just("schedule"), few, st.none() | few, st.sampled_from([None, 1.0, 4e9]), maybe),
]
plays = st.tuples(
    st.lists(submits, min_size=1, max_size=5),
    st.lists(claims, max_size=2),
    st.lists(st.one_of(*common * 2, *rare), min_size=20, max_size=60),
).map(lambda parts: parts[0] + parts[1] + parts[2])


def plain(value: Any) -> Any:
    """Without what may differ: times, and whether a message was there before (it was, if its sending was repeated)."""
    if isinstance(value, Delivered):
        value = value._replace(duplicate=False)
    if isinstance(value, Unread):
        return (value.number, value.message)
    if isinstance(value, Line):
        return [*value[:6], value.finished_at is None, value.worker]
    if isinstance(value, Counts):
        return [dict(value.by_status), value.queued_since is None]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        for name in ("created_at", "finished_at"):
            if fields.get(name) is not None:
                fields[name] = "some time"
        return fields
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    return value


LISTINGS = [
    Wanted(),
    Wanted(limit=2),
    Wanted(name="a"),
    Wanted(name="a", limit=1),
    Wanted(statuses=frozenset({RunStatus.QUEUED})),
    Wanted(name="b", statuses=frozenset({RunStatus.QUEUED, RunStatus.RUNNING})),
    Wanted(statuses=TERMINAL, limit=2),
    Wanted(statuses=PARKED, owner="owner1"),
    Wanted(name="a", owner="owner0", limit=1),
    Wanted(owner=""),
    Wanted(since=1.7e9 + 2, limit=1),
]


class Both:
    """The two stores, and what a test has learned from them."""

    def __init__(self, one: RunStore, two: RunStore) -> None:
        self.stores = (one, two)
        self.submissions: list[Submission] = []
        self.leases: list[tuple[Lease, list[int]]] = []
        self.statuses: dict[str, RunStatus] = {}
        self.ended: dict[str, Any] = {}
        self.step_by_step = True
        self.steps = 0

    async def each(self, call: Callable[[RunStore], Awaitable[Any]]) -> Any:
        answers = []
        for store in self.stores:
            try:
                answers.append(("answer", await call(store)))
            except (PyrulaError, ValueError) as error:
                answers.append(("error", f"{type(error).__name__}: {error}"))
        assert plain(answers[0]) == plain(answers[1])
        kind, value = answers[0]
        return value if kind == "answer" else None

    async def do(self, command: tuple[Any, ...]) -> None:
        kind, *arguments = command
        await getattr(self, kind)(*arguments)
        await self.compare()

    def run_at(self, number: int) -> str | None:
        return self.submissions[number % len(self.submissions)].run_id if self.submissions else None

    async def submit(
        self,
        name: str,
        version: str | None,
        owner: int,
        key: str | None,
        parent: int | None,
        message: Message | None,
    ) -> None:
        run_id = new_run_id(0, 1.7e9 + len(self.submissions), len(self.submissions))
        above = None if parent is None else self.run_at(parent)
        submission = Submission(
            run_id,
            name,
            b'{"o":%d}' % owner,
            version,
            key,
            f"owner{owner}",
            parent=None if above is None else Parent(above, f"n{owner}"),
            message=message if message is not None and message.kind in ("signal", "update") else None,
        )
        self.submissions.append(submission)
        await self.each(lambda store: store.submit(submission))

    async def again(self, number: int) -> None:
        if self.submissions:
            submission = self.submissions[number % len(self.submissions)]
            await self.each(lambda store: store.submit(submission))

    async def claim(self, worker: str, served: int, n: int) -> None:
        pairs = [pair for place, pair in enumerate(SERVED) if served >> place & 1]
        claims = await self.each(lambda store: store.claim(worker, pairs, n))
        for run in claims.runs:
            self.leases.append((run.lease, [0]))

    async def deliver(self, number: int, link: int, message: Message) -> None:
        run_id = self.run_at(number)
        if run_id is not None:
            target = run_id if link == 0 else f"{run_id}~{link + 1}"
            await self.each(lambda store: store.deliver(target, message))

    def change(self, number: int, numbering: str, fields: dict[str, Any]) -> tuple[Lease, Change] | None:
        if not self.leases:
            return None
        # mostly one that holds, if the number is even; else any of the late ones, which another may have replaced
        late = self.leases[-8:]
        if number % 2 == 0:
            newest = {RunId.parse(lease.run_id).chain: (lease, counter) for lease, counter in self.leases}
            late = list(newest.values())
        lease, counter = late[number // 2 % len(late)]
        if numbering == "next":
            counter[0] += 1
        return lease, Change(counter[0] + (numbering == "gap"), **fields)

    async def append(self, number: int, numbering: str, fields: dict[str, Any], child: tuple[int, bool] | None) -> None:
        made = self.change(number, numbering, fields)
        if made is None:
            return
        lease, change = made
        if child is not None and (run_id := self.run_at(child[0])) is not None:
            change = dataclasses.replace(change, children=[Child(run_id, "cancel" if child[1] else "abandon")])
        await self.each(lambda store: store.append(lease, change))
        await self.each(lambda store: store.unread(lease, change.seen))

    async def park(self, number: int, numbering: str, fields: dict[str, Any], waiting: list[Wait]) -> None:
        made = self.change(number, numbering, fields)
        if made is not None:
            lease, change = made
            await self.each(lambda store: store.park(lease, change, waiting))

    async def leave(self, number: int, numbering: str, fields: dict[str, Any], how: str) -> None:
        made = self.change(number, numbering, fields)
        if made is None:
            return
        lease, change = made
        if how == "pause":
            await self.each(lambda store: store.pause(lease, change, b'"why"'))
        else:
            await self.each(lambda store: store.release(lease, change))

    async def finish(self, number: int, numbering: str, fields: dict[str, Any], status: Any) -> None:
        made = self.change(number, numbering, fields)
        if made is None:
            return
        lease, change = made
        error = b'"bad"' if status == "failed" else None
        end = End(status, b"5", error, b'{"p":1}', "2" if change.alone else None)
        finished = await self.each(lambda store: store.finish(lease, change, end))
        if finished is not None and finished.next is not None:
            self.leases.append((finished.next.lease, [0]))

    async def verb(self, number: int, verb: str) -> None:
        run_id = self.run_at(number)
        if run_id is not None:
            if verb == "retry":
                self.ended.pop(run_id, None)
            await self.each(lambda store: getattr(store, verb)(run_id))

    async def beat(self, worker: str, chosen: int) -> None:
        mine = [lease for lease, _ in self.leases if lease.worker == worker]
        held = {lease: place % 3 for place, lease in enumerate(mine[-4:]) if chosen >> place & 1}
        await self.each(lambda store: store.heartbeat(worker, held))

    async def reap(self, worker: str) -> None:
        async def reap(store: RunStore) -> tuple[int, int]:
            found = [suspect for suspect in await store.beats() if suspect.worker == worker]
            stale = [await store.reap(Suspect(0, worker, suspect.counter - 1)) for suspect in found]
            return sum(stale), sum([await store.reap(suspect) for suspect in found])

        await self.each(reap)

    async def go(self, worker: str) -> None:
        await self.each(lambda store: store.leave(worker))

    async def ask(self, number: int) -> None:
        run_id = self.run_at(number)
        if run_id is not None:
            query = Query(f"q{number}", run_id, "name", b"[]")
            await self.each(lambda store: store.ask(run_id, query, seconds=1000))

    async def questions(self, worker: str, served: int) -> None:
        pairs = [pair for place, pair in enumerate(SERVED) if served >> place & 1]

        async def take(store: RunStore) -> list[Query]:
            return sorted(await store.questions(worker, pairs, 100))

        for query in await self.each(take) or ():
            await self.each(lambda store, query=query: store.answer(query, b"42"))
            await self.each(lambda store, query=query: store.read_answer(query))

    async def schedule(self, number: int, expected: int | None, due: float | None, paused: bool) -> None:
        plan = Schedule(f"s{number}", "a", b'{"x":1}', due, paused)
        await self.each(lambda store: store.put_schedule(plan, expected=expected))
        await self.each(lambda store: store.schedules())
        await self.each(lambda store: store.due_schedules())

    async def compare(self) -> None:
        await self.each(lambda store: store.next_due())
        await self.each(self.workers)
        self.steps += 1
        await self.listings(LISTINGS[self.steps % len(LISTINGS)])
        for submission in self.submissions:
            run_id = submission.run_id
            detail = await self.each(lambda store, run_id=run_id: store.detail(run_id))
            await self.each(lambda store, run_id=run_id: store.history(run_id))
            await self.each(lambda store, run_id=run_id: self.happened(store, run_id))
            for update in ("m0", "m1", "m2", "m3"):
                await self.each(lambda store, args=(run_id, update): store.read_update(*args))
            if detail is not None:
                await self.check(run_id, detail)

    async def check(self, run_id: str, detail: Any) -> None:
        assert (detail.worker is not None) == (detail.status is RunStatus.RUNNING)
        before = self.statuses.get(run_id, RunStatus.QUEUED)
        if not self.step_by_step:
            return
        # a command may make two steps, such as a park with a deadline that has passed
        reachable = TRANSITIONS[before] | {step for middle in TRANSITIONS[before] for step in TRANSITIONS[middle]}
        assert detail.status in reachable | {before}
        self.statuses[run_id] = detail.status
        result = await self.each(lambda store: store.result(run_id))
        assert (result is not None) == (detail.status in TERMINAL)
        if result is not None:
            assert self.ended.setdefault(run_id, result) == result

    async def listings(self, wanted: Wanted) -> None:
        for name in ("a", "b", "nobody", None):
            await self.each(lambda store, name=name: store.count_runs(name))
        for _ in range(1 + len(self.submissions) // wanted.limit):
            page = await self.each(lambda store, wanted=wanted: store.list_runs(wanted))
            if page.after is None:
                return
            wanted = dataclasses.replace(wanted, after=page.after)
        raise AssertionError("more pages than runs")

    async def workers(self, store: RunStore) -> list[str]:
        return sorted(suspect.worker for suspect in await store.beats())

    async def happened(self, store: RunStore, run_id: str) -> list[Any]:
        return [(event.type, event.data) for event in map(decode_event, await store.events(run_id))]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("how", ["once", "each_script_twice", "on_a_cluster"])
def test_both_stores_answer_random_commands_alike(how: str, part: int, request: pytest.FixtureRequest) -> None:
    twice = how == "each_script_twice"
    if how == "on_a_cluster":
        url, kind = request.getfixturevalue("cluster").url, ClusterServer
    else:
        url, kind = request.getfixturevalue("valkey"), Server
    with asyncio.Runner() as runner:
        # shrinking takes minutes: the last command of the failing case says most
        @settings(
            max_examples=EXAMPLES // PARTS,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(plays)
        def play(steps: list[tuple[Any, ...]]) -> None:
            runner.run(_play(kind, url, steps, twice))

        play()


def _send_twice(store: ValkeyStore) -> None:
    """As if the first answer to each script had been lost. (An answer to `questions` is a question lost: its asker asks
    again. `reap` tells how many there were the first time.)"""
    send = store._runs.script

    def script(name: str, *arguments: Any) -> Any:
        if name not in ("questions", "reap"):
            send(name, *arguments).add_done_callback(lambda answer: answer.exception())
        return send(name, *arguments)

    store._runs.script = script


async def _play(kind: type[Server], url: str, steps: list[tuple[Any, ...]], twice: bool) -> None:
    namespace = f"n{uuid.uuid4().hex[:12]}"
    server = kind(url, namespace)
    store = ValkeyStore(url, namespace=namespace, shards=1)
    try:
        await store.open()
        if twice:
            _send_twice(store)
        both = Both(MemoryStore(), store)
        for step in steps:
            await both.do(step)
        await _nothing_left(both, server)
    finally:
        await store.close()
        await server.clear()
        await server.close()


async def _nothing_left(both: Both, server: Server) -> None:
    """When all runs have ended and all workers left, nothing lasts but counters and schedules."""
    both.step_by_step = False
    served = [*SERVED, ("b", "2")]  # a version that a run may have continued as
    for worker in WORKERS:
        await both.go(worker)
    for _ in range(400):
        claims = await both.each(lambda store: store.claim("last", served, 50))
        if not claims.runs:
            for submission in both.submissions:
                run_id = submission.run_id
                await both.each(lambda store, run_id=run_id: store.deliver(run_id, Message("cancel", "cancel")))
                await both.each(lambda store, run_id=run_id: store.unpause(run_id))
                await both.each(lambda store, run_id=run_id: store.deliver(run_id, Message("update", "last")))
            claims = await both.each(lambda store: store.claim("last", served, 50))
        if not claims.runs:
            break
        for run in claims.runs:
            await both.each(lambda store, run=run: store.finish(run.lease, Change(1), End("completed")))
    await both.go("last")
    await both.compare()
    for wanted in LISTINGS:
        await both.listings(wanted)
    tag = b"{%b:0}" % server.namespace.encode()
    lasting = await server.keys_without_ttl() - {b"{%b}meta" % server.namespace.encode()}
    assert lasting <= {tag + name for name in (b"meta", b"list", b"schedules", b"schedules_due")}
    # of each run: an entry of all, its place, when it goes, and its owner
    assert await server.call("ZCARD", tag + b"list") == 4 * len((await both.stores[0].list_runs(Wanted())).runs)
