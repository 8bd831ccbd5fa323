"""`serve`: runs the app with uvicorn, on this machine's own address unless there is a reason to trust others.

Rules: a connection that sends no whole request head in time, or doesn't take its answer, is closed; so many may be
open, and the next ones hear 503. A shutdown ends what waits at once: those who wait come back elsewhere.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from socket import socket
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pyrula.http.app import HttpApp
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.signals import process_signals

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "HttpServer", "serve"]

log = logging.getLogger("pyrula.http")

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8321

HEAD_SECONDS: Final = 10.0
"""For a request's head to arrive, from its connection's or its own first byte on."""

WRITE_SECONDS: Final = 60.0
"""So long a reader may take nothing of an answer that is there."""

MAX_CONNECTIONS: Final = 5000

_GRACEFUL_SECONDS: Final = 10
_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpServer(uvicorn.Server):
    """A server for the app in the loop that it is run in. Leaves the process's signals alone: `stop` ends it.

    ConfigurationError for an address that the app won't be served on, or that can't be had."""

    def __init__(
        self,
        app: HttpApp,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        app.access.check_address(host)
        self._app = app
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=Protocol,
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=max_connections,
                timeout_graceful_shutdown=_GRACEFUL_SECONDS,
                ssl_certfile=ssl_certfile,
                ssl_keyfile=ssl_keyfile,
            )
        )

    @property
    def port(self) -> int:
        """The port that it listens on, once it does."""
        number: int = self.servers[0].sockets[0].getsockname()[1]
        return number

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{'https' if self.config.is_ssl else 'http'}://{host}:{self.port}"

    def stop(self) -> None:
        """Have `run` end. For the loop that it runs in."""
        self._app.closing.begin()
        self.should_exit = True

    async def run_until_stopped(self) -> None:
        """Serve until `stop`."""
        try:
            await self.serve()
        except OSError as error:
            raise ConfigurationError(f"the API can't be served: {error} (is it the certificate or its key?)") from error
        except SystemExit as error:
            # what uvicorn does when it can't listen; it has logged why
            raise ConfigurationError(
                f"the API can't listen on {self.config.host}:{self.config.port}; is another process there?"
            ) from error

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            log.info("the HTTP API listens on %s", self.url)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(app: HttpApp, *, host: str = DEFAULT_HOST, port: int = DEFAULT_PORT) -> None:
    """Run the app until SIGTERM or Ctrl-C. ConfigurationError for an address beside loopback if the app asks nobody who
    he is."""
    server = HttpServer(app, host=host, port=port)
    asyncio.run(_until_signal(server))


async def _until_signal(server: HttpServer) -> None:
    loop = asyncio.get_running_loop()
    forget = process_signals.watch(loop, server.stop, float(_GRACEFUL_SECONDS))
    try:
        await server.run_until_stopped()
    finally:
        forget()


class Protocol(H11Protocol):
    """uvicorn's, with patience that ends: for a request's head, and for a reader who doesn't read."""

    _head: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_head()
        elif self._head is None and not self.transport.is_closing():
            # bytes of a further request, and not yet its whole head
            self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(WRITE_SECONDS, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stuck()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head()
        self._stop_stuck()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self._late)

    def _late(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self.transport.write(_LATE)
            self.transport.close()

    def _give_up(self) -> None:
        log.info("a reader took nothing for %g s and is cut off", WRITE_SECONDS)
        self.transport.abort()

    def _stop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _stop_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
