"""The OpenAPI document: each workflow's params are in it, and the API does what it says (schemathesis)."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy, one_of
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pyrula.http import create_app, describe_workflows, workflow_router
from pyrula.workflows import Context, MemoryStore, WorkflowClient, workflow
from tests.http.conftest import Site, serving
from tests.http.workflows import ALL

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 5
SPECIAL = ("/http_charge/runs", "/http_charge/stream", "/http_fails/stream")


def test_each_workflow_has_its_params() -> None:
    document = create_app(WorkflowClient(MemoryStore()), workflows=ALL).openapi()
    for path in ("/http_charge/runs", "/http_charge/stream"):
        operation = document["paths"][path]["post"]
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        request = document["components"]["schemas"][reference.rpartition("/")[2]]
        assert request["required"] == ["params"]
        params = request["properties"]["params"]
        assert params["required"] == ["order"]
        assert params["properties"]["order"] == {"$ref": "#/components/schemas/http_charge.Order"}
        assert params["additionalProperties"] is False
    order = document["components"]["schemas"]["http_charge.Order"]
    assert order["properties"]["amount_cents"]["type"] == "integer"
    assert "/http%20steps%2Fa%20b%25%C3%A9/runs" in document["paths"]
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))


def test_a_workflow_that_is_imported_later_is_in_it() -> None:
    app = create_app(WorkflowClient(MemoryStore()))
    before = app.openapi()
    assert app.openapi() is before

    @workflow(name="http_later")
    async def later(ctx: Context, when: str) -> None: ...

    assert "/http_later/runs" in app.openapi()["paths"]
    assert later.name == "http_later"


def test_an_app_of_ones_own_has_it_too() -> None:
    app = FastAPI()
    app.include_router(workflow_router(WorkflowClient(MemoryStore())), prefix="/api/v1")
    describe_workflows(app, prefix="/api/v1")
    paths = app.openapi()["paths"]
    assert {"/api/v1/{name}/runs", "/api/v1/http_charge/runs"} <= paths.keys()


class Running:
    """The API with a worker behind, in a loop of its own: schemathesis asks from outside, as anybody would."""

    def __init__(self, valkey: str, namespace: str) -> None:
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._ending: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run(valkey, namespace)])

    async def _run(self, valkey: str, namespace: str) -> None:
        self._ending = asyncio.Event()
        async with AsyncExitStack() as stack:
            site = Site(valkey, namespace, stack)
            await site.worker()
            app = create_app(await site.client(query_timeout=5), max_body=100_000)
            self.url = await stack.enter_async_context(serving(app))
            self._ready.set()
            await self._ending.wait()

    def __enter__(self) -> str:
        self._thread.start()
        assert self._ready.wait(120)
        return self.url

    def __exit__(self, *failure: object) -> None:
        assert self._ending is not None
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(60)
        self._loop.close()


@pytest.fixture
def running(valkey: str, namespace: str) -> Iterator[str]:
    with Running(valkey, namespace) as url:
        yield url


def started(url: str) -> list[dict[str, str]]:
    """Runs in several statuses, as path parameters."""
    found = []
    for name, params in (("http_cart", {}), ("http_asks", {}), ("http_fails", {}), ("http_counts", {"left": 2})):
        answer = httpx.post(f"{url}/{name}/runs", json={"params": params}, timeout=120)
        found.append({"name": name, "run_id": answer.json()["run_id"]})
    return found


def test_the_api_does_what_its_document_says(running: str) -> None:
    """Requests that fit the document and requests that don't, to runs and schedules that are there and to any."""
    schema = schemathesis.openapi.from_url(f"{running}/openapi.json")
    statuses: Counter[int] = Counter()
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        assert operation is not None
        special = "{name}" not in operation.path and operation.path.endswith(("/runs", "/stream"))
        if operation.path == "/{name}/stream" or (special and operation.path not in (*SPECIAL, "/runs")):
            # it follows a run that waits for ever; or it is one of the many workflows' own
            continue
        tried += 1
        there = [{"schedule_id": "nightly"}] if "{schedule_id}" in operation.path else []
        if "{run_id}" in operation.path:
            there = started(running)
            if operation.label.startswith("GET /{name}/stream"):
                there = there[2:]
        for mode in GenerationMode:
            strategies = [operation.as_strategy(mode)]
            if mode is GenerationMode.POSITIVE:
                strategies += [operation.as_strategy(mode, path_parameters=each) for each in there]
            statuses.update(tell(running, one_of(strategies)))
    assert tried >= 30, tried
    # all this isn't about requests that are refused
    assert {200, 201, 202, 404, 409, 422} <= statuses.keys(), statuses


def tell(url: str, cases: SearchStrategy[Any]) -> list[int]:
    """Sends these and checks the answers."""
    seen: list[int] = []

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def ask(case: Any) -> None:
        if any(each.name == "timeout" for each in case.operation.query) and is_number(case.query.get("timeout", 30)):
            case.query["timeout"] = 0.01
        if isinstance(case.body, dict) and is_number(case.body.get("timeout")):
            # long enough for the worker: its 504 is no fault
            case.body["timeout"] = 20
        answer = case.call(timeout=120)
        case.validate_response(answer, checks=CHECKS)
        seen.append(answer.status_code)

    # of some operations no request doesn't fit
    with suppress(Unsatisfiable):
        ask()
    return seen


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
