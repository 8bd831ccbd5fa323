"""A member of a group whose bodies count themselves in a file: ``member.py KAFKA VALKEY NAMESPACE TOPIC LOG``.

What the body does is named by the record's "body", else by BODY, and lasts "seconds", else SECONDS; OPTIONS and BINDING
are JSON for KafkaOptions and Binding. Lines in the log are those of observers.py. Bodies write step 0: begin,
done/<attempt> or out (cut or failed), and an assignment writes assigned/<generation>.
"""

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partialmethod
from pathlib import Path
from typing import Any, TypeAlias

from aiokafka import AIOKafkaProducer

from pyrula.kafka import Binding, KafkaOptions, KafkaWorker, Record
from pyrula.workflows import Context, ValkeyStore, step, workflow

KAFKA, VALKEY, NAMESPACE, TOPIC, LOG = sys.argv[1:6]
BODY = os.environ.get("BODY", "steps")
SECONDS = float(os.environ.get("SECONDS", "0.02"))
KILL = float(os.environ.get("KILL", "0"))

log = os.open(LOG, os.O_CREAT | os.O_APPEND | os.O_WRONLY)


def note(run: str, key: str, number: int, what: str) -> None:
    os.write(log, f"{run} {key} {number} {os.getpid()} {what} {time.monotonic():.6f}\n".encode())


Body: TypeAlias = Callable[[Context, str, str, float], Awaitable[None]]


class Assignments(logging.Handler):
    """Puts the generations of the group among the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        if "partitions assigned" in record.msg:
            note("00-k-0-0", "-", 0, f"assigned/{record.args[1]}")  # type: ignore[index]


@step
async def count(run: str, key: str, number: int, seconds: float) -> int:
    note(run, key, number, "start")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(run, key, number, "cut")
        raise
    note(run, key, number, "end")
    return number


@step
def count_in_thread(run: str, key: str, number: int, seconds: float) -> int:
    note(run, key, number, "start")
    time.sleep(seconds)
    note(run, key, number, "end")
    return number


@step
def busy_in_thread(run: str, key: str, number: int, seconds: float) -> int:
    note(run, key, number, "start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    note(run, key, number, "end")
    return number


async def steps(ctx: Context, run: str, key: str, seconds: float) -> None:
    """Three steps of a random length."""
    for number in (1, 2, 3):
        await ctx.step(count, run, key, number, random.random() * seconds)


async def mixed(ctx: Context, run: str, key: str, seconds: float) -> None:
    """Every other record has no step, so that only its commit tells that it is done."""
    if int(run.rsplit("-", 1)[1]) % 2:
        await steps(ctx, run, key, seconds)
    else:
        await asyncio.sleep(random.random() * seconds)


async def sending(ctx: Context, run: str, key: str, seconds: float) -> None:
    """As mixed, and it says so in the output topic."""
    assert ctx.record is not None
    await mixed(ctx, run, key, seconds)
    await ctx.send(f"{TOPIC}.out", f"{ctx.record.partition} {ctx.record.offset}".encode(), key=key)


async def sending_much(ctx: Context, run: str, key: str, seconds: float) -> None:
    await ctx.send(f"{TOPIC}.out", random.randbytes(5_000), key=key)


def between(middle: Body) -> Body:
    """A step before it and a step behind it."""

    async def body(ctx: Context, run: str, key: str, seconds: float) -> None:
        await ctx.step(count, run, key, 1, 0)
        await middle(ctx, run, key, seconds)
        await ctx.step(count, run, key, 3, 0)

    return body


async def step_of_its_own(ctx: Context, run: str, key: str, seconds: float) -> None:
    await ctx.step(count, run, key, 2, seconds)


async def plain(ctx: Context, run: str, key: str, seconds: float) -> None:
    await asyncio.sleep(seconds)


async def in_try(ctx: Context, run: str, key: str, seconds: float) -> None:
    try:
        await asyncio.sleep(seconds)
    except Exception:  # noqa: BLE001 - that is the case
        note(run, key, 0, "handled")


async def in_thread(ctx: Context, run: str, key: str, seconds: float) -> None:
    await ctx.step(count_in_thread, run, key, 2, seconds)


async def in_own_thread(ctx: Context, run: str, key: str, seconds: float) -> None:
    await asyncio.to_thread(time.sleep, seconds)


async def swallowing(ctx: Context, run: str, key: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            note(run, key, 0, "swallowed")


async def blocking(ctx: Context, run: str, key: str, seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - that is the case


async def blocking_once(ctx: Context, run: str, key: str, seconds: float) -> None:
    """Not at the second time, or it would never end."""
    if f"{run} {key} 0 {os.getpid()} blocks " not in Path(LOG).read_text():  # noqa: ASYNC240
        note(run, key, 0, "blocks")
        time.sleep(seconds)  # noqa: ASYNC251 - that is the case


async def killing(ctx: Context, run: str, key: str, seconds: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def busy(ctx: Context, run: str, key: str, seconds: float) -> None:
    await ctx.step(busy_in_thread, run, key, 2, seconds)


async def kill_around_commits(commit: Callable[..., Awaitable[None]], producer: AIOKafkaProducer) -> None:
    """Die before or after a transaction is committed, with KILL as the odds of each."""
    if random.random() < KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    await commit(producer)
    if random.random() < KILL:
        os.kill(os.getpid(), signal.SIGKILL)


BODIES = {
    "steps": steps,
    "mixed": mixed,
    "sending": sending,
    "sending much": sending_much,
    "step": between(step_of_its_own),
    "plain": between(plain),
    "in try": between(in_try),
    "in thread": between(in_thread),
    "in own thread": between(in_own_thread),
    "swallowing": between(swallowing),
    "blocking": between(blocking),
    "blocking once": between(blocking_once),
    "busy": between(busy),
    "killing": killing,
}


@workflow(name="member")
async def member(ctx: Context, record: Record[dict[str, Any]]) -> None:
    run, key = ctx.run.id, (record.key or b"-").decode()
    note(run, key, 0, "begin")
    done = False
    try:
        value = record.value
        await BODIES[value.get("body", BODY)](ctx, run, key, value.get("seconds", SECONDS))
        done = True
    finally:
        note(run, key, 0, f"done/{ctx.run.attempt}" if done else "out")


worker = KafkaWorker(
    bindings=[Binding(member, topic=TOPIC, group=TOPIC, **json.loads(os.environ.get("BINDING", "{}")))],
    store=ValkeyStore(url=VALKEY, namespace=NAMESPACE),
    kafka=KafkaOptions(
        bootstrap_servers=KAFKA,
        **{
            "session_timeout": 10,
            "heartbeat_interval": 0.5,
            "drain_timeout": 5,
            "commit_interval": 0.2,
            "fetch_max_wait": 0.1,
            **json.loads(os.environ.get("OPTIONS", "{}")),
        },
    ),
)

if __name__ == "__main__":
    if KILL:
        AIOKafkaProducer.commit_transaction = partialmethod(  # type: ignore[method-assign]
            lambda producer, commit: kill_around_commits(commit, producer), AIOKafkaProducer.commit_transaction
        )
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(relativeCreated)d %(levelname)s %(message)s")
    logging.getLogger("pyrula.kafka").addHandler(Assignments())
    asyncio.run(worker.run())
