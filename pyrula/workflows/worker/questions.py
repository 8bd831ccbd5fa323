"""The answer to a query is written, whatever it is: a refusal is one too, so that who asks needn't wait for nothing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from pyrula.workflows.errors import PyrulaError, StoreUnavailable
from pyrula.workflows.store.payloads import Failure, encode_refusal, failure_of
from pyrula.workflows.store.runs import Query

__all__ = ["Answering", "answer"]

log = logging.getLogger("pyrula.worker")


class Answering(Protocol):
    """What of a store is needed to answer."""

    async def answer(self, query: Query, answer: bytes) -> None: ...


async def answer(store: Answering, query: Query, ask: Callable[[Query], Awaitable[bytes]], seconds: float) -> None:
    """Write what `ask` gives within so many seconds, or why there is no answer."""
    try:
        async with asyncio.timeout(seconds):
            found = await ask(query)
    except TimeoutError:
        text = f"the run didn't settle within {seconds:g} s: its body is busy, or waits on something foreign"
        found = encode_refusal(Failure("", text))
    except (PyrulaError, ValueError) as error:
        found = encode_refusal(failure_of(error))
    try:
        await store.answer(query, found)
    except StoreUnavailable as error:
        log.warning("query %r of run %s isn't answered: %s", query.name, query.run_id, error)
