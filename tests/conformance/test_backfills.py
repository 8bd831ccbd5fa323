"""What backfills need of a store, of every store: who holds a part, what is saved, how it all ends."""

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pyrula.workflows.backfills import Pace, Progress, Request
from pyrula.workflows.codec import loads
from pyrula.workflows.errors import ConfigurationError, LeaseLost
from pyrula.workflows.store.backfills import (
    BACKFILL_OVER,
    BACKFILL_TRANSITIONS,
    BackfillNotFoundError,
    BackfillRefused,
    BackfillStatus,
    BackfillStore,
    BackfillVerb,
    Hold,
    PartSave,
    PartState,
    StoredPart,
)
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.proxy import Proxy
from tests.conformance.server import Server
from tests.services.waiting import wait_until_async

PARTS = {0: b"p0", 3: b"p3"}
FORMATS = Path(__file__).parents[2] / "docs" / "formats-runs.md"


async def planned(store: BackfillStore, name: str = "b", parts: dict[int, bytes] = PARTS) -> None:
    await store.create_backfill(name, b"request", b"pace")
    assert await store.plan_backfill(name, b"plan", parts)


async def test_a_request_is_kept_and_the_first_one_counts(store: BackfillStore, other: BackfillStore) -> None:
    made = await store.create_backfill("b", b"request", b"pace")
    assert (made.id, made.request, made.pace, made.plan) == ("b", b"request", b"pace", b"")
    assert (made.status, made.parts, made.started_at, made.finished_at) == ("requested", (), None, None)
    again = await other.create_backfill("b", b"request", b"faster")
    assert (again.pace, again.created_at) == (b"faster", made.created_at)
    assert (await other.create_backfill("b", b"another", b"slow")).request == b"request"
    assert (await store.read_backfill("b")).pace == b"faster"


async def test_an_unknown_one_is_told(store: BackfillStore) -> None:
    for call in (store.read_backfill("b"), store.turn_backfill("b", "pause")):
        with pytest.raises(BackfillNotFoundError, match="'b'"):
            await call
    assert await store.take_part("b", 0, "w") is None
    with pytest.raises(LeaseLost):
        await store.save_part("b", 0, Hold("w", 1, 1), PartSave(b""))
    assert not await store.plan_backfill("b", b"plan", PARTS)
    assert not await store.refuse_backfill("b", "no")
    assert await store.backfills() == []


async def test_the_first_plan_counts(store: BackfillStore, other: BackfillStore) -> None:
    await planned(store)
    assert not await other.plan_backfill("b", b"other", {7: b"x"})
    assert not await other.refuse_backfill("b", "no")
    stored = await other.read_backfill("b", progress=True)
    assert (stored.plan, stored.status) == (b"plan", "running")
    assert stored.parts == (StoredPart(0, progress=b"p0"), StoredPart(3, progress=b"p3"))
    assert stored.started_at is not None
    assert (await store.read_backfill("b")).parts[0].progress == b""


async def test_without_parts_it_is_completed(store: BackfillStore) -> None:
    await planned(store, parts={})
    stored = await store.read_backfill("b")
    assert stored.status == "completed"
    assert stored.finished_at is not None


async def test_a_refused_request_makes_room_for_another(store: BackfillStore) -> None:
    await store.create_backfill("b", b"request", b"pace")
    assert await store.refuse_backfill("b", "there is no topic")
    stored = await store.read_backfill("b")
    assert (stored.status, stored.problem) == ("failed", "there is no topic")
    assert (await store.create_backfill("b", b"another", b"pace")).status == "requested"
    assert (await store.read_backfill("b")).problem == ""


async def test_they_are_listed_by_age(store: BackfillStore, other: BackfillStore) -> None:
    for name in ("z", "a", "m"):
        await store.create_backfill(name, b"request", b"pace")
        await asyncio.sleep(0.002)
    await planned(store, "done", {})
    assert [one.id for one in await other.backfills()] == ["z", "a", "m", "done"]
    await store.turn_backfill("a", "cancel")
    await store.turn_backfill("m", "pause")
    assert [one.id for one in await other.backfills(active=True)] == ["z", "m"]
    await store.refuse_backfill("z", "no")
    assert [one.id for one in await other.backfills(active=True)] == ["m"]
    await store.turn_backfill("z", "resume")
    assert [one.id for one in await other.backfills(active=True)] == ["z", "m"]


async def test_a_part_is_held_by_one(store: BackfillStore, other: BackfillStore) -> None:
    await planned(store)
    taken = await store.take_part("b", 0, "w")
    assert taken is not None
    assert (taken.token, taken.progress) == (1, b"p0")
    assert await other.take_part("b", 0, "v") is None
    assert await other.take_part("b", 1, "v") is None
    other_part = await other.take_part("b", 3, "v")
    assert other_part is not None
    holds = [part.hold for part in (await store.read_backfill("b")).parts]
    assert holds == [Hold("w", 1, 0), Hold("v", 1, 0)]


async def test_asking_for_a_part_that_another_has_is_a_wish_until_somebody_takes_one(
    store: BackfillStore, other: BackfillStore
) -> None:
    await planned(store)

    async def wish() -> str:
        return (await store.read_backfill("b")).wish

    await store.take_part("b", 0, "w")
    assert await other.take_part("b", 1, "v") is None
    assert await wish() == ""
    for worker in ("v", "u"):
        assert await other.take_part("b", 0, worker) is None
        assert await wish() == worker
    await store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"half", release=True))
    assert await wish() == "u"
    assert await store.take_part("b", 3, "v") is not None
    assert await wish() == ""
    await store.save_part("b", 3, Hold("v", 1, 1), PartSave(b"all", state="done"))
    assert await other.take_part("b", 3, "u") is None
    assert await wish() == ""


async def test_a_take_sent_twice_is_one_take(store: BackfillStore) -> None:
    await planned(store)
    assert [await store.take_part("b", 0, "w") for _ in range(2)] == [(1, b"p0")] * 2
    await store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"new"))
    # it has let go of the part without saying so, and takes it again
    assert await store.take_part("b", 0, "w") == (2, b"new")
    with pytest.raises(LeaseLost):
        await store.save_part("b", 0, Hold("w", 1, 2), PartSave(b"late"))


async def test_what_is_saved_is_there_for_the_next_holder(store: BackfillStore, other: BackfillStore) -> None:
    await planned(store)
    await store.take_part("b", 0, "w")
    assert await store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"half")) == "running"
    assert await store.save_part("b", 0, Hold("w", 1, 2), PartSave(b"more", release=True)) == "running"
    assert (await other.read_backfill("b", progress=True)).parts[0] == StoredPart(0, progress=b"more")
    assert await other.take_part("b", 0, "v") == (2, b"more")


async def test_a_save_sent_twice_is_one_save(store: BackfillStore) -> None:
    await planned(store)
    await store.take_part("b", 0, "w")
    await store.save_part("b", 0, Hold("w", 1, 2), PartSave(b"second"))
    await store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"first, late"))
    assert (await store.read_backfill("b", progress=True)).parts[0].progress == b"second"
    for _ in range(2):
        assert await store.save_part("b", 0, Hold("w", 1, 3), PartSave(b"last", release=True)) == "running"
    with pytest.raises(LeaseLost):
        await store.save_part("b", 0, Hold("w", 1, 4), PartSave(b"after it let go"))


async def test_a_dead_holder_is_replaced_by_whoever_saw_it_stand_still(
    store: BackfillStore, other: BackfillStore
) -> None:
    await planned(store)
    await store.take_part("b", 0, "w")
    await store.save_part("b", 0, Hold("w", 1, 5), PartSave(b"half"))
    seen = Hold("w", 1, 5)
    await store.save_part("b", 0, Hold("w", 1, 6), PartSave(b"alive"))
    assert await other.take_part("b", 0, "v", replaces=seen) is None
    assert await other.take_part("b", 0, "v", replaces=Hold("w", 1, 6)) == (2, b"alive")
    with pytest.raises(LeaseLost, match="part 0 of backfill b was taken from w"):
        await store.save_part("b", 0, Hold("w", 1, 7), PartSave(b"too late"))
    assert (await store.read_backfill("b", progress=True)).parts[0].progress == b"alive"


async def test_with_the_last_part_it_ends(store: BackfillStore, other: BackfillStore) -> None:
    await planned(store)
    await store.take_part("b", 0, "w")
    await other.take_part("b", 3, "v")
    assert await store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"all", state="done")) == "running"
    assert await store.take_part("b", 0, "w") is None
    for _ in range(2):
        assert await other.save_part("b", 3, Hold("v", 1, 1), PartSave(b"all", state="done")) == "completed"
    stored = await store.read_backfill("b", progress=True)
    assert [(part.state, part.hold, part.progress) for part in stored.parts] == [("done", None, b"all")] * 2
    assert stored.finished_at is not None
    assert stored.problem == ""


async def test_a_stuck_part_fails_it_when_the_others_have_ended(store: BackfillStore) -> None:
    await planned(store)
    for part in (0, 3):
        await store.take_part("b", part, "w")
    assert await store.save_part("b", 3, Hold("w", 1, 1), PartSave(b"p", "stuck", "record 7")) == "running"
    assert (await store.read_backfill("b")).parts[1].problem == "record 7"
    assert await store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"p", state="done")) == "failed"
    stored = await store.read_backfill("b")
    assert (stored.status, stored.problem) == ("failed", "record 7")
    assert await store.turn_backfill("b", "resume") == "running"
    stored = await store.read_backfill("b")
    assert [(part.state, part.problem) for part in stored.parts] == [("done", ""), ("open", "")]
    assert (stored.problem, stored.finished_at) == ("", None)
    assert await store.take_part("b", 0, "w") is None
    taken = await store.take_part("b", 3, "w")
    assert taken is not None
    assert taken.token == 2


async def test_while_paused_no_part_is_to_be_had(store: BackfillStore, other: BackfillStore) -> None:
    await planned(store)
    await store.take_part("b", 0, "w")
    assert await other.turn_backfill("b", "pause") == "paused"
    assert await other.turn_backfill("b", "pause") == "paused"
    assert await other.take_part("b", 3, "v") is None
    assert await store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"half", release=True)) == "paused"
    assert await other.turn_backfill("b", "resume") == "running"
    assert await other.turn_backfill("b", "resume") == "running"
    assert await other.take_part("b", 0, "v") == (2, b"half")


async def test_what_ends_while_paused_counts(store: BackfillStore) -> None:
    await planned(store, parts={0: b"p"})
    await store.take_part("b", 0, "w")
    await store.turn_backfill("b", "pause")
    assert await store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"all", state="done")) == "completed"


async def test_a_cancelled_one_stays_cancelled(store: BackfillStore) -> None:
    await planned(store, parts={0: b"p"})
    await store.take_part("b", 0, "w")
    assert await store.turn_backfill("b", "cancel") == "cancelled"
    assert await store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"all", state="done")) == "cancelled"
    stored = await store.create_backfill("b", b"request", b"other pace")
    assert (stored.status, stored.pace) == ("cancelled", b"pace")
    for verb in ("pause", "resume"):
        with pytest.raises(BackfillRefused, match=f"backfill b is cancelled, so there is nothing to {verb}"):
            await store.turn_backfill("b", verb)  # type: ignore[arg-type]


async def test_a_pause_before_the_plan(store: BackfillStore) -> None:
    await store.create_backfill("b", b"request", b"pace")
    assert await store.turn_backfill("b", "pause") == "paused"
    assert not await store.plan_backfill("b", b"plan", PARTS)
    assert await store.turn_backfill("b", "resume") == "requested"
    assert await store.plan_backfill("b", b"plan", PARTS)


@pytest.mark.parametrize("seed", range(8))
async def test_any_order_of_calls_keeps_the_rules(make_store: Callable[[], BackfillStore], seed: int) -> None:
    """Two stores are given the same random calls, the one under test and one in memory: they answer the same, whatever
    happens a part has one holder, and a status changes only as the table says."""
    rng = random.Random(seed)
    real, model = make_store(), MemoryStore()
    await real.open()  # type: ignore[attr-defined]
    verbs: list[BackfillVerb] = ["pause", "resume", "cancel"]
    before = None
    try:
        for _ in range(150):
            part, worker = rng.choice([0, 1, 2]), rng.choice(["w", "v"])
            token, beat = rng.randrange(4), rng.randrange(8)
            match rng.randrange(10):
                case 0:
                    name, given, named = "create_backfill", ("b", rng.choice([b"r", b"s"]), b"%d" % beat), {}
                case 1:
                    parts = dict.fromkeys(range(rng.choice([1, 3])), b"0")
                    name, given, named = "plan_backfill", ("b", b"p", parts), {}
                case 2:
                    weights = [5, 5, 1]
                    name, given, named = "turn_backfill", ("b", rng.choices(verbs, weights)[0]), {}
                case 3 | 4 | 5:
                    replaces = rng.choice([None, Hold(rng.choice(["w", "v"]), token, beat)])
                    name, given, named = "take_part", ("b", part, worker), {"replaces": replaces}
                case 6 if rng.random() < 0.2:
                    name, given, named = "refuse_backfill", ("b", "no"), {}
                case _:
                    state: PartState = rng.choices(["open", "done", "stuck"], [6, 1, 1])[0]
                    problem, release = rng.choice(["", "x"]), rng.random() < 0.3
                    save = PartSave(b"%d" % rng.randrange(99), state, problem, release)
                    name, given, named = "save_part", ("b", part, Hold(worker, token, beat), save), {}
            answers = [await outcome(store, name, given, named) for store in (real, model)]
            assert answers[0] == answers[1], (name, given, named)
            after = await status_of(model)
            fresh = before == "failed" and after == "requested"
            assert before in (after, None) or fresh or after in BACKFILL_TRANSITIONS[BackfillStatus(before)], name
            before = after
    finally:
        await real.close()  # type: ignore[attr-defined]


async def status_of(store: BackfillStore) -> BackfillStatus | None:
    try:
        return (await store.read_backfill("b")).status
    except BackfillNotFoundError:
        return None


async def outcome(store: BackfillStore, name: str, given: tuple[object, ...], named: dict[str, object]) -> object:
    """What a call answered or refused, and what stands after it."""
    try:
        answer = await getattr(store, name)(*given, **named)
    except (LeaseLost, BackfillRefused, BackfillNotFoundError) as error:
        answer = type(error), str(error)
    if name == "create_backfill":
        answer = (answer.request, answer.pace, answer.status)
    try:
        stored = await store.read_backfill("b", progress=True)
    except BackfillNotFoundError:
        return answer, None
    over = stored.status in BACKFILL_OVER
    assert (stored.finished_at is not None) == over
    return answer, stored.status, stored.problem, stored.pace, stored.plan, stored.parts, stored.wish


async def test_answers_that_are_lost_change_nothing(valkey_store: ValkeyStore, server: Server) -> None:
    async with Proxy(server.url) as proxy:
        store = ValkeyStore(proxy.url, namespace=server.namespace, timeout=0.3)
        await store.open()
        try:
            for call in (
                lambda: store.create_backfill("b", b"request", b"pace"),
                lambda: store.plan_backfill("b", b"plan", {0: b"p"}),
                lambda: store.take_part("b", 0, "w"),
                lambda: store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"half")),
                lambda: store.turn_backfill("b", "pause"),
                lambda: store.turn_backfill("b", "resume"),
                lambda: store.save_part("b", 0, Hold("w", 1, 2), PartSave(b"all", state="done")),
            ):
                proxy.replies = "cut"
                asked = asyncio.ensure_future(call())
                lost = proxy.lost_replies
                await wait_until_async(lambda lost=lost: proxy.lost_replies > lost, description="an answer to be lost")
                proxy.replies = "pass"
                await asked
            stored = await valkey_store.read_backfill("b", progress=True)
            assert (stored.status, stored.parts) == ("completed", (StoredPart(0, "done", progress=b"all"),))
        finally:
            await store.close()


async def test_what_expired_leaves_the_list(valkey_store: ValkeyStore, server: Server) -> None:
    await planned(valkey_store, "old")
    await planned(valkey_store, "new")
    (gone,) = [key for key in await server.keys() if b"}b:" in key and (await server.hash(key))[b"id"] == b"old"]
    await server.call("DEL", gone)
    assert [one.id for one in await valkey_store.backfills()] == ["new"]
    (index,) = [key for key in await server.keys() if key.endswith(b"}backfills")]
    assert await server.call("ZCARD", index) == 1


def table_after(text: str, heading: str) -> list[str]:
    """All that is in backquotes in the first column of the table after a line."""
    rows = text[text.index(heading) :].split("|---", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    return [name for row in rows for name in re.findall("`([^`]+)`", row.split("|")[1])]


async def test_every_key_and_field_is_documented(valkey_store: ValkeyStore, server: Server) -> None:
    text = FORMATS.read_text(encoding="utf-8")
    await planned(valkey_store)
    await valkey_store.take_part("b", 0, "w")
    await valkey_store.take_part("b", 3, "w")
    assert await valkey_store.take_part("b", 3, "v") is None
    await valkey_store.save_part("b", 0, Hold("w", 1, 1), PartSave(b"half", state="stuck", problem="why"))
    await valkey_store.save_part("b", 3, Hold("w", 1, 1), PartSave(b"all", state="done"))
    keys = {key.decode() for key in await server.keys() if b"}b" in key}
    name = next(key for key in keys if "}b:" in key).rpartition(":")[2]
    documented = table_after(text, "## Backfills")
    assert {key.replace(server.namespace, "N").replace(name, "<digest>") for key in keys} == set(documented)
    state = await server.hash(f"{{{server.namespace}:0}}b:{name}".encode())
    fields = {re.sub("[0-9]+$", "<part>", field.decode()) for field in state}
    assert fields == set(table_after(text, "Fields of `{N:0}b:<digest>`"))
    assert (state[b"h0"], state[b"h3"]) == (b"stuck 1 1 ", b"done 1 1 ")


def test_what_is_stored_of_a_backfill_is_as_documented() -> None:
    text = FORMATS.read_text(encoding="utf-8")
    section = text[text.index("## Backfills") : text.index("## Channels")]
    request = Request.of("w", "t", start=5, end="2026-11-28T00:00Z", partitions=[3, 0])
    assert request.encode() == (
        b'[1,{"workflow":"w","topic":"t","group":null,"cluster":"default","partitions":[0,3],"start":["offset",5],'
        b'"end":["time",1795824000.0],"where":null,"output":null,"dead_letter_topic":null,"failed_of":null}]'
    )
    assert Pace(4, 0.5).encode() == b'[1,{"max_concurrency":4,"rate":0.5}]'
    progress = Progress(1, 9, 2, 4, ((3, 4),), first=(1, 10), witness="aa")
    assert progress.encode() == (
        b'[1,{"start":1,"end":9,"position":2,"read_to":4,"done":[[3,4]],"read":0,"matched":0,"completed":0,"failed":0,'
        b'"skipped":0,"undecided":0,"lost":0,"first":[1,10],"last":null,"witness":"aa","note":""}]'
    )
    for kept in (request, Pace(4, 0.5), progress):
        assert type(kept).decode(kept.encode()) == kept
        assert all(f"`{name}`" in section for name in loads(kept.encode())[1])
    with pytest.raises(ConfigurationError, match="has format 2, this version of Pyrula reads 1"):
        Progress.decode(b"[2,{}]")
