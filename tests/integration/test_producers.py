"""Producers that end before the broker has answered: what they had is failed, and nobody is bothered with it."""

import asyncio
import gc
import os
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from pyrula.kafka import KafkaOptions
from pyrula.kafka.outputs import close_producer, producer_arguments
from pyrula.workflows import Context, workflow
from tests.integration.rig import Rig


@pytest.fixture
async def complaints() -> list[dict[str, Any]]:
    """What the event loop reports, such as errors that nobody looked at."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    return told


async def test_errors_of_a_closed_producer_are_not_reported_as_forgotten(
    rig: Rig, complaints: list[dict[str, Any]]
) -> None:
    await rig.create()
    producer = AIOKafkaProducer(**producer_arguments(KafkaOptions(bootstrap_servers=rig.kafka, linger=60.0)))
    await producer.start()
    answer = await producer.send(rig.topic, b"never sent")
    await close_producer(producer, 0)
    assert "the producer was closed" in str(answer.exception())
    del producer, answer
    gc.collect()
    assert complaints == []


@workflow(name="producers.two_too_large")
async def two_too_large(ctx: Context, topic: str) -> None:
    for _ in range(2):
        await ctx.send(topic, os.urandom(4_000))


async def test_a_transaction_that_fails_reports_one_error_alone(rig: Rig, complaints: list[dict[str, Any]]) -> None:
    output = f"{rig.topic}-out"
    await rig.create()
    await asyncio.to_thread(rig.topics.create, output, config={"max.message.bytes": "2000"})
    await rig.produce([output.encode()])
    async with rig.running(rig.binding(two_too_large, exactly_once=True)):
        await rig.until_drained()
    (letter,) = await rig.read(rig.letters)
    assert "too large" in (dict(letter.headers)["pyrula-dlq-message"] or b"").decode()
    gc.collect()
    assert complaints == []
