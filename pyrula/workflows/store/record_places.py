"""Where the run of a record is when the store has nothing about it: its holder is asked, as it is for a query."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from pyrula.workflows.codec import dumps
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.payloads import Failure, encode_answer, encode_refusal, read_answer
from pyrula.workflows.store.records import WHERE
from pyrula.workflows.store.refusals import RunNotFoundError, TransitionRefused
from pyrula.workflows.store.runs import Query, Subscription

__all__ = ["Place", "answer_where", "check_complete", "locate"]

_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 0.25


class Place(NamedTuple):
    """`status` is "queued" or "running". `events` are as a store keeps them."""

    status: RunStatus
    events: tuple[bytes, ...] = ()


class Asking(Protocol):
    """What of a store is needed to ask."""

    async def ask(self, run_id: str, query: Query, *, seconds: float) -> None: ...

    async def read_answer(self, query: Query) -> bytes | None: ...

    def on_change(self, run_id: str, callback: Callable[[], None]) -> Subscription: ...


async def locate(store: Asking, run_id: str) -> Place:
    """Where the run is. If nobody answers nobody has its source: it is queued there until somebody has.

    Raises RunNotFoundError if its holder knows of no such run that hasn't ended.
    """
    query = Query(secrets.token_hex(16), run_id, WHERE, b"null")
    told = asyncio.Event()
    subscription = store.on_change(run_id, told.set)
    try:
        await store.ask(run_id, query, seconds=_SECONDS)
        async with asyncio.timeout(_SECONDS):
            while (answer := await store.read_answer(query)) is None:
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await told.wait()
                except TimeoutError:
                    pass
                told.clear()
    except TimeoutError:
        return Place(RunStatus.QUEUED)
    finally:
        subscription.close()
    value, failure = read_answer(answer)
    if failure is not None:
        raise RunNotFoundError(run_id)
    return Place(RunStatus(value["status"]), tuple(dumps(event) for event in value["events"]))


async def check_complete(store: Asking, run_id: str) -> None:
    """Ask the holder of its partition whether the record of a letter is complete. TransitionRefused if it isn't, or if
    nobody answers."""
    try:
        place = await locate(store, run_id)
    except RunNotFoundError:
        return
    text = f"is {place.status}: its record isn't complete, or no worker has its partition, which could tell"
    raise TransitionRefused(run_id, place.status, text)


def answer_where(status: RunStatus | None, events: list[object]) -> bytes:
    """What its holder answers; None: it has ended, or isn't there. An event is [type, seconds since 1970, fields]."""
    if status is None:
        return encode_refusal(Failure("", "there is no such run"))
    return encode_answer({"status": str(status), "events": events}, "where a run is")
