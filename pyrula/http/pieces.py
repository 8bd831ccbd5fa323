"""An answer that is sent piece by piece as it is made, so that it may be long, or never end.

Rules: it holds nothing but memory, of which a slow reader takes no more than a piece. It ends when there are no more,
its reader leaves, or the server shuts down.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pyrula.http.waiting import Closing, gone
from pyrula.workflows.errors import PyrulaError

__all__ = ["Pieces"]

log = logging.getLogger("pyrula.http")


class Pieces(Response):
    """`on_open` hears 1 when it begins and -1 when it has ended. What `pieces` raises of ours cuts the answer: by then
    it is too late for another status."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        closing: Closing,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        on_open: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(status_code=status, headers=dict(headers or {}))
        # the body's length isn't known
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._pieces = pieces
        self._closing = closing
        self._on_open = on_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._on_open(1)
        tasks = [asyncio.ensure_future(work) for work in (self._send(send), gone(receive), self._closing.wait())]
        sending, leaving, _ = tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._on_open(-1)
        if not leaving.done() or leaving.cancelled():
            with contextlib.suppress(asyncio.CancelledError):
                sending.result()
            await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except PyrulaError as error:
            log.warning("an answer is cut: %s", error)
        finally:
            await self._pieces.aclose()
