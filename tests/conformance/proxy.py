"""A TCP proxy before the server that loses, holds and cuts on demand."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal, Self
from urllib.parse import urlsplit

import pytest

RequestFault = Literal["pass", "lose", "hold"]
ReplyFault = Literal["pass", "lose", "cut"]


class Proxy:
    """``async with Proxy(server_url) as proxy: ValkeyStore(proxy.url)``.

    ``requests``: "lose" swallows what a client sends, "hold" keeps it back until ``release()``, also after the client
    has gone. ``replies``: "lose" swallows what the server answers, "cut" closes the connection instead of passing it
    on. ``refuse``: a new connection is closed at once. ``cut_after``: the connection breaks when so many bytes of
    replies have passed. Each count is of reads from a connection: what was written at once counts once.
    """

    def __init__(self, server_url: str) -> None:
        address = urlsplit(server_url)
        self._server = (address.hostname or "127.0.0.1", address.port or 6379)
        self.requests: RequestFault = "pass"
        self.replies: ReplyFault = "pass"
        self.refuse = False
        self.cut_after: int | None = None
        self.connections = 0
        self.held: list[tuple[bytes, asyncio.StreamWriter]] = []
        self._keep: set[asyncio.StreamWriter] = set()
        self.passed_requests = 0
        self.lost_requests = 0
        self.lost_replies = 0
        self.passed_replies = 0
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._listener is not None
        return f"valkey://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self._keep.clear()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections, but those to the server that something is held for."""
        for writer in self._writers - self._keep:
            writer.close()

    async def release(self) -> None:
        """Send on what was held."""
        held, self.held = self.held, []
        for data, writer in held:
            writer.write(data)
            await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self._writers.add(writer)
        if self.refuse:
            writer.close()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._server)
        except OSError:
            # the server is down, so the client gets what it would get from it
            writer.close()
            return
        self._writers.add(server_writer)
        requests = asyncio.create_task(self._carry_requests(reader, server_writer))
        self._tasks.add(requests)
        try:
            # asyncio complains of a connection's task that ends as cancelled
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await self._carry_replies(server_reader, writer)
        finally:
            writer.close()

    async def _carry_requests(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.requests == "lose":
                    self.lost_requests += 1
                elif self.requests == "hold":
                    self.held.append((data, server))
                    self._keep.add(server)
                else:
                    self.passed_requests += 1
                    server.write(data)
                    await server.drain()
        if server not in self._keep:
            server.close()

    async def _carry_replies(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await server.read(65536):
            if self.replies == "lose":
                self.lost_replies += 1
                continue
            if self.replies == "cut":
                self.lost_replies += 1
                return
            if self.cut_after is not None:
                data, self.cut_after = data[: self.cut_after], max(0, self.cut_after - len(data))
            self.passed_replies += 1
            writer.write(data)
            await writer.drain()
            if self.cut_after == 0:
                self.cut_after = None
                return


async def wait_until(predicate: Callable[[], bool], description: str, seconds: float = 120.0) -> None:
    """Fails with the description when it does not come true."""
    try:
        async with asyncio.timeout(seconds):
            while not predicate():  # noqa: ASYNC110 - what is waited for happens elsewhere and sets no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"not within {seconds:g} s: {description}")
