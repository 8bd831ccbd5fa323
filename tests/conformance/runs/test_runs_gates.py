"""Limit and Rate, one rule a test; what goes wrong between several is for test_runs_gates_model.py."""

from typing import Any

import pytest

from pyrula.workflows.stamps import LimitStamp, RateStamp, Stamp
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.messages import Change, End, Lease, Message, Wait
from pyrula.workflows.store.registry import Enlisted, WorkerEntry
from pyrula.workflows.store.runs import ClaimedRun, RunStore
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.runs.rig import SERVED, Rig
from tests.conformance.server import Server

CANCEL = Message("cancel", "cancel")


def limited(key: str = "acme", most: int = 1) -> Stamp:
    return Stamp(limit=LimitStamp("tenant_id", key, most), place=(key,))


def rated(key: str = "acme", per_second: float = 0.001, burst: int = 1) -> Stamp:
    return Stamp(rate=RateStamp("tenant_id", key, per_second, burst), place=(key,))


async def take(store: RunStore, n: int = 10, worker: str = "w", served: Any = SERVED) -> list[ClaimedRun]:
    return list((await store.claim(worker, served, n)).runs)


async def test_no_more_than_max_of_a_key_and_others_beside_it(rig: Rig) -> None:
    first, second, third = [await rig.submit(stamp=limited(most=2)) for _ in range(3)]
    other = await rig.submit(stamp=limited("globex"))
    assert {run.lease.run_id for run in await take(rig.store)} == {first, second, other}
    await rig.nothing()
    assert await rig.store.status(third) == "queued"


@pytest.mark.parametrize("how", ["completed", "failed", "park", "pause", "release", "die", "leave", "cancelled"])
async def test_a_run_that_leaves_gives_its_slot_to_the_next(rig: Rig, how: str) -> None:
    first = await rig.started(stamp=limited(), priority=-1)
    second = await rig.submit(stamp=limited())
    await rig.nothing()
    if how == "park":
        await rig.store.park(first.lease, Change(1), [Wait("signal", "go")])
    elif how == "pause":
        await rig.store.pause(first.lease, Change(1), b'"why"')
    elif how == "release":
        await rig.store.release(first.lease, Change(1))
    elif how == "die":
        assert await rig.die() == 1
    elif how == "leave":
        await rig.store.leave("w")
    else:
        await rig.store.finish(first.lease, Change(1), End(how))  # type: ignore[arg-type]
    assert (await rig.claim()).lease.run_id == second
    await rig.nothing()


async def test_a_run_that_is_woken_takes_a_slot_again_ahead_of_fresh_ones(rig: Rig) -> None:
    parked = await rig.parked(Wait("signal", "go"), stamp=limited())
    second = await rig.started(stamp=limited())
    third = await rig.submit(stamp=limited())
    await rig.signal(parked)
    await rig.nothing()
    await rig.complete(second.lease)
    assert (await rig.claim()).lease.run_id == parked
    await rig.nothing()
    assert await rig.store.status(third) == "queued"


async def test_a_chain_keeps_its_slot(rig: Rig) -> None:
    first = await rig.started(stamp=limited())
    second = await rig.submit(stamp=limited())
    finished = await rig.store.finish(first.lease, Change(1), End("continued_as_new", params=b"{}", version="2"))
    assert finished.next is not None
    await rig.nothing()
    assert (await rig.store.outlook(second)).holders == (RunId.parse(first.lease.run_id).chain,)
    await rig.store.release(finished.next.lease)
    assert (await rig.claim()).lease.run_id == second
    await rig.nothing(served=[("cart", "2")])
    await rig.complete((await rig.store.claim("w", SERVED, 1), second)[1] and Lease(second, "w", 1))
    assert (await rig.claim(served=[("cart", "2")])).lease.run_id == f"{first.lease.run_id}~2"


async def test_a_slot_is_given_back_once(rig: Rig) -> None:
    first = await rig.started(stamp=limited())
    waiting = [await rig.submit(stamp=limited()) for _ in range(3)]
    await rig.complete(first.lease)
    await rig.complete(first.lease)
    await rig.store.deliver(first.lease.run_id, CANCEL)
    assert len(await take(rig.store)) == 1
    assert [await rig.store.status(run_id) for run_id in waiting].count("queued") == 2


async def test_a_cancel_in_the_queue_makes_no_room_and_leaves_none_blocked(rig: Rig) -> None:
    first = await rig.started(stamp=limited())
    second, third = [await rig.submit(stamp=limited()) for _ in range(2)]
    await rig.store.deliver(second, CANCEL)
    await rig.store.deliver(second, CANCEL)
    assert await rig.store.status(second) == "cancelled"
    await rig.nothing()
    await rig.complete(first.lease)
    assert (await rig.claim()).lease.run_id == third


async def test_a_retried_run_passes_its_gate_again(rig: Rig) -> None:
    first = await rig.started(stamp=limited())
    await rig.store.finish(first.lease, Change(1), End("failed", error=b'"bad"'))
    second = await rig.started(stamp=limited())
    await rig.store.retry(first.lease.run_id)
    await rig.nothing()
    await rig.complete(second.lease)
    assert (await rig.claim()).lease.run_id == first.lease.run_id


async def test_a_version_that_nobody_serves_holds_up_no_other(rig: Rig) -> None:
    first = await rig.started(stamp=limited())
    old = await rig.submit(stamp=limited(), version="0")
    new = await rig.submit(stamp=limited())
    await rig.complete(first.lease)
    assert (await rig.claim()).lease.run_id == new
    assert await rig.store.status(old) == "queued"


async def test_each_run_is_held_to_its_own_stamp(rig: Rig) -> None:
    """The decorator said max=1, then 3: what was queued before stays alone, what came later doesn't."""
    first = await rig.started(stamp=limited(most=1))
    old = await rig.submit(stamp=limited(most=1))
    new = [await rig.submit(stamp=limited(most=3)) for _ in range(3)]
    await rig.nothing()
    await rig.complete(first.lease)
    # the order inside a key is kept: the old one first, and beside it those that allow it
    taken = [run.lease.run_id for run in await take(rig.store)]
    assert taken == [old, *new[:2]]


@pytest.mark.parametrize("how", ["the head is cancelled", "another comes before it"])
async def test_whoever_becomes_first_at_a_gate_is_offered_what_there_is(rig: Rig, how: str) -> None:
    """Of one owner's waiting runs the first has max=1, and one behind it max=3, for which there is room."""
    await rig.started(stamp=limited(most=1))
    first = await rig.submit(stamp=limited(most=1))
    roomy = await rig.submit(stamp=limited(most=3))
    await rig.submit(stamp=limited(most=1))
    await rig.nothing()
    if how == "the head is cancelled":
        await rig.store.deliver(first, CANCEL)
    else:
        roomy = await rig.submit(stamp=limited(most=3), priority=1)
    assert (await rig.claim()).lease.run_id == roomy


async def test_a_burst_then_one_at_a_time(rig: Rig) -> None:
    for _ in range(4):
        await rig.submit(stamp=rated(burst=3))
    assert len(await take(rig.store)) == 3
    claims = await rig.store.claim("w", SERVED, 10)
    assert claims.runs == ()
    assert claims.next_due is not None
    assert 990 < claims.next_due - rig.store.now() < 1010
    assert await rig.store.next_due() == claims.next_due


async def test_a_token_is_paid_once_whatever_becomes_of_the_run(rig: Rig) -> None:
    parked = await rig.parked(Wait("signal", "go"), stamp=rated())
    await rig.submit(stamp=rated())
    await rig.nothing()
    await rig.signal(parked)
    again = await rig.claim()
    assert again.lease.run_id == parked
    assert await rig.die() == 1
    assert (await rig.claim()).lease.run_id == parked
    await rig.nothing()


async def test_both_gates_or_neither(rig: Rig) -> None:
    """A run that has no token takes no slot, and one that has no slot pays no token."""
    stamp = Stamp(LimitStamp("a", "x", 1), RateStamp("b", "y", 0.001, 2))
    first = await rig.started(stamp=stamp)
    second, third = [await rig.submit(stamp=stamp) for _ in range(2)]
    await rig.nothing()
    outlook = await rig.store.outlook(second)
    assert (outlook.gate, outlook.used, outlook.holders) == ("Limit", 1, (first.lease.run_id,))
    await rig.complete(first.lease)
    assert (await rig.claim()).lease.run_id == second
    await rig.complete(Lease(second, "w", 1))
    await rig.nothing()
    outlook = await rig.store.outlook(third)
    assert (outlook.gate, outlook.used) == ("Rate", 0)
    assert outlook.next_start is not None
    assert outlook.next_start > outlook.now + 990
    # its slot is there for whoever needs no token
    other = await rig.submit(stamp=Stamp(limit=stamp.limit))
    assert (await rig.claim()).lease.run_id == other


async def test_priority_orders_one_owners_runs(rig: Rig) -> None:
    roomy = limited(most=100)
    low, first, second, high = [await rig.submit(priority=priority, stamp=roomy) for priority in (-100, 0, 0, 100)]
    assert [run.lease.run_id for run in await take(rig.store)] == [high, first, second, low]


async def test_priority_orders_no_owners_and_counts_at_a_gate(rig: Rig) -> None:
    holder = await rig.started(stamp=limited(), owner="a")
    late, early = [await rig.submit(stamp=limited(), owner="a", priority=priority) for priority in (0, 50)]
    other = await rig.submit(stamp=limited(), owner="b", priority=-100)
    order = []
    lease = holder.lease
    for _ in range(3):
        await rig.complete(lease)
        lease = (await rig.claim()).lease
        order.append(lease.run_id)
    assert order == [early, other, late]


async def test_owners_take_turns_inside_a_gate(rig: Rig) -> None:
    holder = await rig.started(stamp=limited(), owner="big")
    big = [await rig.submit(stamp=limited(), owner="big") for _ in range(4)]
    small = await rig.submit(stamp=limited(), owner="small")
    order = []
    lease = holder.lease
    for _ in range(5):
        await rig.complete(lease)
        lease = (await rig.claim()).lease
        order.append(lease.run_id)
    assert order.index(small) <= 1
    assert [run_id for run_id in order if run_id != small] == big


async def test_what_stands_before_a_run(rig: Rig) -> None:
    holder = await rig.started(stamp=limited(), owner="a")
    one, two = [await rig.submit(stamp=limited(), owner="a") for _ in range(2)]
    other = await rig.submit(stamp=limited(), owner="b")
    outlook = await rig.store.outlook(two)
    assert (outlook.limit, outlook.rate) == (LimitStamp("tenant_id", "acme", 1), None)
    assert (outlook.gate, outlook.used, outlook.holders) == ("Limit", 1, (holder.lease.run_id,))
    assert (outlook.before, outlook.owners_before) == (1, 0)
    assert (await rig.store.outlook(one)).before == 0
    assert (await rig.store.outlook(other)).owners_before == 1
    running = await rig.store.outlook(holder.lease.run_id)
    assert running.since is not None
    assert running.gate is None
    ready = [await rig.submit(stamp=limited("globex", 100), owner="c") for _ in range(3)]
    assert (await rig.store.outlook(ready[2])).before == 2
    await rig.complete(holder.lease)
    assert (await rig.store.outlook(holder.lease.run_id)).since is None


async def test_the_register_of_workers(rig: Rig) -> None:
    served = (Enlisted("cart", "1", None, True), Enlisted("ship", "2", "orders", False))
    await rig.store.enlist("w1", served)
    await rig.other.enlist("w2", ())
    await rig.store.enlist("w1", served)
    assert await rig.other.enlisted() == [WorkerEntry("w1", served), WorkerEntry("w2", ())]
    await rig.store.strike("w2")
    assert await rig.other.enlisted() == [WorkerEntry("w1", served)]


async def test_idempotency_of_gated_runs(rig: Rig) -> None:
    made = [rig.submission(stamp=limited(key), idempotency_key="k") for key in ("x", "y")]
    first = await rig.store.submit(made[0])
    again = await rig.other.submit(made[1])
    assert (first.created, again.created) == (True, False)
    assert again.run_id == first.run_id
    assert len(await take(rig.store)) == 1


@pytest.fixture
async def stores(server: Server) -> Any:
    made = [ValkeyStore(server.url, namespace=server.namespace) for _ in range(2)]
    for store in made:
        await store.open()
    yield made
    for store in made:
        await store.close()


def far_apart(store: ValkeyStore) -> tuple[Stamp, str]:
    """A gate and an idempotency key whose shards differ."""
    for number in range(100):
        stamp, key = limited(f"t{number}"), f"k{number}"
        gated = RunId.parse(store.new_run_id(name="cart", stamp=stamp, idempotency_key=key)).shard
        if gated != RunId.parse(store.new_run_id(name="cart", idempotency_key=key)).shard:
            return stamp, key
    raise AssertionError("all keys lie on one shard")


async def test_runs_of_a_key_meet_on_its_shard(stores: list[ValkeyStore]) -> None:
    store = stores[0]
    ids = [store.new_run_id(name="cart", stamp=limited(), idempotency_key=f"k{number}") for number in range(20)]
    assert len({RunId.parse(run_id).shard for run_id in ids}) == 1
    two = [store.new_run_id(name="cart", stamp=Stamp(limited(str(n)).limit, rated("x").rate)) for n in range(20)]
    assert len({RunId.parse(run_id).shard for run_id in two}) == 1


async def test_an_idempotency_key_on_another_shard(stores: list[ValkeyStore], server: Server) -> None:
    store, other = stores
    rig = Rig(store, other)
    stamp, key = far_apart(store)
    submission = rig.submission(stamp=stamp, idempotency_key=key, params=b'{"n":1}')
    submission = type(submission)(
        store.new_run_id(name="cart", stamp=stamp), "cart", b'{"n":1}', "1", key, stamp=stamp, owner="o"
    )
    first = await store.submit(submission)
    assert (first.created, first.run_id) == (True, submission.run_id)
    repeat = type(submission)(
        store.new_run_id(name="cart", stamp=limited("else")), "cart", b'{"n":2}', "1", key, stamp=limited("else")
    )
    again = await other.submit(repeat)
    assert again == (first.run_id, False, False)
    (run,) = await take(store)
    assert (run.params, run.owner) == (b'{"n":1}', "o")
    await rig.complete(run.lease)
    # the entry lives on another shard, and goes with the run's retention all the same
    assert await server.keys_without_ttl() <= {
        key for key in await server.keys() if key.endswith((b"}meta", b"}list", b"}beat", b"}reply"))
    }
    assert (await other.submit(repeat)).run_id == first.run_id


async def test_a_submission_that_died_half_way_is_finished_by_its_repeat(
    stores: list[ValkeyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = stores
    stamp, key = far_apart(store)
    make = Rig(store, other).submission
    dead, alive = [make(stamp=stamp, idempotency_key=key, params=b'{"n":%d}' % number) for number in (1, 2)]
    dead, alive = [
        type(one)(store.new_run_id(name="cart", stamp=stamp), "cart", one.params, "1", key, stamp=stamp)
        for one in (dead, alive)
    ]

    async def die(*_: Any) -> None:
        raise ConnectionError("the process is gone")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_submit", die)
        with pytest.raises(ConnectionError):
            await store.submit(dead)
    again = await other.submit(alive)
    assert again == (dead.run_id, False, False)
    (run,) = await take(store)
    assert run.params == b'{"n":1}'


async def test_a_server_whose_clock_was_set_back_opens_no_gate_and_stops_none(rig: Rig, server: Server) -> None:
    """A failover to a server that is an hour behind: time goes on from where it was, slower."""
    store = rig.store
    if not isinstance(store, ValkeyStore) or store.shards != 1:
        pytest.skip("the clock of one server")
    for _ in range(3):
        await rig.submit(stamp=rated(per_second=20, burst=1))
    await rig.claim()
    meta = b"{%b:0}meta" % server.namespace.encode()
    seconds, micros = await server.call("TIME")
    ahead = (int(seconds) + 3600) * 1_000_000 + int(micros)
    rate = b"{%b:0}rate" % server.namespace.encode()
    (gate,) = await server.call("ZRANGE", rate, 0, -1)
    await server.call("HSET", meta, "now", ahead)
    await server.call("ZADD", rate, ahead + 50_000, gate)
    await server.call("ZADD", b"{%b:0}timer" % server.namespace.encode(), ahead + 50_000, b"g" + gate)
    await rig.nothing()
    started = []
    for _ in range(400):
        started += await take(store)
        if len(started) == 2:
            break
        claims = await store.claim("w", SERVED, 1)
        started += claims.runs
    seen = float(await server.call("HGET", meta, "now"))
    assert len(started) == 2
    assert ahead <= seen < ahead + 60_000_000
