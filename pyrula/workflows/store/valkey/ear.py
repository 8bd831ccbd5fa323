"""Wake-ups: one connection that listens to what scripts publish, for all of a process's callbacks.

Rules: wake-ups are hints. After a connection was made anew every callback is called, since something may have been
missed; while there is none, whoever waits goes on polling. A callback is called in the loop that listens.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.topology import Topology

logger = logging.getLogger("pyrula.store")

Callback = Callable[[str], None]

_FIRST_DELAY, _LAST_DELAY = 0.1, 5.0


class _Listening:
    def __init__(self, ear: "Ear", channel: bytes, callback: Callback) -> None:
        self._ear = ear
        self._channel = channel
        self._callback: Callback | None = callback

    def close(self) -> None:
        if self._callback is not None:
            self._ear.drop(self._channel, self._callback)
            self._callback = None


class Ear:
    """Listens from the first subscription until it is closed."""

    def __init__(self, topology: Topology, timeout: float) -> None:
        self._topology = topology
        self._timeout = timeout
        self._channels: dict[bytes, list[Callback]] = {}
        self._task: asyncio.Task[None] | None = None
        self._connection: Any = None
        self._heard: set[bytes] = set()
        self._changes = asyncio.Event()

    def listen(self, channel: bytes, callback: Callback) -> _Listening:
        self._channels.setdefault(channel, []).append(callback)
        self._start()
        self._changes.set()
        return _Listening(self, channel, callback)

    def drop(self, channel: bytes, callback: Callback) -> None:
        callbacks = self._channels.get(channel, [])
        if callback in callbacks:
            callbacks.remove(callback)
        if not callbacks:
            self._channels.pop(channel, None)
            self._changes.set()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._changes = asyncio.Event()
            self._task = loop.create_task(self._listen(), name="pyrula wake-ups")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])

    async def _listen(self) -> None:
        delay, attempt = _FIRST_DELAY, 0
        while True:
            address = self._topology.listened(attempt)
            connection = address.connection(self._timeout)
            try:
                async with asyncio.timeout(self._timeout):
                    await connection.connect()
                self._heard = set()
                delay = _FIRST_DELAY
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._tune(connection))
                    group.create_task(self._hear(connection))
            except* (RedisError, OSError) as trouble:
                logger.debug("wake-ups from %s are missed: %r", address.text, trouble.exceptions[0])
                attempt += 1
                await asyncio.sleep(delay)
                delay = min(delay * 2, _LAST_DELAY)
            finally:
                with contextlib.suppress(RedisError, OSError):
                    await connection.disconnect(nowait=True)

    async def _tune(self, connection: Any) -> None:
        """Keeps the server's list of channels like ours."""
        while True:
            self._changes.clear()
            wanted = set(self._channels)
            commands = [
                wire.command(verb, *channels)
                for verb, channels in ((b"SUBSCRIBE", wanted - self._heard), (b"UNSUBSCRIBE", self._heard - wanted))
                if channels
            ]
            self._heard = wanted
            if commands:
                await connection.send_packed_command(commands, check_health=False)
            await self._changes.wait()

    async def _hear(self, connection: Any) -> None:
        while True:
            kind, channel, text = await connection.read_response()
            if kind == b"message":
                self._call(channel, text.decode())
            elif kind == b"subscribe":
                # from here on nothing is missed; before it, anything may have been
                self._call(channel, "")

    def _call(self, channel: bytes, text: str) -> None:
        for callback in self._channels.get(channel, ())[:]:
            callback(text)
