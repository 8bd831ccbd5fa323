"""The client's interface over HTTP: the same methods, the same exceptions, made from the answers of the API."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx

from pyrula.workflows import (
    BackpressureRejected,
    DurableInvocationCancelled,
    DurableInvocationError,
    DurableInvocationTimeout,
    Event,
    InboxFullError,
    QueryError,
    QueryTimeout,
    RunFinishedError,
    RunNotFoundError,
    RunNotWaitingError,
    RunStatus,
    SerializationError,
    StoreUnavailable,
    TransitionRefused,
    UpdateError,
    UpdateRejected,
    UpdateTimeout,
)
from pyrula.workflows.params import ParamsError

POLL_SECONDS = 20.0


class RemoteClient:
    """WorkflowClient's methods that a program uses, over HTTP."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def submit(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        owner: str = "",
        metadata: Any = None,
    ) -> "RemoteHandle":
        body = {"params": dict(params or {}), "metadata": metadata} | ({"owner": owner} if owner else {})
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key.encode()}
        told = await self.call("POST", f"/{quote(name, safe='')}/runs", json=body, headers=headers)
        return RemoteHandle(self, name, told["run_id"])

    async def signal_with_start(
        self, name: str, params: Mapping[str, Any] | None, signal: str, payload: Any = None, *, idempotency_key: str
    ) -> "RemoteHandle":
        body = {
            "params": dict(params or {}),
            "idempotency_key": idempotency_key,
            "signal": {"signal": signal, "payload": payload},
        }
        told = await self.call("POST", f"/{quote(name, safe='')}/runs", json=body)
        return RemoteHandle(self, name, told["run_id"])

    def handle(self, name: str, run_id: str) -> "RemoteHandle":
        return RemoteHandle(self, name, run_id)

    async def trigger(self, name: str, event: Mapping[str, Any]) -> "RemoteHandle | None":
        told = await self.call("POST", f"/{quote(name, safe='')}/events", json={"event": dict(event)})
        return None if told is None else RemoteHandle(self, name, told["run_id"])

    async def list(self, *, name: str) -> list[str]:
        told = await self.call("GET", "/runs", params={"name": name})
        return [run["run_id"] for run in told["runs"]]

    async def call(self, method: str, path: str, **options: Any) -> Any:
        answer = await self.http.request(method, path, **options)
        if answer.headers["content-type"] == "application/problem+json":
            raise _error(answer.json())
        assert answer.is_success, answer.text
        return answer.json()


class RemoteHandle:
    """RunHandle's methods, over HTTP."""

    def __init__(self, client: RemoteClient, name: str, run_id: str) -> None:
        self._client = client
        self._name = quote(name, safe="")
        self.run_id = run_id

    def __str__(self) -> str:
        return self.run_id

    async def _run(self, method: str, what: str = "", **options: Any) -> Any:
        return await self._client.call(method, f"/{self._name}/runs/{quote(self.run_id, safe='')}{what}", **options)

    async def signal(self, signal: str, payload: Any = None, *, signal_id: str | None = None) -> None:
        await self._run("POST", "/signal", json={"signal": signal, "payload": payload, "signal_id": signal_id})

    async def query(self, query: str, /, *args: Any, **kwargs: Any) -> Any:
        told = await self._run("POST", "/query", json={"query": query, "args": args, "kwargs": kwargs})
        return told["value"]

    async def update(
        self, update: str, payload: Any = None, *, update_id: str | None = None, timeout: float = 30.0
    ) -> Any:
        body = {"update": update, "payload": payload, "update_id": update_id, "timeout": timeout}
        return (await self._run("POST", "/update", json=body))["value"]

    async def resume(self, action: str, value: Any = None, *, wait_id: str | None = None) -> None:
        await self._run("POST", "/resume", json={"action": action, "value": value, "wait_id": wait_id})

    async def cancel(self, timeout: float | timedelta | None = 10.0) -> RunStatus:
        path = f"/{self._name}/stream/{quote(self.run_id, safe='')}"
        return RunStatus((await self._client.call("DELETE", path, params={"timeout": timeout}))["status"])

    async def pause(self, reason: str = "") -> RunStatus:
        return RunStatus((await self._run("POST", "/pause", json={"reason": reason}))["status"])

    async def unpause(self) -> RunStatus:
        return RunStatus((await self._run("POST", "/unpause"))["status"])

    async def retry(self) -> RunStatus:
        return RunStatus((await self._run("POST", "/retry"))["status"])

    async def status(self) -> RunStatus:
        return RunStatus((await self._run("GET"))["status"])

    async def detail(self) -> dict[str, Any]:
        told: dict[str, Any] = await self._run("GET")
        return told

    async def result(self, *, timeout: float | None = None) -> Any:
        """One long poll after the other, each shorter than the API's longest and than what the connection waits."""
        left = POLL_SECONDS if timeout is None else timeout
        while True:
            try:
                told = await self._run("GET", "/result", params={"timeout": min(left, POLL_SECONDS)})
            except DurableInvocationTimeout:
                left -= POLL_SECONDS
                if left <= 0:
                    raise
            else:
                return told["value"]

    async def events(self) -> list[Event]:
        told = await self._run("GET", "/events")
        return [Event(each["type"], seconds(each["at"]), each["data"]) for each in told]


def seconds(moment: str) -> float:
    """Of a time with its zone, as the API writes it."""
    at = datetime.fromisoformat(moment)
    assert at.tzinfo is not None
    return at.timestamp()


def _error(problem: dict[str, Any]) -> Exception:
    """The exception that the client would have raised, from what the problem has."""
    run_id, detail = problem.get("run_id", ""), problem["detail"]
    cause = (problem.get("error_type", ""), problem.get("message", ""))
    update = (run_id, problem.get("update", ""), problem.get("update_id", ""))
    status = problem.get("run_status", "")
    made: dict[str, Any] = {
        "RunNotFoundError": lambda: RunNotFoundError(run_id),
        "RunFinishedError": lambda: RunFinishedError(run_id, status, detail.removeprefix(f"run {run_id} ")),
        "RunNotWaitingError": lambda: RunNotWaitingError(run_id, status, detail.removeprefix(f"run {run_id} ")),
        "TransitionRefused": lambda: TransitionRefused(run_id, status, detail.removeprefix(f"run {run_id} ")),
        "InboxFullError": lambda: InboxFullError(run_id, status, detail),
        "QueryError": lambda: QueryError(run_id, problem["query"], *cause),
        "QueryTimeout": lambda: QueryTimeout(run_id, problem["query"], *cause),
        "UpdateRejected": lambda: UpdateRejected(*update, *cause),
        "UpdateError": lambda: UpdateError(*update, *cause),
        "UpdateTimeout": lambda: UpdateTimeout(*update, 0.0),
        "DurableInvocationError": lambda: DurableInvocationError(run_id, *cause),
        "DurableInvocationCancelled": lambda: DurableInvocationCancelled(run_id),
        "DurableInvocationTimeout": lambda: DurableInvocationTimeout(run_id, status, 0.0),
        "BackpressureRejected": lambda: BackpressureRejected(detail),
        "SerializationError": lambda: SerializationError(detail),
        "StoreUnavailable": lambda: StoreUnavailable(detail),
        "ParamsError": lambda: ParamsError(
            problem["workflow"],
            [(each["field"].removeprefix("params."), each["message"]) for each in problem["errors"]],
        ),
    }
    assert problem["code"] in made, problem
    error: Exception = made[problem["code"]]()
    return error
