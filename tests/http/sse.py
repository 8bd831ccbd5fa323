"""Reading server-sent events, as a browser does."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx


class Sent(NamedTuple):
    id: str
    event: str
    data: dict[str, Any]


async def read_stream(
    http: httpx.AsyncClient, path: str, last: str | None = None, method: str = "GET", **options: Any
) -> AsyncIterator[Sent]:
    """The events of one connection, until the server ends it."""
    headers = {} if last is None else {"Last-Event-ID": last}
    async with http.stream(method, path, headers=headers, timeout=60, **options) as answer:
        if answer.status_code == 204:
            return
        assert answer.headers["content-type"].startswith("text/event-stream"), await answer.aread()
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                assert name not in fields, "one line a field"
                fields[name] = value
            elif not line:
                if "data" in fields:
                    yield Sent(fields["id"], fields["event"], json.loads(fields["data"]))
                fields = {}


async def read_all(http: httpx.AsyncClient, path: str, last: str | None = None, **options: Any) -> list[Sent]:
    return [sent async for sent in read_stream(http, path, last, **options)]
