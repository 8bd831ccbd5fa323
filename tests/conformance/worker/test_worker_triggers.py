"""Events become runs, by the event that fills a batch or by the workers' trigger loop, whatever becomes of either."""

import asyncio
import logging
import time
from typing import Any

import pytest

from pyrula.workflows import (
    BackpressureRejected,
    Collect,
    ConfigurationError,
    Context,
    Debounce,
    Limit,
    Rate,
    Retry,
    RunHandle,
    StepError,
    ValkeyStore,
    WorkflowClient,
    step,
    workflow,
)
from pyrula.workflows.store.lifecycle import TERMINAL
from pyrula.workflows.store.registry import Enlisted
from tests.conformance.server import Server
from tests.conformance.worker.conftest import Workers
from tests.guarantees.members import SOAK
from tests.services.waiting import wait_until_async

got: list[tuple[str, list[Any], int]] = []
starts: list[float] = []
# more than one worker takes at once
WINDOWS = 250
# far longer than it takes to send a few events
WINDOW_SECONDS = 2


@pytest.fixture(autouse=True)
def fresh() -> None:
    got.clear()
    starts.clear()


@workflow(name="worker_digest", trigger=Collect(key="user_id", max_events=3, window_seconds=3600))
async def digest(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> int:
    """Its batches are full, however long their events take."""
    got.append((key, [event["n"] for event in events], count))
    return count


@workflow(name="worker_brief", trigger=Collect(key="user_id", max_events=3, window_seconds=WINDOW_SECONDS))
async def brief(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> int:
    """Its windows close."""
    starts.append(time.monotonic())
    got.append((key, [event["n"] for event in events], count))
    return count


@workflow(name="worker_save", trigger=Debounce(key="doc", window_seconds=1, max_wait_seconds=3))
async def save(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None:
    starts.append(time.monotonic())
    got.append((key, [event["n"] for event in events], count))


async def send(client: WorkflowClient, *numbers: int, key: str = "u", to: Any = digest) -> list[RunHandle[int] | None]:
    return [await client.trigger(to, {"user_id": key, "n": number}) for number in numbers]


async def batches(count: int) -> None:
    await wait_until_async(lambda: len(got) >= count, description=f"{count} batches")


async def test_the_event_that_completes_a_batch_gets_its_run(workers: Workers) -> None:
    client = workers.client()
    first, second, run = await send(client, 0, 1, 2)
    assert (first, second) == (None, None)
    assert run is not None
    # without any worker so far
    assert await run.status() == "queued"
    workers.start(digest)
    assert await run.result(timeout=180) == 3
    assert got == [("u", [0, 1, 2], 3)]
    assert (await run.detail()).metadata["batch"]["reason"] == "max_events"
    again = await client.trigger("worker_digest", {"user_id": "v", "n": 0}, event_id="e")
    assert again is None


async def test_a_repeat_of_an_events_id_gets_the_same_answer(workers: Workers) -> None:
    client, other = workers.client(), workers.client()
    event = {"user_id": "u", "n": 0}
    assert [await one.trigger(digest, event, event_id="e0") for one in (client, other, client)] == [None] * 3
    await send(client, 1)
    runs = [await one.trigger(digest, event | {"n": 2}, event_id="e2") for one in (client, other, client)]
    assert runs[0] is not None
    assert runs == [runs[0].run_id] * 3
    workers.start(digest)
    await batches(1)
    assert got == [("u", [0, 1, 2], 3)]


async def test_a_batch_and_its_run_have_the_owner_of_its_events(workers: Workers) -> None:
    client = workers.client()
    for number in range(2):
        for owner in ("ann", "bob"):
            assert await client.trigger(brief, {"user_id": "u", "n": number}, owner=owner) is None
    assert [(one.key, one.owner, one.events) for one in await client.buffered(brief)] == [
        ("u", "ann", 2),
        ("u", "bob", 2),
    ]
    run = await client.trigger(brief, {"user_id": "u", "n": 2}, owner="ann", event_id="e")
    assert run is not None
    assert (await run.detail()).owner == "ann"
    assert await client.trigger(brief, {"user_id": "u", "n": 9}, owner="ann", event_id="e") == run.run_id
    # bob's by its window
    workers.start(brief)
    await batches(2)
    assert sorted(got) == [("u", [0, 1], 2), ("u", [0, 1, 2], 3)]
    for owner in ("ann", "bob"):
        (listed,) = await client.list(owner=owner)
        assert (listed.name, listed.owner) == ("worker_brief", owner)
    with pytest.raises(ValueError, match="owner"):
        await client.trigger(brief, {"user_id": "u", "n": 0}, owner="\ud800")


async def test_a_window_closes_in_time_and_once_with_several_workers(workers: Workers) -> None:
    for _ in range(3):
        workers.start(brief)
    client = workers.client()
    sent = time.monotonic()
    await asyncio.gather(*(send(client, 0, 1, key=f"u{number}", to=brief) for number in range(WINDOWS)))
    await wait_until_async(lambda: sum(count for _, _, count in got) >= 2 * WINDOWS, description="all windows to close")
    assert min(starts) >= sent + WINDOW_SECONDS
    assert await client.buffered(brief) == []
    await asyncio.sleep(0.5)
    found: dict[str, list[int]] = {}
    for key, numbers, _ in got:
        found.setdefault(key, []).extend(numbers)
    assert found == {f"u{number}": [0, 1] for number in range(WINDOWS)}


async def test_debounce_runs_once_when_it_is_quiet_and_in_the_end_anyway(workers: Workers) -> None:
    workers.start(save)
    client = workers.client()
    for number in range(3):
        assert await client.trigger(save, {"doc": "d", "n": number}) is None
        await asyncio.sleep(0.05)
    await batches(1)
    assert got == [("d", [0, 1, 2], 3)]
    sent, number = time.monotonic(), 0
    while len(got) == 1:
        await client.trigger(save, {"doc": "d", "n": number})
        number += 1
        await asyncio.sleep(0.05)
        assert time.monotonic() < sent + 60
    assert got[1][1] == list(range(len(got[1][1])))
    assert len(got[1][1]) > 1


async def test_a_batch_whose_taker_died_is_taken_by_another_worker(workers: Workers) -> None:
    client = workers.client()
    await send(client, 0, 1, to=brief)
    dying = workers.start(brief)
    store: Any = dying.store
    reached = asyncio.Event()

    async def never(*arguments: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    # sealed and taken, and no run yet
    store.plan_batch = never
    await asyncio.wait_for(reached.wait(), 60)
    await workers.kill(dying)
    workers.start(brief)
    await batches(1)
    assert got == [("u", [0, 1], 2)]


@pytest.mark.parametrize("verb", ["plan_batch", "submit", "drop_batch"])
async def test_a_sender_that_dies_as_its_event_fills_a_batch_leaves_one_run(workers: Workers, verb: str) -> None:
    client, dying = workers.client(), workers.client()
    await send(client, 0, 1)
    store: Any = dying.store
    reached = asyncio.Event()
    call = getattr(store, verb)

    async def half(*arguments: Any) -> Any:
        if verb == "drop_batch":
            # the run is there, and the batch still on its way
            reached.set()
            await asyncio.Event().wait()
        answer = await call(*arguments)
        reached.set()
        await asyncio.Event().wait()
        return answer

    setattr(store, verb, half)
    sending = asyncio.create_task(dying.trigger(digest, {"user_id": "u", "n": 2}, event_id="last"))
    await asyncio.wait_for(reached.wait(), 60)
    sending.cancel()
    await asyncio.wait([sending])
    workers.start(digest)
    await batches(1)
    # it asks again, as its caller would
    run = await client.trigger(digest, {"user_id": "u", "n": 2}, event_id="last")
    assert run is not None
    assert await run.result(timeout=180) == 3
    await send(client, 3, 4, 5)
    await batches(2)
    assert got == [("u", [0, 1, 2], 3), ("u", [3, 4, 5], 3)]


def declared(**options: Any) -> Any:
    """The same workflow after a deploy."""

    @workflow(name="worker_changing", **options)
    async def body(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None:
        got.append((key, [event["n"] for event in events], count))

    return body


async def test_a_batch_is_gathered_as_its_first_event_said_and_stamped_when_it_becomes_a_run(workers: Workers) -> None:
    old = declared(trigger=Collect("k", max_events=3, window_seconds=60))
    client = workers.client()
    await client.trigger(old, {"k": "a", "n": 0})
    new = declared(trigger=Collect("k", max_events=2, window_seconds=60), version="2")
    assert await client.trigger(new, {"k": "a", "n": 1}) is None
    run = await client.trigger(new, {"k": "a", "n": 2})
    assert run is not None
    assert (await run.detail()).version == "2"
    # the next one is gathered as the new code says
    assert await client.trigger(new, {"k": "a", "n": 3}) is None
    run = await client.trigger(new, {"k": "a", "n": 4})
    assert run is not None
    workers.start(new)
    await batches(2)
    assert got == [("a", [0, 1, 2], 3), ("a", [3, 4], 2)]


async def test_what_was_gathered_before_the_trigger_went_becomes_a_run_all_the_same(workers: Workers) -> None:
    old = declared(trigger=Collect("k", max_events=3, window_seconds=0.2))
    client = workers.client()
    await client.trigger(old, {"k": "a", "n": 0})
    workers.start(declared())
    await asyncio.sleep(0.2)
    # one that starts later looks at once
    workers.start(declared())
    await batches(1)
    assert got == [("a", [0], 1)]


async def test_a_batch_that_no_run_can_be_made_of_waits_for_a_deploy(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(params: dict[str, Any]) -> str:
        raise LookupError("no such tenant")

    options = {"trigger": Collect("k", max_events=9, window_seconds=0.1)}
    bad = declared(**options, concurrency=Limit(broken, 1))
    client = workers.client()
    await client.trigger(bad, {"k": "a", "n": 0})
    with caplog.at_level(logging.ERROR, "pyrula.worker"):
        worker = workers.start(bad)
        await wait_until_async(lambda: caplog.records, description="the error to be logged")
        await asyncio.sleep(0.5)
    (record,) = caplog.records
    assert "workflow 'worker_changing': a batch of its events waits" in record.getMessage()
    assert "LookupError: no such tenant" in record.getMessage()
    await workers.stop(worker)
    workers.start(declared(**options))
    await batches(1)
    assert got == [("a", [0], 1)]


async def test_a_triggered_workflow_may_be_submitted_as_any_other(workers: Workers) -> None:
    worker = workers.start(digest)
    run = await worker.client.submit(digest, {"key": "k", "events": [{"n": 7}], "count": 1})
    assert await run.result(timeout=180) == 1
    assert got == [("k", [7], 1)]


async def test_many_open_windows_take_no_place_of_a_worker(workers: Workers) -> None:
    workers.start(digest, max_concurrency=1)
    client = workers.client()

    @workflow(name="worker_patient", trigger=Collect("k", max_events=100, window_seconds=3600))
    async def patient(ctx: Context, key: str, events: list[Any], count: int) -> None: ...

    await asyncio.gather(*(client.trigger(patient, {"k": number}) for number in range(1_500)))
    assert len(await client.buffered(patient)) == 1_500
    *_, run = await send(client, 0, 1, 2)
    assert run is not None
    assert await run.result(timeout=180) == 3


# from a body


@step(retry=Retry(max_attempts=1))
async def fail(how: str) -> None:
    raise OSError(how)


@workflow(name="worker_feeder")
async def feeder(ctx: Context, numbers: list[int], to: str = "worker_digest") -> list[str | None]:
    return [await ctx.trigger(to, {"user_id": "f", "n": number}) for number in numbers]


@workflow(name="worker_feeding_side_by_side")
async def side_by_side(ctx: Context) -> list[str | None]:
    return await ctx.gather(*(ctx.trigger("worker_digest", {"user_id": "s", "n": number}) for number in range(6)))


async def test_a_body_feeds_a_trigger(workers: Workers) -> None:
    worker = workers.start(digest, feeder, side_by_side)
    run = await worker.client.submit(feeder, {"numbers": [0, 1, 2, 3, 4, 5]})
    first, second, third, *others = await run.result(timeout=180)
    assert (first, second, others[:2]) == (None, None, [None, None])
    assert third is not None
    assert await worker.client.handle(digest, third).result(timeout=180) == 3
    await batches(2)
    assert sorted(got) == [("f", [0, 1, 2], 3), ("f", [3, 4, 5], 3)]
    got.clear()
    answers = await (await worker.client.submit(side_by_side)).result(timeout=180)
    assert sorted(answer is None for answer in answers) == [False, False, True, True, True, True]
    await batches(2)
    assert sorted(number for _, numbers, _ in got for number in numbers) == list(range(6))


async def test_a_body_feeds_for_its_runs_owner(workers: Workers) -> None:
    worker = workers.start(digest, feeder)
    runs = {}
    for owner in ("", "ann", "bob"):
        run = await worker.client.submit(feeder, {"numbers": [0, 1, 2]}, owner=owner)
        runs[owner] = (await run.result(timeout=180))[-1]
    assert None not in runs.values()
    for owner, run_id in runs.items():
        assert (await worker.client.detail(digest, run_id)).owner == owner
    await batches(3)
    assert got == [("f", [0, 1, 2], 3)] * 3


async def test_a_body_that_feeds_the_same_id_again_gets_the_same_answer(workers: Workers) -> None:
    @workflow(name="worker_repeating")
    async def repeating(ctx: Context) -> list[str | None]:
        return [await ctx.trigger(brief, {"user_id": "r", "n": 0}, event_id="once") for _ in range(4)]

    worker = workers.start(brief, repeating)
    assert await (await worker.client.submit(repeating)).result(timeout=180) == [None] * 4
    await batches(1)
    assert got == [("r", [0], 1)]


async def test_an_event_that_does_not_fit_is_the_bodys_to_handle(workers: Workers) -> None:
    @workflow(name="worker_misfeeding")
    async def misfeeding(ctx: Context) -> str:
        try:
            await ctx.trigger(digest, [1])  # type: ignore[arg-type]
        except ValueError as error:
            return str(error)
        return "taken"

    worker = workers.start(digest, misfeeding)
    told = await (await worker.client.submit(misfeeding)).result(timeout=180)
    assert told == "workflow 'worker_digest': an event must be a dict or a model, not list"


@pytest.mark.parametrize("when", ["before the event", "behind the event", "before it is written"])
async def test_an_event_is_fed_once_though_its_worker_dies(workers: Workers, when: str) -> None:
    dying = workers.start(feeder, lease_seconds=1, heartbeat_interval=0.1)
    store: Any = dying.store
    reached = asyncio.Event()
    dead = asyncio.Event()
    feed = store.feed
    fed = 0

    async def half(event: Any) -> Any:
        nonlocal fed
        fed += 1
        if fed == 2 and when == "before the event":
            reached.set()
            await asyncio.Event().wait()
        answer = await feed(event)
        if fed == 2:
            if when == "behind the event":
                reached.set()
                await asyncio.Event().wait()
            store.append = stuck
        return answer

    async def stuck(*arguments: Any) -> Any:
        reached.set()
        await dead.wait()
        raise asyncio.CancelledError

    store.feed = half
    run = await workers.client().submit(feeder, {"numbers": [0, 1, 2, 3, 4], "to": "worker_brief"})
    await asyncio.wait_for(reached.wait(), 60)
    dead.set()
    await workers.kill(dying)
    workers.start(feeder, brief, lease_seconds=1, heartbeat_interval=0.1)
    answers = await run.result(timeout=180)
    await wait_until_async(lambda: sum(count for _, _, count in got) >= 5, description="all events")
    await asyncio.sleep(0.2)
    assert sorted(number for _, numbers, _ in got for number in numbers) == [0, 1, 2, 3, 4]
    assert len(answers) == 5


async def test_a_retry_does_not_feed_again(workers: Workers) -> None:
    broken = True

    @workflow(name="worker_retried")
    async def retried(ctx: Context) -> str:
        async def part() -> None:
            if broken:
                await ctx.step(fail, "not yet")

        async def feeding() -> None:
            await ctx.trigger(brief, {"user_id": "x", "n": 0})
            await ctx.sleep(0.05)
            await ctx.trigger(brief, {"user_id": "x", "n": 1})

        failing = asyncio.create_task(part())
        await feeding()
        await failing
        return "done"

    worker = workers.start(brief, retried)
    run = await worker.client.submit(retried)

    async def ended() -> bool:
        return await run.status() in TERMINAL

    await wait_until_async(ended, description="the failure")
    assert await run.status() == "failed"
    broken = False
    with pytest.raises(Exception, match="not yet") as failed:
        await run.result(timeout=180)
    assert StepError.__name__ in str(failed.value)
    await run.retry()

    async def retried_to_its_end() -> bool:
        return await run.status() in TERMINAL | {"paused"}

    await wait_until_async(retried_to_its_end, description="the end")
    await batches(1)
    await asyncio.sleep(0.3)
    assert sorted(number for _, numbers, _ in got for number in numbers) == [0, 1]


# with gates of its own


def at_once(trigger: Any, **gates: Any) -> tuple[Any, dict[str, list[list[int]]], list[int]]:
    """A workflow that notes its batches by key in the order they began, and how many of a key there were at once."""
    order: dict[str, list[list[int]]] = {}
    running: dict[str, int] = {}
    most = [0]

    @workflow(name="worker_gated_digest", trigger=trigger, **gates)
    async def body(ctx: Context, key: str, events: list[dict[str, Any]], count: int) -> None:
        running[key] = running.get(key, 0) + 1
        most[0] = max(most[0], running[key])
        order.setdefault(key, []).append([event["n"] for event in events])
        await ctx.step(asyncio.sleep, 0.02)
        running[key] -= 1

    return body, order, most


@pytest.mark.parametrize(
    "gates",
    [
        {"concurrency": Limit("key", 1)},
        {"concurrency": Limit("key", 1), "rate_limit": Rate("key", per_second=1000)},
        # on another shard than the buffers
        {"concurrency": Limit(lambda params: f"tenant-{params['key']}", 1)},
        {"concurrency": Limit("key", 1), "rate_limit": Rate("count", per_second=1000)},
    ],
    ids=["a Limit", "both on the batch key", "a function of the batch", "keys of two kinds"],
)
async def test_batches_of_a_limited_key_run_one_after_the_other_in_order(workers: Workers, gates: Any) -> None:
    body, order, most = at_once(Collect("k", max_events=2, window_seconds=0.3), **gates)
    clients = [workers.client(), workers.client()]
    workers.start(body)
    workers.start(body)
    for n in range(9):
        await clients[0].trigger(body, {"k": f"k{n % 3}", "n": n})
        await asyncio.gather(*(clients[1].trigger(body, {"k": f"x{key}", "n": n}) for key in range(4)))
    await wait_until_async(
        lambda: sum(len(batch) for found in order.values() for batch in found) == 45, description="all events"
    )
    assert most == [1]
    for n in range(3):
        assert [number for batch in order[f"k{n}"] for number in batch] == [n, n + 3, n + 6]
    for key in range(4):
        assert [number for batch in order[f"x{key}"] for number in batch] == list(range(9))
    assert max(len(batch) for found in order.values() for batch in found) == 2


@pytest.mark.parametrize("verb", ["plan_batch", "submit", "drop_batch"])
async def test_a_gated_batch_becomes_one_run_though_its_sender_dies(workers: Workers, verb: str) -> None:
    body, order, _ = at_once(
        Collect("k", max_events=2, window_seconds=30),
        concurrency=Limit("key", 1),
        rate_limit=Rate("count", per_second=1000),
    )
    dying = workers.client()
    await dying.trigger(body, {"k": "a", "n": 0})
    store: Any = dying.store
    reached, call = asyncio.Event(), getattr(store, verb)

    async def half(*arguments: Any) -> Any:
        if verb != "drop_batch":
            await call(*arguments)
        reached.set()
        await asyncio.Event().wait()

    setattr(store, verb, half)
    sending = asyncio.create_task(dying.trigger(body, {"k": "a", "n": 1}))
    await asyncio.wait_for(reached.wait(), 60)
    sending.cancel()
    await asyncio.wait([sending])
    workers.start(body)
    client = workers.client()
    for n in (2, 3):
        run = await client.trigger(body, {"k": "a", "n": n})
    assert run is not None
    await run.result(timeout=180)
    assert order == {"a": [[0, 1], [2, 3]]}


async def test_senders_at_the_very_moment_of_the_fire_lose_nothing(workers: Workers) -> None:
    """Eight on one key, whose window closes all the time."""
    body, order, _ = at_once(Debounce("k", window_seconds=0.05, max_wait_seconds=0.1))
    for _ in range(2):
        workers.start(body)
    clients = [workers.client() for _ in range(8)]
    sent = 0
    until = time.monotonic() + (60 if SOAK else 3)

    async def send(client: WorkflowClient) -> None:
        nonlocal sent
        while time.monotonic() < until or len(order.get("one", [])) <= 10:
            sent += 1
            await client.trigger(body, {"k": "one", "n": sent})
            # sometimes in a row, sometimes so long that the window may close
            await asyncio.sleep(0.06 if sent % 7 == 0 else 0)

    await asyncio.gather(*map(send, clients))
    await wait_until_async(lambda: sum(map(len, order["one"])) >= sent, description=f"all {sent} events")
    await asyncio.sleep(0.3)
    assert sorted(n for batch in order["one"] for n in batch) == list(range(1, sent + 1))


async def test_a_client_that_takes_no_new_runs_takes_no_events(workers: Workers) -> None:
    worker = workers.start(digest)

    def refuse() -> None:
        raise BackpressureRejected("too much")

    client = WorkflowClient(worker.store, admit=refuse)
    with pytest.raises(BackpressureRejected):
        await client.trigger(digest, {"user_id": "u", "n": 0})
    assert await worker.client.buffered(digest) == []


async def test_ids_of_a_bodys_events_are_forgotten_once_their_answers_are_written(
    server: Server,
) -> None:
    workers = Workers(lambda: ValkeyStore(server.url, namespace=server.namespace, shards=2))
    worker = workers.start(digest, feeder, side_by_side)
    for run in [
        await worker.client.submit(feeder, {"numbers": list(range(7))}),
        await worker.client.submit(feeder, {"numbers": list(range(7))}, owner="ann"),
        await worker.client.submit(side_by_side),
    ]:
        await run.result(timeout=180)

    async def forgotten() -> bool:
        return not [key for key in await server.keys() if b"}ti:" in key]

    await wait_until_async(forgotten, description="the ids to be forgotten")
    await workers.end()


async def test_an_event_is_refused_beside_a_worker_that_has_the_workflow_bound_to_a_topic(workers: Workers) -> None:
    client = workers.client()
    await client.store.open()
    store: Any = client.store
    await store.enlist("kafka-1", (Enlisted("worker_digest", "1", "comments", False),))
    with pytest.raises(ConfigurationError, match=r"'worker_digest' has flow control.*topic 'comments'.*kafka-1"):
        await client.trigger(digest, {"user_id": "u", "n": 0})
    await store.strike("kafka-1")
    assert await client.trigger(digest, {"user_id": "u", "n": 0}) is None
    assert [batch.events for batch in await client.buffered(digest)] == [1]
