"""One connection to the server: bytes out, replies in, and what an error means.

Rules: redis-py's own retries stay out of it, since they would send scripts again of which the outcome is unknown; who
calls decides. A connection on which anything went wrong is dropped, so a reply never meets another request. Errors
name the server, never the password.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from enum import Enum
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from pyrula.workflows.errors import ConfigurationError, PyrulaError, StoreError, StoreUnavailable
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.address import Address
from pyrula.workflows.store.valkey.checks import SYNCED, check_synced

# First words of error replies that pass by themselves, or once a person has seen to the server.
_PASSING = {"LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY", "MISCONF", "UNKILLABLE"}
# redis-py gives these classes of their own, without the first word.
_PASSING_CLASSES = {"BusyLoadingError", "MasterDownError", "ClusterDownError", "TryAgainError"}


class StoreFull(StoreUnavailable):
    """The server is at its memory limit: no use in trying again at once."""


class Meaning(Enum):
    """What to do about an error reply."""

    LOAD = "the script isn't in the server's cache: load it and send again"
    WAIT = "it will pass: send again later"
    MOVED = "the server is a replica now: connect anew and send again later"
    FULL = "no memory left: only a person can help, but sending again may work then"
    SETTINGS = "only a person can put it right"
    REFUSED = "sending again would not help"


def meaning(error: Exception) -> Meaning:
    if isinstance(error, NoScriptError):
        return Meaning.LOAD
    if isinstance(error, ReadOnlyError):
        return Meaning.MOVED
    if isinstance(error, OutOfMemoryError):
        return Meaning.FULL
    if isinstance(error, AuthenticationError | NoPermissionError):
        return Meaning.SETTINGS
    passing = type(error).__name__ in _PASSING_CLASSES or str(error).split(" ", 1)[0] in _PASSING
    if passing or not isinstance(error, ResponseError):
        return Meaning.WAIT
    return Meaning.REFUSED


class Link:
    """A connection that is made when needed and thrown away when in doubt. One exchange at a time.

    ``synced``: only to a server that has every write on disk before it answers."""

    def __init__(self, address: Address, timeout: float, *, synced: bool = False) -> None:
        self._address = address
        self._timeout = timeout
        self._synced = synced
        self._connection: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def exchange(self, request: Sequence[bytes], replies: int) -> list[Any]:
        """Send, and read so many replies; error replies stand among them. Raises StoreUnavailable when the outcome is
        unknown or nothing was sent, ConfigurationError when the server doesn't let us in."""
        try:
            async with asyncio.timeout(self._timeout):
                self._forget_other_loop()
                connection = self._connection or await self._connect()
                await connection.send_packed_command(request, check_health=False)
                answers: list[Any] = []
                for _ in range(replies):
                    try:
                        answers.append(await connection.read_response())
                    except ResponseError as error:
                        answers.append(error)
                return answers
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            await self.drop()
            raise self._translated(error) from error
        except BaseException:
            await self.drop()
            raise

    async def _connect(self) -> Any:
        connection = self._connection = self._address.connection(self._timeout)
        self._loop = asyncio.get_running_loop()
        try:
            await connection.connect()
        except ResponseError as error:
            if meaning(error) is Meaning.REFUSED:  # the database's number, say
                raise ConfigurationError(f"{self._address.text} refuses the connection: {error}") from error
            raise
        if self._synced:
            # each time: a server that was started again may have other settings
            check_synced(self._address.text, await self._settings(connection))
        return connection

    async def _settings(self, connection: Any) -> dict[str, str] | None:
        names = [name.encode() for name in SYNCED]
        await connection.send_packed_command([wire.command(b"CONFIG", b"GET", *names)], check_health=False)
        try:
            flat = await connection.read_response()
        except ResponseError as error:
            if meaning(error) in (Meaning.SETTINGS, Meaning.REFUSED):
                return None
            raise
        texts = [part.decode() for part in flat]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def _translated(self, error: Exception) -> PyrulaError:
        where = self._address.text
        if isinstance(error.__context__, ssl.SSLCertVerificationError):
            return ConfigurationError(f"the certificate of {where} isn't trusted: {error.__context__.verify_message}")
        if isinstance(error, TimeoutError):
            return StoreUnavailable(f"{where} did not answer within {self._timeout:g} s")
        return self.error(error)

    def error(self, error: Exception) -> PyrulaError:
        """An error reply, or an error of the connection, as one of ours."""
        where = self._address.text
        match meaning(error):
            case Meaning.SETTINGS:
                return ConfigurationError(f"{where} refuses the connection's user or password: {error}")
            case Meaning.FULL:
                return StoreFull(f"{where} is at its memory limit and refuses writes; raise maxmemory: {error}")
            case Meaning.MOVED:
                return StoreUnavailable(f"{where} is a read-only replica: {error}")
            case Meaning.REFUSED:
                return StoreError(f"{where} refused a command: {error}")
            case _:
                return StoreUnavailable(f"{where} can't be reached: {error}")

    async def drop(self, *, wait: bool = False) -> None:
        """Close; ``wait`` until the socket is gone. The next exchange connects anew."""
        self._forget_other_loop()
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(RedisError, OSError):
                await connection.disconnect(nowait=not wait)

    def _forget_other_loop(self) -> None:
        """A connection of an `asyncio.run` that is over can't be used, nor closed in order: it ends with its object."""
        if self._connection is not None and self._loop is not asyncio.get_running_loop():
            self._connection = None
