"""Users' text on a cluster: whatever stands in names, owners, keys and ids, no request touches two slots."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pyrula.workflows import Limit, Rate, ValkeyStore, WorkflowClient, workflow
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.store.messages import Change, End, Message, Wait
from pyrula.workflows.store.runs import Query, Schedule
from tests.services.valkey_cluster import ValkeyCluster

TEXTS = [
    "{",
    "}",
    "{}",
    "}{",
    "{a}{b}",
    "{pyrula:3}run",
    "a:b",
    "with spaces and\nnew lines\t",
    "nul\0inside",
    "\u00e9\U0001f9ea\u202e",
    "x" * 10_000,
    "*4\r\n$4\r\nHSET\r\n",
]


@workflow(name="names_gated", concurrency=Limit(key="key", max=1), rate_limit=Rate(key="other", per_second=1000))
async def gated(ctx: object, key: str, other: str) -> None:
    pass


@pytest.fixture
async def store(cluster: ValkeyCluster, namespace: str) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(cluster.url, namespace=namespace)
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_any_text_lives_through_a_run(store: ValkeyStore, text: str) -> None:
    client = WorkflowClient(store, poll_interval=0.1)
    run = await client.submit(text, {text: text}, idempotency_key=text, owner=text, metadata={text: text})
    assert await client.submit(text, {text: text}, idempotency_key=text) == run
    (claimed,) = (await store.claim("w", [(text, "1")], 1)).runs
    assert (claimed.name, claimed.owner) == (text, text)
    assert (await store.park(claimed.lease, Change(1), [Wait("signal", text)])).parked
    await run.signal(text, text, signal_id=text)
    (again,) = (await store.claim("w", [(text, "1")], 1)).runs
    assert [unread.message.id for unread in again.messages] == [text]
    query = Query(text, run.run_id, text, b"[]")
    await store.ask(run.run_id, query, seconds=60)
    assert await store.questions("w", [(text, "1")], 5) == (query,)
    await store.answer(query, b"1")
    assert await store.read_answer(query) == b"1"
    assert [found.run_id for found in await client.list(name=text, owner=text)] == [run.run_id]
    assert (await client.counts(text)).total == 1
    await store.finish(again.lease, Change(1), End("completed", b"1"))
    assert await run.result() == 1
    assert (await run.detail()).metadata == {text: text}
    await store.put_schedule(Schedule(text, text, b"{}", 1.0))
    assert [schedule.id for schedule in await store.due_schedules()] == [text]
    await store.delete_schedule(text)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_any_text_is_a_key_of_a_policy(store: ValkeyStore, text: str) -> None:
    client = WorkflowClient(store, poll_interval=0.1)
    runs = [
        await client.submit(gated, {"key": text, "other": "x" + text}, idempotency_key=f"{number}{text}")
        for number in range(2)
    ]
    served = [("names_gated", "1")]
    (first,) = (await store.claim("w", served, 10)).runs
    await store.finish(first.lease, Change(1), End("completed", b"null"))
    (second,) = (await store.claim("w", served, 10)).runs
    await store.finish(second.lease, Change(1), End("completed", b"null"))
    assert {first.lease.run_id, second.lease.run_id} == {run.run_id for run in runs}
    await asyncio.gather(*(run.result(timeout=180) for run in runs))


@pytest.mark.parametrize("text", [*TEXTS, "", "a/b"], ids=range(len(TEXTS) + 2))
def test_a_namespace_that_can_not_be_a_tag_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="can't be used in keys"):
        ValkeyStore(namespace=text)


async def test_ids_of_messages_are_data(store: ValkeyStore) -> None:
    client = WorkflowClient(store, poll_interval=0.1)
    run = await client.submit("names")
    for text in TEXTS:
        await store.deliver(run.run_id, Message("signal", text, text))
        assert (await store.deliver(run.run_id, Message("signal", text, text))).duplicate
    (claimed,) = (await store.claim("w", [("names", "1")], 1)).runs
    assert [unread.message.id for unread in claimed.messages] == TEXTS
    await store.finish(claimed.lease, Change(1), End("completed", b"null"))
