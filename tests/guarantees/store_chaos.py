"""Clients of mixed runs, and what must be true of them in the end, whatever happened to workers, server and network."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from pyrula.workflows import (
    DurableInvocationCancelled,
    DurableInvocationError,
    RunFinishedError,
    RunHandle,
    StoreUnavailable,
    UpdateTimeout,
    WorkflowClient,
)
from pyrula.workflows.store.valkey.run_keys import STRUCTURES
from tests.guarantees.programs.mixed_runs import chain, parent, stepping, talking, waiting

T = TypeVar("T")

WORN = "worker died"

# what lasts: counters, and the index of runs that have ended
LASTING = {b"meta", b"list"}


async def patiently(call: Callable[[], Awaitable[T]], *errors: type[Exception]) -> T:
    """The same call, with the ids it had, until it is acknowledged."""
    while True:
        try:
            return await call()
        except (StoreUnavailable, *errors):
            await asyncio.sleep(0.1)


class Clients:
    """Submits runs of every kind, talks to them, and compares their ends with what was acknowledged."""

    def __init__(self, client: WorkflowClient, dice: random.Random, patience: float) -> None:
        self.client = client
        self.dice = dice
        self.patience = patience
        self.ended = 0
        self.wrong: list[str] = []
        self.worn: list[str] = []
        """Runs whose worker was killed under them so often that they were given up, as they should be."""
        self._kinds = [self._steps, self._talk, self._parent, self._cancel, self._chain]

    async def run(self, count: int, spread: float) -> None:
        """`count` runs, begun over `spread` seconds."""
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self._one(number, self.dice.random() * spread))

    async def _one(self, number: int, after: float) -> None:
        await asyncio.sleep(after)
        kind = self._kinds[number % len(self._kinds)]
        try:
            async with asyncio.timeout(self.patience):
                await kind(number)
        except DurableInvocationError as error:
            (self.worn if WORN in str(error) else self.wrong).append(f"{kind.__name__} {number}: {error}")
        except RunFinishedError as error:
            # it ended under whoever talked to it
            run_id = error.run_id
            name = (await patiently(lambda: self.client.origin("", run_id))).name
            detail = await patiently(lambda: self.client.detail(name, run_id))
            given_up = detail.error is not None and WORN in detail.error.message
            (self.worn if given_up else self.wrong).append(f"{kind.__name__} {number}: {error}: {detail.error}")
        except Exception as error:  # noqa: BLE001 - told at the end, with the others
            self.wrong.append(f"{kind.__name__} {number}: {type(error).__name__}: {error}")
        self.ended += 1

    async def _submit(self, definition: Any, params: dict[str, Any], number: int) -> RunHandle[Any]:
        key, owner = f"run-{number}", f"owner{number % 5}"
        return await patiently(lambda: self.client.submit(definition, params, idempotency_key=key, owner=owner))

    async def _result(self, run: RunHandle[Any]) -> Any:
        return await patiently(lambda: run.result(timeout=self.patience))

    def _must(self, run: RunHandle[Any], found: object, wanted: object) -> None:
        if found != wanted:
            self.wrong.append(f"run {run} gave {found!r}, not {wanted!r}")

    async def _steps(self, number: int) -> None:
        pauses = 1 + number % 3
        run = await self._submit(stepping, {"tenant": f"t{number % 4}", "pauses": pauses}, number)
        tokens = await self._result(run)
        self._must(run, len(tokens), 2 * pauses + 1)

    async def _talk(self, number: int) -> None:
        """Signals and updates from two sides, each sent again until it is acknowledged, and once more by chance."""
        run = await self._submit(talking, {"signals": 3}, number)

        async def signals() -> None:
            for one in range(3):
                for _ in range(self.dice.choice((1, 2))):
                    await patiently(lambda one=one: run.signal("more", one, signal_id=f"s{one}"))
                await asyncio.sleep(self.dice.random())

        async def updates() -> None:
            for one in range(2):
                await asyncio.sleep(self.dice.random())
                answer = await patiently(
                    lambda one=one: run.update("add", {"number": one}, update_id=f"u{one}", timeout=2), UpdateTimeout
                )
                self._must(run, answer, one)

        await asyncio.gather(signals(), updates())
        await patiently(lambda: run.signal("enough", signal_id="enough"))
        heard = await self._result(run)
        self._must(run, [value for kind, value in heard if kind == "signal"], [0, 1, 2])
        self._must(run, [value for kind, value in heard if kind == "update"], [0, 1])

    async def _parent(self, number: int) -> None:
        run = await self._submit(parent, {"numbers": [number, number + 1]}, number)
        self._must(run, await self._result(run), [number**2, (number + 1) ** 2])

    async def _cancel(self, number: int) -> None:
        run = await self._submit(waiting, {}, number)
        await asyncio.sleep(self.dice.random() * 2)
        await patiently(run.cancel)
        try:
            self._must(run, await self._result(run), "a cancellation")
        except DurableInvocationCancelled:
            return

    async def _chain(self, number: int) -> None:
        run = await self._submit(chain, {"left": 3}, number)
        for one in range(3):
            await patiently(lambda one=one: run.signal("tick", 10**one, signal_id=f"t{one}"), RunFinishedError)
            await asyncio.sleep(self.dice.random() / 2)
        self._must(run, await self._result(run), 111)


def steps_that_ran_again(log: Path) -> list[str]:
    """Steps that began again after a later one of their run had begun, or of which bodies saw several values."""
    reached: dict[str, int] = {}
    tokens: dict[tuple[str, int], str] = {}
    wrong = []
    for line in log.read_text().splitlines():
        run, number, pid, _, seen = json.loads(line)
        if number < reached.get(run, 0):
            wrong.append(f"step {number} of {run} began again in process {pid} after step {reached[run]}")
        reached[run] = max(number, reached.get(run, 0))
        for earlier, token in enumerate(seen):
            if tokens.setdefault((run, earlier), token) != token:
                wrong.append(f"step {earlier} of {run} has two values")
    return wrong


def left_behind(server: Any, namespace: str, shards: int) -> list[str]:
    """Raw keys that only unfinished runs, or workers, should have: slots, leases, timers, places in queues. `server` is
    a client of redis-py, of a server or a cluster."""
    found = []
    for shard in range(shards):
        for name in set(STRUCTURES) - LASTING:
            key = b"{%b:%d}%b" % (namespace.encode(), shard, name)
            if server.exists(key):
                found.append(f"{key.decode()}: {server.type(key).decode()}")
        index = b"{%b:%d}list" % (namespace.encode(), shard)
        # every run listed has ended: its entry says so, and says it once
        ended = server.zlexcount(index, b"[n", b"(o")
        living = [member for member in server.zrange(index, b"[n", b"(o", bylex=True) if member[13:14] not in b"dfx"]
        found += [f"{member!r} is listed as unfinished" for member in living]
        if ended != server.zlexcount(index, b"[a", b"(b") or ended != server.zlexcount(index, b"[e", b"(f"):
            found.append(f"{index.decode()} doesn't list every run once")
    lasting = [key for key in server.scan_iter(match=b"{%b*" % namespace.encode()) if server.ttl(key) == -1]
    allowed = {b"{%b}meta" % namespace.encode()}
    allowed |= {b"{%b:%d}%b" % (namespace.encode(), shard, name) for shard in range(shards) for name in LASTING}
    found += [f"{key.decode()} has no time to live" for key in lasting if key not in allowed]
    return found
