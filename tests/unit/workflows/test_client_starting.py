import asyncio
import logging
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, Field

from pyrula.workflows import (
    ConfigurationError,
    InlineWorkflowRunner,
    Limit,
    MemoryStore,
    RunFinishedError,
    SerializationError,
    WorkflowClient,
    WorkflowWorker,
    workflow,
)
from pyrula.workflows.params import ParamsError
from pyrula.workflows.store.messages import Change, End


class Item(BaseModel):
    sku: str
    count: int = Field(1, alias="n")


class Order(BaseModel):
    items: list[Item]
    note: str | None = None


@workflow(name="client_order", version="7")
async def order(ctx: object, items: list[Item], note: str | None = None, *, at: datetime | None = None) -> str:
    return ""


@workflow(name="client_open")
async def takes_more(ctx: object, known: int = 0, **more: Any) -> None: ...


@workflow(name="starting_weigh")
async def weigh(ctx: object, weight: float, more: Any = None) -> None: ...


@pytest.fixture
def client() -> WorkflowClient:
    return WorkflowClient(MemoryStore())


async def stored(client: WorkflowClient, name: Any, params: Any) -> bytes:
    return (await client.store.history(str(await client.submit(name, params)))).params


@pytest.mark.parametrize(
    "params",
    [
        {"items": [{"sku": "a", "n": 2}]},
        {"items": [Item(sku="a", n=2)]},
        Order(items=[Item(sku="a", n=2)]).model_copy(update={"note": None}),
    ],
    ids=["dict", "models inside", "model"],
)
async def test_params_are_a_dict_or_a_model(client: WorkflowClient, params: Any) -> None:
    assert (await stored(client, order, params)).startswith(b'{"items":[{"sku":"a","n":2}]')


async def test_defaults_are_left_to_the_body(client: WorkflowClient) -> None:
    assert await stored(client, order, {"items": []}) == b'{"items":[]}'
    assert await stored(client, takes_more, None) == b"{}"


async def test_values_are_written_in_the_form_that_their_annotation_says(client: WorkflowClient) -> None:
    params = {"items": (), "at": datetime(2025, 1, 1, tzinfo=UTC)}
    assert await stored(client, "client_order", params) == b'{"items":[],"at":"2025-01-01T00:00:00Z"}'


async def test_a_body_with_keywords_takes_what_comes(client: WorkflowClient) -> None:
    assert await stored(client, takes_more, {"known": "5", "other": [1]}) == b'{"known":5,"other":[1]}'


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({}, "items: Field required"),
        ({"items": [{"sku": "a", "n": "many"}]}, r"items\.0\.n: Input should be a valid integer"),
        ({"items": [], "nots": "x"}, r"nots: the body takes no such parameter \(it takes: at, items, note\)"),
        ({"items": [], "note": 5, "at": "soon"}, "note: .*; at: "),
        ([1], "params must be a dict or a model, not list"),
        ({1: 2}, "names of params must be texts, not 1"),
    ],
)
async def test_value_error_names_workflow_and_field(client: WorkflowClient, params: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"workflow 'client_order'.*{told}"):
        await client.submit(order, params)
    with pytest.raises(ValueError, match=f"workflow 'client_order'.*{told}"):
        await client.signal_with_start("client_order", params, "go", idempotency_key="k")


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"weight": math.nan}, "weight: nan has no form in JSON"),
        ({"weight": 1.0, "more": {"a": [1.0, math.inf]}}, "more.a.1: inf has no form in JSON"),
        ({"weight": 1.0, "more": {1, 2}}, None),
    ],
)
async def test_a_number_that_json_lacks_is_named_with_its_field(
    client: WorkflowClient, params: dict[str, Any], told: str | None
) -> None:
    with pytest.raises(ParamsError if told else SerializationError) as caught:
        await client.submit("starting_weigh", params)
    assert told is None or str(caught.value) == f"workflow 'starting_weigh', {told}"
    assert "\n" not in str(caught.value)
    assert "https://" not in str(caught.value)


@pytest.mark.parametrize("digits", [20, 400, 5000])
async def test_a_number_that_json_readers_round_is_refused(client: WorkflowClient, digits: int) -> None:
    with pytest.raises(SerializationError, match=r"^workflow 'starting_weigh': its params: "):
        await client.submit("starting_weigh", {"weight": 1.0, "more": 10**digits})


async def test_values_are_not_told_in_errors(client: WorkflowClient) -> None:
    with pytest.raises(ValueError, match="items") as caught:
        await client.submit(order, {"items": "hunter2"})
    assert "hunter2" not in str(caught.value)


async def test_an_annotation_without_a_form_in_json_is_told(client: WorkflowClient) -> None:
    @workflow(name="client_strange")
    async def strange(ctx: object, lock: asyncio.Lock) -> None: ...

    with pytest.raises(ConfigurationError, match="client_strange"):
        await client.submit(strange, {"lock": None})


async def test_the_version_is_stamped_from_the_decorator(client: WorkflowClient) -> None:
    run = await client.submit("client_order", {"items": []})
    assert (await run.detail()).version == "7"


async def test_a_name_that_is_not_imported_works_and_is_logged(
    client: WorkflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pyrula.client"):
        run = await client.submit("client_unheard_of", {"any": {"thing": Item(sku="a", n=1)}})
        await client.submit("client_unheard_of")
    detail = await run.detail()
    assert (detail.version, detail.params) == (None, {"any": {"thing": {"sku": "a", "count": 1}}})
    assert len(caplog.messages) == 1
    assert "'client_unheard_of' isn't imported" in caplog.messages[0]
    await client.submit("client_ordr", {"items": []})
    assert caplog.messages[1].endswith("; did you mean client_order?")


async def test_a_key_that_fails_for_these_params_queues_nothing(client: WorkflowClient) -> None:
    @workflow(name="client_gated", concurrency=Limit(key=lambda p: p["org"]["id"], max=2))
    async def gated(ctx: object, org: Any = None) -> None: ...

    with pytest.raises(ValueError, match="workflow 'client_gated': the key of Limit failed"):
        await client.submit("client_gated", {})


@pytest.mark.parametrize("priority", [101, -101, 1.0, True, "1", None])
async def test_a_priority_that_is_none(client: WorkflowClient, priority: Any) -> None:
    with pytest.raises(ValueError, match="from -100 to 100"):
        await client.submit("client_unheard_of", {}, priority=priority)


def test_a_url_is_no_store() -> None:
    url: Any = "valkey://localhost"
    with pytest.raises(ConfigurationError, match=r"store= takes a store, such as ValkeyStore\(url\)"):
        WorkflowClient(url)
    with pytest.raises(ConfigurationError, match="not a URL itself"):
        WorkflowWorker([order], store=url)


async def test_a_function_without_its_decorator_is_told(client: WorkflowClient) -> None:
    async def plain(ctx: object) -> None: ...

    undeclared: Any = plain
    told = r"not by <function .*plain.*@workflow\(name=\.\.\.\)"
    with pytest.raises(ConfigurationError, match=told):
        await client.submit(undeclared)
    with pytest.raises(ConfigurationError, match=told):
        await client.trigger(undeclared, {})
    with pytest.raises(ConfigurationError, match=told):
        await InlineWorkflowRunner().start(undeclared)


async def test_an_empty_id_is_none(client: WorkflowClient) -> None:
    run = await client.submit(takes_more)
    for call in (
        client.submit(""),
        client.submit(takes_more, idempotency_key=""),
        client.signal_with_start(takes_more, {}, "go", idempotency_key=""),
        run.signal(""),
        run.signal("go", signal_id=""),
        run.query(""),
        run.update(""),
        run.update("add", update_id=""),
        run.resume(""),
        run.resume("approve", wait_id=""),
        run.signal("\ud800"),
    ):
        with pytest.raises(ValueError, match="text"):
            await call


async def test_metadata_is_anything_that_json_holds(client: WorkflowClient) -> None:
    run = await client.submit(takes_more, metadata={"at": datetime(2025, 1, 1, tzinfo=UTC), "tags": ["a"]})
    assert (await run.detail()).metadata == {"at": "2025-01-01T00:00:00+00:00", "tags": ["a"]}
    with pytest.raises(SerializationError, match=r"client_open.*metadata"):
        await client.submit(takes_more, metadata=object())


async def test_the_store_is_opened_once_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    async def open_slowly() -> None:
        opened.append(1)
        await asyncio.sleep(0)

    store = MemoryStore()
    monkeypatch.setattr(store, "open", open_slowly)
    client = WorkflowClient(store)
    client.handle(order, "x")
    assert opened == []
    await asyncio.gather(*(client.submit(takes_more) for _ in range(5)))
    assert opened == [1]


async def test_a_store_that_could_not_be_opened_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = [OSError("down")]

    async def open_sometimes() -> None:
        if trouble:
            raise trouble.pop()

    store = MemoryStore()
    monkeypatch.setattr(store, "open", open_sometimes)
    client = WorkflowClient(store)
    with pytest.raises(OSError, match="down"):
        await client.submit(takes_more)
    assert await (await client.submit(takes_more)).status() == "queued"


def test_a_client_serves_one_event_loop_after_the_other() -> None:
    client = WorkflowClient(MemoryStore())

    async def submit() -> str:
        first, _ = await asyncio.gather(client.submit(takes_more), client.submit(takes_more))
        return str(first)

    run_id = asyncio.run(submit())
    assert asyncio.run(client.status("client_open", run_id)) == "queued"
    assert asyncio.run(client.cancel("client_open", run_id)) == "cancelled"


async def test_whoever_drives_runs_hears_of_all_that_is_sent() -> None:
    sent: list[str] = []

    class Driver:
        async def until(self, run_id: str, read: Any, seconds: Any, *, woken: Any = None) -> Any:
            """Plays a worker that completes what is asked for."""
            while (found := await read()) is None:
                (claimed,) = (await store.claim("w", [("client_open", "1")], 1)).runs
                await store.finish(claimed.lease, Change(1), End("completed"))
            return found

        async def sent(self, run_id: str) -> None:
            sent.append(run_id)

    store = MemoryStore()
    client = WorkflowClient(store, waits=Driver())
    run = await client.submit("client_open")
    await run.signal("go")
    assert await run.result() is None
    assert await run.cancel() == "completed"
    with pytest.raises(RunFinishedError):
        await run.update("add")
    assert sent == [str(run)] * 3
