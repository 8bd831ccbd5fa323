"""Events become batches, each once and in order; a batch is made a run by whoever is left to do it."""

import asyncio

import pytest

from pyrula.workflows.batching import TriggerEvent, Window
from pyrula.workflows.model import MAX_VALUE
from pyrula.workflows.store.batches import LEASE_SECONDS, OWN_ID_SECONDS, Due, Fed, OpenBatch
from pyrula.workflows.store.runs import RETENTION_SECONDS
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.batches.rig import COLLECT, DEBOUNCE, START, Rig, events, memory_rig
from tests.conformance.server import Server


async def test_the_event_that_fills_a_batch_seals_it(rig: Rig) -> None:
    assert [await rig.feed(value) for value in range(2)] == [Fed(), Fed()]
    fed = await rig.feed(2)
    assert fed.batch
    assert fed.run_id == ""
    assert fed.head is not None
    assert (fed.head.id, fed.head.key, fed.head.count, fed.head.reason) == (fed.batch, "k", 3, "max_events")
    assert fed.head.opened_at == START
    assert events(fed.head) == [0, 1, 2]
    assert await rig.dropped(fed.head) is None
    assert await rig.feed(3) == Fed()


async def test_one_event_may_be_a_batch(rig: Rig) -> None:
    for value in range(3):
        fed = await rig.feed(value, window=Window(10, 1))
        assert events(fed.head) == [value]
        assert await rig.dropped(fed.head) is None


async def test_batches_of_a_key_are_handed_out_oldest_first(rig: Rig) -> None:
    fed = [await rig.feed(value) for value in range(7)]
    first = fed[2].head
    # whoever fills the second gets the first one, too: it is not a run yet
    assert fed[5].head == first
    second = await rig.dropped(first)
    assert events(second) == [3, 4, 5]
    assert await rig.dropped(second) is None
    assert await rig.store.open_batches("digest") == [OpenBatch("k", 1, START, START + 10)]


async def test_what_was_dropped_by_another_is_not_dropped_twice(rig: Rig) -> None:
    for value in range(6):
        fed = await rig.feed(value)
    first = fed.head
    assert first is not None
    second = await rig.other.drop_batch(first, "r1")
    assert events(second) == [3, 4, 5]
    assert await rig.dropped(first, "r2") == second
    assert await rig.store.plan_batch(first, b"late") == b""


async def test_the_first_plan_stands(rig: Rig) -> None:
    for value in range(3):
        fed = await rig.feed(value)
    assert fed.head is not None
    assert await rig.store.plan_batch(fed.head, b"one") == b"one"
    assert await rig.other.plan_batch(fed.head, b"two") == b"one"
    await rig.advance(LEASE_SECONDS)
    again = await rig.taken()
    assert again is not None
    assert again.plan == b"one"


async def test_a_repeat_gets_the_first_answer(rig: Rig) -> None:
    for value in range(3):
        fed = await rig.feed(value, id=f"e{value}")
    assert await rig.feed(1, id="e1") == Fed()
    # its batch is not a run yet, so the repeat may make it one
    assert await rig.feed(2, id="e2") == fed
    await rig.dropped(fed.head, "run-1")
    assert await rig.feed(2, id="e2") == Fed("", "run-1")
    assert await rig.feed(1, id="e1") == Fed()
    assert await rig.store.open_batches("digest") == []
    for value in range(3, 6):
        fed = await rig.feed(value, id=f"e{value}")
    assert events(fed.head) == [3, 4, 5]


async def test_an_id_counts_within_its_workflow_and_key(rig: Rig) -> None:
    for name, key in [("digest", "k"), ("digest", "l"), ("other", "k"), ("digestk", ""), ("", "digestk")]:
        await rig.feed(0, key, name=name, id="e")
        assert [one.events for one in await rig.store.open_batches(name) if one.key == key] == [1]


async def test_events_of_different_owners_share_no_batch(rig: Rig) -> None:
    for value in range(2):
        for owner in ("", "ann", "bob"):
            assert await rig.feed(f"{owner}{value}", owner=owner) == Fed()
    assert await rig.store.open_batches("digest") == [
        OpenBatch("k", 2, START, START + 10, owner) for owner in ("", "ann", "bob")
    ]
    fed = await rig.feed("ann2", owner="ann")
    assert fed.head is not None
    assert (fed.head.id, fed.head.key, fed.head.owner) == (fed.batch, "k", "ann")
    assert events(fed.head) == ["ann0", "ann1", "ann2"]
    assert await rig.dropped(fed.head) is None
    await rig.advance(10)
    found = {}
    for buffer in await rig.due():
        batch = await rig.other.take_batch(buffer)
        found[batch.owner] = events(batch)
        assert await rig.dropped(batch) is None
    assert found == {"": ["0", "1"], "bob": ["bob0", "bob1"]}
    assert await rig.store.open_batches("digest") == []


async def test_an_id_counts_within_its_owner(rig: Rig) -> None:
    for owner in ("", "ann", "bob"):
        for value in range(3):
            fed = await rig.feed(value, id=f"e{value}", owner=owner)
        await rig.dropped(fed.head, f"run of {owner}")
    for owner in ("", "ann", "bob"):
        assert await rig.feed(2, id="e2", owner=owner) == Fed("", f"run of {owner}")
    # nor is an owner taken for part of a key or an id
    assert await rig.feed(2, "kann", id="e2") == Fed()
    assert await rig.feed(2, id="anne2") == Fed()
    assert [one[:2] for one in await rig.store.open_batches("digest")] == [("k", 1), ("kann", 1)]
    event = TriggerEvent("digest", "k", b"1", COLLECT, "e2", owner="ann")
    rig.store.forget_event(event)
    assert await rig.feed(2, id="e2", owner="bob") == Fed("", "run of bob")
    assert await rig.feed(2, id="e2", owner="ann") == Fed()


async def test_an_id_is_known_for_its_time_or_until_it_is_forgotten(rig: Rig) -> None:
    event = TriggerEvent("digest", "k", b"1", Window(1e6, 100), "mine", lasting=True)
    await rig.store.feed(event)
    await rig.store.feed(event)
    assert [one.events for one in await rig.store.open_batches("digest")] == [1]
    rig.store.forget_event(event)
    await rig.store.feed(event)
    assert [one.events for one in await rig.store.open_batches("digest")] == [2]


async def test_a_window_closes_by_the_stores_clock(rig: Rig) -> None:
    for value in range(2):
        await rig.feed(value)
        await rig.advance(4)
    assert await rig.store.due_batches(["digest"]) == Due((), START + 10)
    await rig.advance(1.9)
    assert await rig.taken() is None
    await rig.advance(0.1)
    batch = await rig.taken()
    assert batch is not None
    assert events(batch) == [0, 1]
    assert (batch.reason, batch.opened_at) == ("window", START)
    assert await rig.dropped(batch) is None
    assert await rig.store.due_batches(["digest"]) == Due(())


async def test_a_batch_is_its_takers_for_a_moment_then_anybodys(rig: Rig) -> None:
    await rig.feed(0)
    await rig.advance(10)
    (buffer,) = await rig.due()
    batch = await rig.store.take_batch(buffer)
    assert await rig.due() == []
    assert await rig.other.take_batch(buffer) is None
    assert (await rig.store.due_batches(["digest"])).next_due == pytest.approx(START + 10 + LEASE_SECONDS)
    # its taker is gone
    await rig.advance(LEASE_SECONDS)
    assert await rig.due() == [buffer]
    assert await rig.other.take_batch(buffer) == batch
    assert await rig.dropped(batch) is None
    assert await rig.other.take_batch(buffer) is None


async def test_a_batch_sealed_behind_one_that_somebody_has_waits_for_that_one(rig: Rig) -> None:
    window = Window(0.1, 3)
    await rig.feed(0, window=window)
    await rig.advance(0.1)
    (buffer,) = await rig.due()
    first = await rig.store.take_batch(buffer)
    await rig.feed(1, window=window)
    await rig.advance(0.1)
    assert await rig.due() == [buffer]
    assert await rig.other.take_batch(buffer) is None
    following = await rig.dropped(first)
    assert (events(first), events(following)) == ([0], [1])


async def test_an_event_that_comes_when_its_batch_is_due_opens_the_next(rig: Rig) -> None:
    await rig.feed("early")
    await rig.advance(10)
    # no worker has looked yet
    assert await rig.feed("late") == Fed()
    batch = await rig.taken()
    assert events(batch) == ["early"]
    assert await rig.dropped(batch) is None
    assert await rig.store.open_batches("digest") == [OpenBatch("k", 1, START + 10, START + 20)]
    await rig.advance(10)
    assert events(await rig.taken()) == ["late"]


async def test_whoever_fills_a_batch_makes_the_one_that_was_due_before_a_run_first(rig: Rig) -> None:
    await rig.feed(0)
    await rig.advance(10)
    for value in range(1, 4):
        fed = await rig.feed(value)
    assert events(fed.head) == [0]
    following = await rig.dropped(fed.head)
    assert following is not None
    assert (following.id, events(following)) == (fed.batch, [1, 2, 3])


async def test_debounce_waits_until_it_is_quiet(rig: Rig) -> None:
    for value in range(5):
        assert await rig.feed(value, window=DEBOUNCE) == Fed()
        await rig.advance(9)
        assert await rig.due() == []
    await rig.advance(1)
    batch = await rig.taken()
    assert events(batch) == [0, 1, 2, 3, 4]
    assert batch is not None
    assert batch.reason == "window"


async def test_debounce_waits_no_longer_than_it_may(rig: Rig) -> None:
    window = Window(10, None, 30)
    for value in range(4):
        await rig.feed(value, window=window)
        assert await rig.due() == []
        await rig.advance(9 if value < 3 else 2.9)
    assert await rig.due() == []
    await rig.advance(0.1)
    batch = await rig.taken()
    assert batch is not None
    assert (events(batch), batch.reason) == ([0, 1, 2, 3], "max_wait")
    await rig.advance(6)
    await rig.feed(4, window=window)
    await rig.advance(10)
    await rig.dropped(batch)
    last = await rig.taken()
    assert last is not None
    assert (events(last), last.reason) == ([4], "window")


async def test_what_the_first_event_says_of_the_batch_holds_for_all_of_it(rig: Rig) -> None:
    await rig.feed(0, window=Window(10, 3))
    # the decorator was changed meanwhile: more, fewer, another kind
    await rig.feed(1, window=Window(1000, 2))
    fed = await rig.feed(2, window=DEBOUNCE)
    assert events(fed.head) == [0, 1, 2]
    await rig.dropped(fed.head)
    await rig.feed(3, window=DEBOUNCE)
    assert await rig.feed(4, window=Window(1, 1)) == Fed()
    await rig.advance(9.9)
    assert await rig.due() == []
    await rig.advance(0.1)
    assert events(await rig.taken()) == [3, 4]


async def test_a_batch_is_sealed_before_its_params_get_too_large(rig: Rig) -> None:
    value = "x" * (MAX_VALUE // 4 - 100)
    for window, key in ((Window(10, 100), "c"), (DEBOUNCE, "d")):
        assert [await rig.feed([number, value], key, window) for number in range(4)] == [Fed()] * 4
        fed = await rig.feed([4, value], key, window)
        # the event is in the next one, so it completed none
        assert (fed.batch, fed.run_id) == ("", "")
        assert fed.head is not None
        assert fed.head.reason == "size"
        assert [event[0] for event in events(fed.head)] == [0, 1, 2, 3]
        assert MAX_VALUE - 1000 < len(fed.head.params) <= MAX_VALUE
        assert await rig.dropped(fed.head) is None
        assert [one.events for one in await rig.store.open_batches("digest") if one.key == key] == [1]


async def test_what_is_due_is_told_by_workflow(rig: Rig) -> None:
    for number in range(300):
        await rig.feed(number, f"k{number}", name="busy")
    await rig.feed(0, name="quiet", window=Window(10, 5))
    await rig.feed(0, name="later", window=Window(20, 5))
    await rig.advance(10)
    assert len(await rig.due("busy")) >= 200
    assert [buffer.name for buffer in await rig.due("quiet")] == ["quiet"]
    assert await rig.store.due_batches(["later", "nobody"]) == Due((), START + 20)
    assert await rig.due("nobody") == []
    made = set()
    while buffers := await rig.due("busy"):
        for buffer in buffers:
            batch = await rig.store.take_batch(buffer)
            made.add(batch.key)
            await rig.dropped(batch)
    assert made == {f"k{number}" for number in range(300)}


async def test_open_batches_are_listed_by_key(rig: Rig) -> None:
    for number in (2, 0, 1):
        await rig.feed(number, f"k{number}")
    await rig.advance(3)
    await rig.feed(9, "k1")
    await rig.feed(0, "x", window=DEBOUNCE)
    assert await rig.store.open_batches("digest") == [
        OpenBatch("k0", 1, START, START + 10),
        OpenBatch("k1", 2, START, START + 10),
        OpenBatch("k2", 1, START, START + 10),
        OpenBatch("x", 1, START + 3, START + 13),
    ]
    assert await rig.store.open_batches("nobody") == []


@pytest.mark.parametrize("text", ["", "{a}:b c\n", "\0", "é☃\U0001f600", "x" * 10_000, "a/b%2F"])
async def test_any_text_is_a_name_and_a_key(rig: Rig, text: str) -> None:
    for value in range(3):
        fed = await rig.feed([value, text], text, name=f"w{text}")
    assert fed.head is not None
    assert fed.head.key == text
    assert events(fed.head) == [[0, text], [1, text], [2, text]]


async def test_senders_at_once_fill_whole_batches(rig: Rig) -> None:
    async def send(sender: int) -> None:
        for number in range(30):
            store = rig.store if sender % 2 else rig.other
            data = b"[%d,%d]" % (sender, number)
            await store.feed(TriggerEvent("digest", "k", data, COLLECT, f"{sender}.{number}"))

    await asyncio.gather(*map(send, range(8)))
    await rig.advance(100)
    found = []
    batch = await rig.taken()
    while batch is not None:
        assert batch.count == 3
        found += events(batch)
        batch = await rig.dropped(batch)
    assert sorted(found) == [[sender, number] for sender in range(8) for number in range(30)]
    for sender in range(8):
        assert [number for one, number in found if one == sender] == list(range(30))


async def test_batches_that_became_runs_leave_nothing_but_ids(server: Server, on_valkey: Rig) -> None:
    rig = on_valkey
    for value in range(4):
        fed = await rig.feed(value, lasting=value == 3, id=f"e{value}")
        if fed.head is not None:
            await rig.dropped(fed.head)
    await rig.feed(0, "d", DEBOUNCE)
    await rig.advance(10)
    while (batch := await rig.taken()) is not None:
        await rig.dropped(batch)
    tag = b"{%b:0}" % server.namespace.encode()
    keys = await server.keys()
    ids = {key for key in keys if key.startswith(tag + b"ti:")}
    assert keys - ids == {b"{%b}meta" % server.namespace.encode(), tag + b"meta"}
    lives = sorted([await server.call("TTL", key) for key in ids])
    assert lives[-1] > RETENTION_SECONDS - 100
    assert lives[0] > OWN_ID_SECONDS - 100
    assert lives[-2] <= OWN_ID_SECONDS


async def test_an_id_outlives_the_patience_of_its_sender(server: Server) -> None:
    store = ValkeyStore(server.url, namespace=server.namespace, shards=1, retry_for=300)
    await store.open()
    await store.feed(TriggerEvent("digest", "k", b"1", COLLECT, "own"))
    (known,) = [key for key in await server.keys() if b"}ti:" in key]
    assert await server.call("TTL", known) > 600
    await store.close()


async def test_memory_forgets_what_became_a_run_and_the_ids_in_time() -> None:
    rig = memory_rig()
    for value in range(7):
        fed = await rig.feed(value, lasting=value == 3, id=f"e{value}")
        if fed.head is not None:
            await rig.dropped(fed.head)
    await rig.advance(10)
    await rig.dropped(await rig.taken())
    batches = rig.store._board.batches
    assert await rig.due() == []
    assert batches._gathered == batches._due == {}
    await rig.advance(OWN_ID_SECONDS)
    await rig.feed(7)
    assert len(batches._known) == 2
    await rig.advance(RETENTION_SECONDS)
    await rig.feed(8)
    assert len(batches._known) == 1
