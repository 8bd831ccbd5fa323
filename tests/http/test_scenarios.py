"""One suite through the client and through HTTP: they agree on every answer and every exception."""

from typing import Any

import pytest

from pyrula.http import create_app
from pyrula.workflows import (
    DurableInvocationCancelled,
    DurableInvocationError,
    DurableInvocationTimeout,
    QueryError,
    QueryTimeout,
    RunFinishedError,
    RunNotFoundError,
    RunNotWaitingError,
    SerializationError,
    TransitionRefused,
    UpdateError,
    UpdateRejected,
    UpdateTimeout,
)
from tests.http.conftest import Site
from tests.http.remote import RemoteClient
from tests.services.waiting import wait_until_async


@pytest.fixture(params=["client", "http"])
async def api(request: pytest.FixtureRequest, site: Site) -> Any:
    """Typed as any: both have the methods that the suite uses."""
    if request.param == "client":
        return await site.client()
    return RemoteClient(await site.local())


async def until(run: Any, status: str) -> None:
    async def there() -> bool:
        return bool(await run.status() == status)

    await wait_until_async(there, description=f"{run} to be {status}", interval=0.02)


async def test_a_run_is_started_and_gives_its_result(site: Site, api: Any) -> None:
    await site.worker()
    run = await api.submit("http_charge", {"order": {"id": "o-1", "amount_cents": "500"}})
    assert await run.result(timeout=180) == {"order": "o-1", "paid": 500, "note": ""}
    assert await run.status() == "completed"
    types = [event.type for event in await run.events()]
    assert types[:2] == ["submitted", "started"]
    assert types[-1] == "completed"


async def test_a_key_gives_the_first_run(api: Any) -> None:
    first = await api.submit("http_cart", {}, idempotency_key="order-7 ü")
    again = await api.submit("http_cart", {"size": 5}, idempotency_key="order-7 ü")
    assert str(first) == str(again)
    assert str(await api.submit("http_echo", {}, idempotency_key="order-7 ü")) != str(first)


async def test_bad_params_name_workflow_and_field(api: Any) -> None:
    for params, told in (
        ({}, "order: Field required"),
        ({"order": {"id": "o", "amount_cents": "many"}}, r"order\.amount_cents"),
        ({"order": {"id": "o", "amount_cents": 1}, "nonsense": 1}, "nonsense: the body takes no such parameter"),
    ):
        with pytest.raises(ValueError, match=f"^workflow 'http_charge', {told}"):
            await api.submit("http_charge", params)


async def test_signals_updates_and_queries(site: Site, api: Any) -> None:
    await site.worker()
    run = await api.submit("http_cart", {"size": 2})
    assert await run.update("add", {"sku": "A-1"}, update_id="u-1") == 1
    assert await run.update("add", {"sku": "A-1"}, update_id="u-1") == 1
    assert await run.update("add", "B-2") == 2
    with pytest.raises(UpdateRejected) as rejected:
        await run.update("add", "C-3", update_id="u-3")
    assert (rejected.value.update_id, rejected.value.error_type) == ("u-3", "ValueError")
    with pytest.raises(UpdateError, match="LookupError: boom") as failed:
        await run.update("explode", update_id="u-4")
    assert failed.value.update_id == "u-4"
    assert await run.query("items") == ["A-1", "B-2"]
    assert await run.query("items", 1) == await run.query("items", last=1) == ["B-2"]
    with pytest.raises(QueryError, match="no query 'nonsense'") as unknown:
        await run.query("nonsense")
    assert unknown.value.error_type == ""
    with pytest.raises(QueryError, match="LookupError: boom"):
        await run.query("broken")
    await run.signal("checkout", signal_id="s-1")
    assert await run.result(timeout=180) == ["A-1", "B-2"]
    for call in (run.signal("checkout"), run.update("add", "D")):
        with pytest.raises(RunFinishedError) as finished:
            await call
        assert (finished.value.run_id, finished.value.status) == (str(run), "completed")
    assert await run.update("add", {"sku": "A-1"}, update_id="u-1") == 1


async def test_an_update_that_nobody_applies_and_a_query_that_nobody_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrula.workflows.client.calls._ANSWER_GRACE", 0.0)
    client = await site.client(query_timeout=0.1)
    remote = RemoteClient(await site.http(await site.served(create_app(client))))
    for api in (client, remote):
        run: Any = await api.submit("http_cart")  # type: ignore[attr-defined]
        with pytest.raises(UpdateTimeout) as timed_out:
            await run.update("add", {"sku": "A"}, update_id="u-1", timeout=0.05)
        assert timed_out.value.update_id == "u-1"
        with pytest.raises(QueryTimeout):
            await run.query("items")


async def test_an_interrupt_is_answered_once(site: Site, api: Any) -> None:
    await site.worker()
    run = await api.submit("http_asks")
    with pytest.raises(RunNotWaitingError):
        await run.resume("yes", wait_id="nonsense")
    await until(run, "interrupt_waiting")
    await run.resume("yes", {"because": 1})
    assert await run.result(timeout=180) == ["yes", {"because": 1}]
    with pytest.raises(RunNotWaitingError) as refused:
        await run.resume("no")
    assert refused.value.status == "completed"


async def test_cancel_pause_unpause_retry(site: Site, api: Any) -> None:
    await site.worker()
    run = await api.submit("http_echo")
    await until(run, "signal_waiting")
    with pytest.raises(TransitionRefused):
        await run.unpause()
    assert await run.pause("look at it") == "paused"
    with pytest.raises(TransitionRefused):
        await run.retry()
    assert await run.unpause() in ("queued", "running", "signal_waiting")
    assert await run.cancel() == "cancelled"
    assert await run.cancel() == "cancelled"
    with pytest.raises(DurableInvocationCancelled):
        await run.result(timeout=180)
    assert await run.retry() in ("queued", "running")
    await run.signal("go", [1, 2])
    assert await run.result(timeout=180) == [1, 2]


async def test_results_of_a_run_that_failed_or_has_not_ended(site: Site, api: Any) -> None:
    run = await api.submit("http_fails")
    with pytest.raises(DurableInvocationTimeout) as unfinished:
        await run.result(timeout=0)
    assert unfinished.value.status == "queued"
    await site.worker()
    with pytest.raises(DurableInvocationError, match="failed: ValueError: broken") as failed:
        await run.result(timeout=180)
    assert (failed.value.error_type, failed.value.message) == ("ValueError", "broken")


async def test_what_is_no_run_is_not_found(api: Any) -> None:
    for run_id in ("order-7", "00-01JDZ8Z5Y3Q4R5S6T7V8W9XABC", "../runs", "a/b", "%2e%2e%2f", "é\n"):
        run = api.handle("http_cart", run_id)
        for call in (
            run.signal("go"),
            run.query("items"),
            run.update("add"),
            run.resume("yes"),
            run.cancel(),
            run.pause(),
            run.unpause(),
            run.retry(),
            run.status(),
            run.result(timeout=0),
            run.events(),
        ):
            with pytest.raises(RunNotFoundError) as caught:
                await call
            assert caught.value.run_id == run_id


async def test_a_signal_with_start(site: Site, api: Any) -> None:
    run = await api.signal_with_start("http_echo", {}, "go", 1, idempotency_key="k")
    again = await api.signal_with_start("http_echo", {}, "go", 2, idempotency_key="k")
    assert str(run) == str(again)
    await site.worker()
    assert await run.result(timeout=180) == 1
    with pytest.raises(RunFinishedError):
        await api.signal_with_start("http_echo", {}, "go", 3, idempotency_key="k")


async def test_a_chain_is_one_run(site: Site, api: Any) -> None:
    await site.worker()
    run = await api.submit("http_counts", {"left": 3})
    assert await run.result(timeout=180) == 1
    assert await api.handle("http_counts", f"{run}~2").result(timeout=180) == 1


async def test_any_name_and_any_json(site: Site, api: Any) -> None:
    await site.worker()
    run = await api.submit("http steps/a b%é", {"steps": 1}, metadata={"é": [1, None, "🜁"]})
    assert await run.result(timeout=180) == 1
    echoed = await api.submit("http_echo")
    payload = {"": [[], {}], "n": [0, -1, 1.5, 2**63], "t": "\x00🜁\u2028</script>", "none": None}
    await echoed.signal("go", payload)
    assert await echoed.result(timeout=180) == payload
    large = await api.submit("http_echo")
    with pytest.raises(SerializationError, match="1,048,576"):
        await large.signal("go", "x" * 1_048_576)
    with pytest.raises(SerializationError):
        await large.signal("go", 2**70)
    unknown = await api.submit("http_nobody_knows", {"any": [1]})
    assert await unknown.status() == "queued"


async def test_events_for_a_trigger(api: Any) -> None:
    assert await api.trigger("http_digest", {"user_id": "u1", "n": 1}) is None
    run = await api.trigger("http_digest", {"user_id": "u1", "n": 2})
    assert await run.status() == "queued"


async def test_runs_are_listed(api: Any) -> None:
    runs = [str(await api.submit("http_cart")) for _ in range(3)]
    listed = await api.list(name="http_cart")
    # newest first, but those of one millisecond in any order
    assert sorted(str(getattr(run, "run_id", run)) for run in listed) == sorted(runs)
