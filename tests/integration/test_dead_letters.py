"""Runs that fail: retried from where they failed, then dead-lettered, skipped or held, and never lost on the way."""

import asyncio
from collections import Counter
from time import monotonic
from typing import Any

import pytest

from pyrula.kafka.dead_letter import MAX_TRACE
from pyrula.workflows import Context, Retry, step, workflow
from tests.integration.rig import Rig
from tests.services.topics import Message, Stored

QUICK = Retry(max_attempts=3, initial=0.05, factor=1.0, jitter=0.0)

calls: Counter[str] = Counter()
completed: list[int] = []
attempts: list[int] = []
failing: set[int] = set()
last_failure = 0
release: asyncio.Event


@pytest.fixture(autouse=True)
def fresh() -> None:
    global last_failure, release
    last_failure = 0
    release = asyncio.Event()  # it belongs to the test's loop
    for names in (calls, completed, attempts, failing):
        names.clear()


def told(record: Stored) -> dict[str, str]:
    """Pyrula's own headers."""
    prefix = "pyrula-dlq-"
    return {
        name.removeprefix(prefix): (value or b"").decode() for name, value in record.headers if name.startswith(prefix)
    }


class Refused(Exception):
    """A payment that will never go through."""


@step
async def first(n: int) -> int:
    calls["first"] += 1
    return n + 1


@step(retry=Retry(max_attempts=2, initial=0.01))
async def second(n: int) -> int:
    calls["second"] += 1
    if n in failing:
        if calls["second"] == last_failure:
            failing.clear()
        raise ValueError(f"{n} can't be taken")
    return n * 2


@workflow(name="letters.two_steps")
async def two_steps(ctx: Context, n: int) -> None:
    attempts.append(ctx.run.attempt)
    value = await ctx.step(first, n)
    assert await ctx.step(second, n) == n * 2
    assert value == n + 1
    completed.append(n)


@workflow(name="letters.plain")
async def plain(ctx: Context, n: int) -> None:
    attempts.append(ctx.run.attempt)
    if n in failing:
        raise Refused(f"{n} is refused")
    completed.append(n)


def numbers(count: int, partitions: int = 1) -> list[Message]:
    return [Message(b"k%d" % n, b"%d" % n, partition=n % partitions) for n in range(count)]


async def test_a_run_goes_on_at_the_step_that_failed(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbers(1))
    global last_failure
    failing.add(0)
    last_failure = 4  # two rounds of the step
    async with rig.running(rig.binding(two_steps, retry=QUICK)) as running:
        await rig.until_drained()
        assert [event.attempt for event in running.told("retrying")] == [1, 2]
        assert [event.attempt for event in running.told("completed")] == [3]
        (stats,) = running.worker.stats()
        assert (stats.completed, stats.retried, stats.dead_lettered, stats.failed) == (1, 2, 0, 0)
    assert calls == {"first": 1, "second": 5}
    assert attempts == [1, 2, 3]
    assert await rig.read(rig.letters) == []


async def test_a_letter_says_what_happened(rig: Rig) -> None:
    await rig.create()
    failing.add(1)
    await rig.produce(numbers(3))
    async with rig.running(rig.binding(two_steps, retry=QUICK)) as running:
        await rig.until_drained()
        (event,) = running.told("dead_lettered")
        (stats,) = running.worker.stats()
        assert (stats.completed, stats.retried, stats.dead_lettered, stats.failed) == (2, 2, 1, 1)
    assert (event.offset, event.key, event.attempt) == (1, b"k1", 3)
    (letter,) = await rig.read(rig.letters)
    words = told(letter)
    assert (letter.key, letter.value) == (b"k1", b"1")
    assert words["run-id"] == event.run_id
    assert (words["topic"], words["partition"], words["offset"]) == (rig.topic, "0", "1")
    assert (words["reason"], words["attempts"], words["workflow"]) == ("failed", "3", "letters.two_steps")
    assert words["message"].startswith("StepError: step `second` failed after 2 attempts: ")
    assert "1 can't be taken" in words["message"]
    assert "two_steps" in words["trace"]
    assert "first" in words["journal"]
    assert calls == {"first": 3, "second": 2 + 6}


async def test_a_record_keeps_its_place_in_its_lane_while_it_is_retried(rig: Rig) -> None:
    await rig.create()
    await rig.produce(Message(key, b"%d" % n) for n, key in enumerate([b"a", b"a", b"b", b"a"]))
    failing.add(0)
    retry = Retry(max_attempts=1_000, initial=0.05, factor=1.0, jitter=0.0)
    async with rig.running(rig.binding(plain, retry=retry)) as running:
        await rig.until(lambda: completed == [2] and len(attempts) > 5, "the other lane to go on")
        failing.clear()
        await rig.until_drained()
        assert running.worker.stats()[0].retried == len(attempts) - 4
    assert completed == [2, 0, 1, 3]


async def test_an_error_that_is_not_retryable_goes_at_once(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbers(2))
    failing.update({0, 1})
    retry = Retry(max_attempts=5, initial=30.0, non_retryable=(Refused,))
    async with rig.running(rig.binding(plain, retry=retry)):
        await rig.until_drained()
    letters = await rig.read(rig.letters)
    assert [told(letter)["attempts"] for letter in letters] == ["1", "1"]
    assert attempts == [1, 1]


async def test_a_failed_record_that_is_skipped_is_told(rig: Rig) -> None:
    await rig.create(letters=False)
    await rig.produce(numbers(3))
    failing.add(1)
    async with rig.running(rig.binding(plain, on_failure="skip", retry=QUICK)) as running:
        await rig.until_drained()
        (event,) = running.told("skipped")
        assert (event.offset, event.attempt, event.error) == (1, 3, "Refused: 1 is refused")
        (stats,) = running.worker.stats()
        assert (stats.completed, stats.skipped) == (2, 1)
        assert running.health.state == "healthy"
    assert completed == [0, 2]


async def test_a_stopped_record_goes_on_at_its_failed_step_at_the_next_start(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbers(2))
    failing.add(0)
    binding = rig.binding(two_steps, on_failure="stop")
    async with rig.running(binding) as running:
        await rig.until(lambda: running.told("stopped") and completed == [1], "record 0 to be held")
    failing.clear()
    async with rig.running(binding):
        await rig.until_drained()
    assert calls == {"first": 2, "second": 1 + 2 + 1}
    assert completed == [1, 0]


async def test_attempts_are_counted_across_starts(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbers(2))
    failing.update({0, 1})
    long = Retry(max_attempts=3, initial=60.0, factor=1.0, jitter=0.0)
    for start in (1, 2):
        async with rig.running(rig.binding(plain, retry=long)) as running:
            await rig.until(lambda running=running: len(running.told("retrying")) == 2, "both to wait for their retry")
            assert {event.attempt for event in running.told("retrying")} == {start}
    failing.discard(1)
    async with rig.running(rig.binding(plain, retry=long)) as running:
        await rig.until_drained()
        assert [event.attempt for event in running.told("completed")] == [3]
    (letter,) = await rig.read(rig.letters)
    assert (letter.value, told(letter)["attempts"]) == (b"0", "3")
    assert sorted(attempts) == [1, 1, 2, 2, 3, 3]


async def test_a_run_that_took_too_long_is_tried_again_from_its_journal(rig: Rig) -> None:
    @workflow(name="letters.slow_once")
    async def body(ctx: Context, n: int) -> None:
        attempts.append(ctx.run.attempt)
        await ctx.step(first, n)
        if ctx.run.attempt == 1:
            await release.wait()
        completed.append(n)

    await rig.create()
    await rig.produce(numbers(1))
    async with rig.running(rig.binding(body, run_timeout=0.3, retry=QUICK)):
        await rig.until_drained()
    assert (attempts, calls["first"], completed) == ([1, 2], 1, [0])
    assert await rig.read(rig.letters) == []


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_run_that_takes_too_long_is_dead_lettered(rig: Rig, stubborn: bool) -> None:
    @workflow(name="letters.forever")
    async def body(ctx: Context, n: int) -> None:
        while n in failing:
            try:
                await release.wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise
                await ctx.sleep(0)
        completed.append(n)

    await rig.create()
    await rig.produce(numbers(3))
    failing.add(0)
    async with rig.running(rig.binding(body, run_timeout=0.3)) as running:
        await rig.until_drained()
        assert running.health.state == "healthy"
    (letter,) = await rig.read(rig.letters)
    assert letter.value == b"0"
    assert "run_timeout=0.3" in told(letter)["message"]
    assert sorted(completed) == [1, 2]


async def test_a_missing_dead_letter_topic_holds_the_record_and_nothing_else(rig: Rig) -> None:
    await rig.create(partitions=3, letters=False)
    await rig.produce(numbers(99, partitions=3))
    failing.add(30)
    async with rig.running(rig.binding(plain)) as running:
        await rig.until_committed(33, partition=1)
        await rig.until_committed(33, partition=2)
        await rig.until(lambda: len(completed) == 98, "all others to complete")
        await rig.until_committed(10, partition=0)
        assert await rig.offset(0) == 10
        assert f"{rig.letters} does not exist" in running.reasons
        assert running.health.state == "degraded"
        await asyncio.to_thread(rig.topics.create, rig.letters)
        await rig.until_drained()
        await rig.until(lambda: running.health.state == "healthy", "health to recover")
    (letter,) = await rig.read(rig.letters)
    assert letter.value == b"30"
    assert attempts == [1] * 99


async def test_a_dead_letter_topic_that_is_deleted_while_the_worker_runs(rig: Rig) -> None:
    await rig.create()
    await rig.produce(numbers(1))
    failing.update({0, 1})
    async with rig.running(rig.binding(plain), metadata_max_age=1.0) as running:
        await rig.until_drained()
        await asyncio.to_thread(rig.topics.delete, rig.letters)
        await rig.produce(numbers(2)[1:])
        await rig.until(lambda: rig.letters in running.reasons, "health to name the topic")
        assert await rig.offset() == 1
        await asyncio.to_thread(rig.topics.create, rig.letters)
        await rig.until_drained()
        await rig.until(lambda: running.health.state == "healthy", "health to recover")
    assert [letter.value for letter in await rig.read(rig.letters)] == [b"1"]


async def test_many_letters_wait_for_their_topic(rig: Rig) -> None:
    """More than may be in flight at once."""
    await rig.create(partitions=2, letters=False)
    await rig.produce(numbers(400, partitions=2))
    failing.update(range(0, 400, 2))
    async with rig.running(rig.binding(plain, max_concurrency=16)) as running:
        await rig.until_committed(200, partition=1)
        (stats,) = running.worker.stats()
        assert 0 < stats.in_flight <= 16
        assert stats.dead_lettered == 0
        await asyncio.to_thread(rig.topics.create, rig.letters)
        await rig.until_drained()
    letters = await rig.read(rig.letters)
    assert [int(letter.value or b"") for letter in letters] == list(range(0, 400, 2))
    assert len(attempts) == 400


@workflow(name="letters.sending")
async def sending(ctx: Context, n: int) -> int:
    await ctx.step(first, n)
    return n


async def test_a_missing_output_topic_holds_records_until_it_is_made(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    output = f"{rig.topic}-out"
    await rig.create(partitions=2)
    await rig.produce(numbers(10, partitions=2))
    async with rig.running(rig.binding(sending, output=output)) as running:
        await rig.until(lambda: calls["first"] == 10, "all bodies to have run")
        assert await rig.offset(0) == await rig.offset(1) == 0
        await rig.until(lambda: f"{output} does not exist" in running.reasons, "health to name the topic")
        assert running.told("completed") == []
        # the client's own lines, one for each time that the topic is looked for; it tried ten times a second
        began, before = monotonic(), len(caplog.records)
        await asyncio.sleep(3)
        assert len(caplog.records) - before <= 2 * (monotonic() - began) + 2
        await asyncio.to_thread(rig.topics.create, output)
        await rig.until_drained()
        await rig.until(lambda: running.health.state == "healthy", "health to recover")
    assert sorted((letter.key, letter.value) for letter in await rig.read(output)) == [
        (b"k%d" % n, b"%d" % n) for n in range(10)
    ]
    assert calls["first"] == 10


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"value": b"x" * 30_000}, "too large"),
        ({"value": b"x" * 2_000_000}, "the limit is 1,048,576"),
        ({"value": b"x", "partition": 7}, "partition"),
    ],
    ids=["for the topic", "for the producer", "unknown partition"],
)
async def test_a_message_that_its_topic_refuses_is_a_failure_of_its_run(
    rig: Rig, sent: dict[str, Any], said: str
) -> None:
    output = f"{rig.topic}-out"

    @workflow(name="letters.refused")
    async def body(ctx: Context, n: int) -> None:
        await ctx.step(first, n)
        await ctx.send(output, b"%d" % n)
        if n % 5 == 0:
            await ctx.send(output, **sent)

    await rig.create(partitions=4)
    await asyncio.to_thread(rig.topics.create, output, config={"max.message.bytes": "10000"})
    await rig.produce(numbers(40, partitions=4))
    async with rig.running(rig.binding(body)) as running:
        await rig.until_drained()
        assert sorted(int((event.key or b"")[1:]) for event in running.told("completed")) == [
            n for n in range(40) if n % 5
        ]
        await rig.until(lambda: running.health.state == "healthy", "health to recover")
    letters = await rig.read(rig.letters)
    assert sorted(int(letter.value or b"") for letter in letters) == list(range(0, 40, 5))
    for letter in letters:
        assert output in told(letter)["message"]
        assert said in told(letter)["message"]
    # What was sent together with a refused message may be there, as often as it was tried; the rest is there once.
    written = Counter(int(message.value or b"") for message in await rig.read(output))
    assert {n: count for n, count in written.items() if n % 5} == {n: 1 for n in range(40) if n % 5}


async def test_a_letter_too_large_for_its_topic_goes_without_its_extras(rig: Rig) -> None:
    """The topic takes the record, but not with the trace as well."""

    @workflow(name="letters.large")
    async def large(ctx: Context, value: bytes) -> None:
        raise Refused("y" * MAX_TRACE)

    await rig.create(letters=False)
    await asyncio.to_thread(rig.topics.create, rig.letters, config={"max.message.bytes": "12000"})
    await rig.produce([b"x" * 7_000])
    async with rig.running(rig.binding(large)):
        await rig.until_drained()
    (letter,) = await rig.read(rig.letters)
    assert letter.value == b"x" * 7_000
    assert "trace" not in told(letter)
    assert told(letter)["reason"] == "failed"


async def test_a_record_too_large_for_its_dead_letter_topic_is_held_and_named(rig: Rig) -> None:
    await rig.create(letters=False)
    await asyncio.to_thread(rig.topics.create, rig.letters, config={"max.message.bytes": "2000"})
    await rig.produce([Message(b"a", b'"' + b"x" * 20_000), Message(b"b", b"1")])
    async with rig.running(rig.binding(plain)) as running:
        await rig.until(lambda: running.told("stopped") and completed == [1], "the record to be held")
        assert "offset 0" in running.reasons
        assert rig.letters in running.reasons
        assert "too large" in running.reasons
        assert running.health.state == "degraded"
        assert await rig.offset() == 0
    assert await rig.read(rig.letters) == []


async def test_a_step_result_that_is_too_large_is_dead_lettered(rig: Rig) -> None:
    @step
    async def huge() -> str:
        return "x" * (3 << 20)

    @workflow(name="letters.huge")
    async def body(ctx: Context, n: int) -> None:
        if n == 0:
            await ctx.step(huge)
        completed.append(n)

    await rig.create()
    await rig.produce(numbers(2))
    async with rig.running(rig.binding(body)):
        await rig.until_drained()
    assert completed == [1]
    (letter,) = await rig.read(rig.letters)
    message = told(letter)["message"]
    assert message.startswith("SerializationError: ")
    assert "huge" in message
    assert "3,145,730 bytes" in message


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Any, object()), (Any, float("nan")), (float, float("nan")), (Any, {1, 2})],
    ids=["object", "nan", "declared nan", "set"],
)
async def test_a_result_that_cannot_be_sent_is_dead_lettered(rig: Rig, kind: Any, value: Any) -> None:
    async def body(ctx: Context, n: int) -> Any:
        return value

    body.__annotations__["return"] = kind
    unsendable = workflow(name="letters.unsendable")(body)

    output = f"{rig.topic}-out"
    await rig.create(output)
    await rig.produce(numbers(1))
    async with rig.running(rig.binding(unsendable, output=output)):
        await rig.until_drained()
    (letter,) = await rig.read(rig.letters)
    assert told(letter)["message"].startswith("SerializationError: ")
    assert await rig.read(output) == []
