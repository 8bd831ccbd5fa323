"""Request bodies: read within limits, also when they come in chunks and nobody knows how long they will be.

Rules: never more than `max_body` bytes are kept. A body over it is read on and thrown away for a while before the
answer, or the sender would see a broken connection instead of it. JSON is UTF-8, without NaN, and at most `MAX_DEPTH`
deep; whole numbers of any size stay what they are, so that what can't be stored is refused and not rounded.
"""

import asyncio
from collections.abc import Iterable, Mapping
from email.message import Message
from typing import Any, Final

import pydantic_core
from starlette.requests import Request
from starlette.types import Receive, Scope

from pyrula.http.problems import Refusal

__all__ = ["BODY_SECONDS", "MAX_BODY", "MAX_DEPTH", "BoundedRequest"]

MAX_BODY: Final = 2 * 1024 * 1024
"""Bytes, by default: a value of 1 MiB with metadata, and some room."""

MAX_DEPTH: Final = 100
"""Of objects and lists in each other. What stores and codecs take is a little deeper."""

BODY_SECONDS: Final = 30.0
"""For a whole body to arrive."""

_TOO_DEEP: Final = f"the body has more than {MAX_DEPTH} objects or lists in each other"
_DISCARDED: Final = 64 * 1024 * 1024
_DISCARD_SECONDS: Final = 5.0


class BoundedRequest(Request):
    """A request whose body is read within limits."""

    def __init__(self, scope: Scope, receive: Receive, *, max_body: int) -> None:
        super().__init__(scope, receive)
        self._max_body = max_body
        self._whole: bytes | None = None

    async def body(self) -> bytes:
        if self._whole is None:
            self._whole = await self._read()
            if self._whole and not _is_json(self.headers.get("content-type", "")):
                raise Refusal("UnsupportedMediaType", "a body must be JSON: send Content-Type: application/json")
            if self._whole and self.headers.get("content-encoding", "identity").lower() != "identity":
                raise Refusal("UnsupportedMediaType", "a body must be sent as it is: without Content-Encoding")
        return self._whole

    async def json(self) -> Any:
        return parse(await self.body())

    async def _read(self) -> bytes:
        kept = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                if _declared(self.headers) <= self._max_body:
                    async for chunk in self.stream():
                        kept += chunk
                        if len(kept) > self._max_body:
                            break
                    else:
                        return bytes(kept)
        except TimeoutError:
            text = f"the body didn't arrive within {BODY_SECONDS:g} s"
            raise Refusal("RequestTimeout", text, headers={"Connection": "close"}) from None
        kept.clear()
        if self.headers.get("expect", "").lower() != "100-continue":
            # else it hasn't been sent yet, and need not be
            await self._discard()
        text = f"a body may have {self._max_body:,} bytes; keep large values elsewhere and pass a reference"
        raise Refusal("BodyTooLarge", text, headers={"Connection": "close"})

    async def _discard(self) -> None:
        left = _DISCARDED
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                while left > 0:
                    message = await self.receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return


def parse(data: bytes) -> Any:
    """JSON as callers of this API may send it. Raises Refusal."""
    try:
        value = pydantic_core.from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        # jiter's own limit of depth is above ours
        text = _TOO_DEEP if "recursion limit" in str(error) else f"the body is no JSON: {error}"
        raise Refusal("InvalidJSON", text) from None
    if _deeper_than(value, MAX_DEPTH):
        raise Refusal("InvalidJSON", _TOO_DEEP)
    return value


def _deeper_than(value: Any, depth: int) -> bool:
    level = _containers([value])
    for _ in range(depth):
        if not level:
            return False
        level = [inner for each in level for inner in _containers(each.values() if type(each) is dict else each)]
    return bool(level)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) is dict or type(value) is list]


def _declared(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else 0


def _is_json(content_type: str) -> bool:
    message = Message()
    message["content-type"] = content_type
    if message.get_content_maintype() != "application":
        return False
    subtype = message.get_content_subtype()
    return subtype == "json" or subtype.endswith("+json")
