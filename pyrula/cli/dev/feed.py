"""Reads records where reading may block, a pipe that stays open or a slow generator, and hands them over as they come.

The thread is a daemon and reads nothing that Python closes at its end, so that a session may end while it still waits.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from pyrula.cli.dev.records import Given

__all__ = ["Feed"]

# Records and bytes handed over in one go; as much is read ahead.
_CHUNK = 500
_CHUNK_BYTES = 256 * 1024


class Feed:
    """The records of an iterable. Made in the event loop that asks for them."""

    def __init__(self, records: Iterable[Given]) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._changed = threading.Condition()
        self._waiting: deque[Given] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        threading.Thread(target=self._read, args=(records,), name="records", daemon=True).start()

    async def next_chunk(self) -> list[Given]:
        """The records that are there, at least one; none at the end. Raises what reading them raised."""
        while True:
            self._arrived.clear()
            with self._changed:
                chunk = list(self._waiting)
                self._waiting.clear()
                self._bytes = 0
                self._changed.notify()
                ended = self._ended
            if chunk:
                return chunk
            if ended:
                if self._error is not None:
                    raise self._error
                return []
            await self._arrived.wait()

    def close(self) -> None:
        """What isn't read yet stays unread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _read(self, records: Iterable[Given]) -> None:
        try:
            for record in records:
                with self._changed:
                    self._waiting.append(record)
                    self._bytes += record.size
                self._tell()
                with self._changed:
                    while (len(self._waiting) >= _CHUNK or self._bytes >= _CHUNK_BYTES) and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
        except BaseException as error:  # noqa: BLE001 - it is for the session, not for this thread
            self._error = error
        with self._changed:
            self._ended = True
        self._tell()

    def _tell(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(self._arrived.set)
