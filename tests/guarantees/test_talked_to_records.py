"""Records that are talked to while their workers are killed: what was sent counts once, what was answered stays so."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from pyrula.kafka import Binding
from pyrula.workflows import (
    Context,
    RunNotFoundError,
    UpdateTimeout,
    ValkeyStore,
    WorkflowClient,
    workflow,
)
from pyrula.workflows.client.handle import RunHandle
from tests.services.process import WorkerProcess
from tests.services.topics import Message, Topics
from tests.services.waiting import wait_until_async

PROGRAM = Path(__file__).parent / "programs" / "talking.py"
RECORDS, PARTITIONS, KEYS, UPDATES, SIGNALS, KILLS = 12, 2, 6, 5, 3, 5

T = TypeVar("T")


@workflow(name="talking")
async def talking(ctx: Context, value: str) -> list[str]:
    raise AssertionError("it is executed by the program")


async def patiently(call: Callable[[], Awaitable[T]], *errors: type[Exception]) -> T:
    """The same call again, with the ids it had, until it is answered."""
    async with asyncio.timeout(240):
        while True:
            try:
                return await call()
            except errors:
                await asyncio.sleep(0.1)


class Talk:
    """What is said to one record."""

    def __init__(self, run: RunHandle[list[str]], rng: random.Random) -> None:
        self.run = run
        self.rng = rng
        self.answers: dict[str, int] = {}

    async def update(self, name: str) -> None:
        await asyncio.sleep(self.rng.random() * 6)
        self.answers[name] = await patiently(
            lambda: self.run.update("add", {"sku": name}, update_id=name, timeout=2), UpdateTimeout
        )

    async def signals(self) -> None:
        await asyncio.sleep(self.rng.random() * 3)
        await self.run.signal("rounds", SIGNALS, signal_id="rounds")
        for number in range(SIGNALS):
            await asyncio.sleep(self.rng.random() * 3)
            for _ in range(2):
                await self.run.signal("more", f"s{number}", signal_id=f"s{number}")

    async def everything(self) -> list[str]:
        names = [f"u{number}" for number in range(UPDATES)]
        await asyncio.gather(*(self.update(name) for name in names))
        await self.signals()
        return await self.run.result(timeout=240)


@pytest.mark.parametrize("hands_over", ["0", "1"])
async def test_messages_count_once_while_workers_are_killed(
    kafka: str, valkey: str, topic_prefix: str, namespace: str, tmp_path: Path, hands_over: str
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    topics, topic = Topics(kafka), f"{topic_prefix}-talk"
    await asyncio.to_thread(topics.create, topic, f"{topic}.{topic}.dlq", partitions=PARTITIONS)
    messages = [Message(f"k{n % KEYS}".encode(), b"x", partition=n % PARTITIONS) for n in range(RECORDS)]
    log = tmp_path / "lines.txt"
    env = {"HANDS_OVER": hands_over, "LOG": str(log)}
    await asyncio.to_thread(topics.produce, topic, messages)
    binding = Binding(talking, topic=topic, group=topic)
    store = ValkeyStore(valkey, namespace=namespace)
    client = WorkflowClient(store, poll_interval=0.2)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(WorkerProcess(PROGRAM, kafka, valkey, namespace, topic, env=env)) for _ in range(2)
        ]
        talks = []
        for n in range(RECORDS):
            run = await patiently(
                lambda n=n: client.record_run(binding, n % PARTITIONS, n // PARTITIONS),  # type: ignore[misc]
                RunNotFoundError,
            )
            talks.append(Talk(run, random.Random(rng.random())))
        if hands_over == "1":
            # nothing was said yet, so the first record of each key waits in the store, and the second behind it
            await wait_until_async(
                lambda: queued_behind(talks), description="all to be queued", timeout=240, interval=0.2
            )
            for worker in workers:
                worker.kill()
            assert await queued_behind(talks)
            for worker in workers:
                worker.start()
        saying = asyncio.gather(*(talk.everything() for talk in talks))
        for _ in range(KILLS):
            await asyncio.sleep(0.5 + rng.random() * 3)
            victim = rng.choice(workers)
            victim.kill()
            await asyncio.sleep(rng.random())
            victim.start()
        results = await saying
        await asyncio.to_thread(topics.wait_committed, topic, topic, timeout=240)
    await store.close()
    for talk, items in zip(talks, results, strict=True):
        assert sorted(items) == sorted([f"u{n}" for n in range(UPDATES)] + [f"s{n}" for n in range(SIGNALS)])
        assert [item for item in items if item[0] == "s"] == [f"s{n}" for n in range(SIGNALS)]
        for name, place in talk.answers.items():
            assert items[place - 1] == name
    in_order(log.read_text().splitlines())


async def queued_behind(talks: list[Talk]) -> bool:
    """Whether the second record of each key is queued in the store behind the first, which waits."""
    for first, second in zip(talks[:KEYS], talks[KEYS:], strict=True):
        text = (await second.run.explain()).text
        if not text.endswith(f"1st behind run {first.run}, for which its lane waits"):
            return False
        if await first.run.status() != "signal_waiting":
            return False
    return True


def in_order(lines: list[str]) -> None:
    """No record of a key begins before each earlier one has ended."""
    ended: dict[str, list[int]] = {}
    begun: dict[str, list[int]] = {}
    for line in lines:
        key, offset, what = line.split()
        if what == "begin":
            if int(offset) not in begun.setdefault(key, []):
                assert ended.get(key, []) == begun[key], line
                begun[key].append(int(offset))
        elif int(offset) not in ended.setdefault(key, []):
            ended[key].append(int(offset))
    assert begun == ended
    assert all(offsets == sorted(offsets) for offsets in begun.values())


@pytest.mark.parametrize("before", ["fetched", "waiting"])
async def test_a_signal_outlives_the_worker_that_had_the_record(
    kafka: str, valkey: str, topic_prefix: str, namespace: str, before: str
) -> None:
    topics, topic = Topics(kafka), f"{topic_prefix}-talk"
    await asyncio.to_thread(topics.create, topic, f"{topic}.{topic}.dlq")
    binding = Binding(talking, topic=topic, group=topic)
    store = ValkeyStore(valkey, namespace=namespace)
    client = WorkflowClient(store, poll_interval=0.2)
    with WorkerProcess(PROGRAM, kafka, valkey, namespace, topic) as worker:
        run = await patiently(lambda: client.record_run(binding, 0, 0), RunNotFoundError)
        if before == "waiting":
            await asyncio.to_thread(topics.produce, topic, [Message(b"k", b"x")])
            async with asyncio.timeout(60):
                while await run.status() != "signal_waiting":  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.05)
        worker.kill()
        await run.signal("rounds", 1)
        await run.signal("more", "s0")
        assert await run.status() == ("signal_waiting" if before == "waiting" else "queued")
        if before == "fetched":
            await asyncio.to_thread(topics.produce, topic, [Message(b"k", b"x")])
        worker.start()
        assert await run.result(timeout=240) == ["s0"]
        await asyncio.to_thread(topics.wait_committed, topic, topic, timeout=240)
    await store.close()
