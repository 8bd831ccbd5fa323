"""`pyrula lanes MODULE:WORKER`: which lanes wait for a record that was handed over to the store."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from pyrula.cli.load import find_kafka_worker
from pyrula.cli.numbers import count
from pyrula.cli.problem import Problem
from pyrula.kafka import Binding, KafkaWorker
from pyrula.kafka.topic_admin import TopicAdmin
from pyrula.workflows.errors import PyrulaError
from pyrula.workflows.store.lanes import WHOLE

__all__ = ["add_command"]


class AwayLane(NamedTuple):
    """A lane that waits, of a partition of a binding's topic."""

    topic: str
    partition: int
    key: str
    run_id: str
    queued: int


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "lanes",
        help="list the keys that wait for a record in the store",
        description=(
            "List the lanes of a KafkaWorker's bindings that are away: the key whose record was handed over to the"
            " store while it waits, the run that the key waits for, and how many are queued behind that. A partition"
            " may be added to a topic without disturbing the order of keys when there is none."
        ),
    )
    parser.add_argument("worker", metavar="MODULE:WORKER", help="such as shop.orders:worker")
    parser.add_argument("--most", type=count, default=100, metavar="N", help="how many to list (100)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    worker = find_kafka_worker(arguments.worker)
    try:
        return asyncio.run(_list(worker, arguments.most))
    except PyrulaError as error:
        raise Problem(str(error)) from error


async def _list(worker: KafkaWorker, most: int) -> int:
    await worker.store.open()
    try:
        found = [lane async for lane in _away(worker)]
        for lane in found[:most]:
            behind = f", {lane.queued} queued behind it" if lane.queued else ""
            print(f"{lane.topic}[{lane.partition}]  {lane.key}  waits for {lane.run_id}{behind}")
    finally:
        await worker.store.close()
    if len(found) > most:
        print(f"... and {len(found) - most} more")
    print(f"{len(found)} away" if found else "no lane is away")
    return 0


async def _away(worker: KafkaWorker) -> AsyncIterator[AwayLane]:
    for cluster, options in worker.clusters.items():
        bindings = [binding for binding in worker.bindings if binding.cluster == cluster]
        async with TopicAdmin(options) as admin:
            counts = await admin.partitions(topic for binding in bindings for topic in binding.topics)
        for binding in bindings:
            for topic in binding.topics:
                for number in range(counts.get(topic, 0)):
                    async for lane in _of_partition(worker, binding, topic, number):
                        yield lane


async def _of_partition(worker: KafkaWorker, binding: Binding, topic: str, number: int) -> AsyncIterator[AwayLane]:
    for lane, state in (await worker.store.lanes(*binding.place_of(number, topic))).items():
        if state.away:
            yield AwayLane(topic, number, _shown(lane), state.head, state.queued)


def _shown(lane: bytes) -> str:
    if lane == WHOLE:
        return "the whole partition"
    text = lane[1:].decode("utf-8", "backslashreplace")
    return f"key {text!r}" if lane[:1] == b"k" else f"a key with digest {lane[1:].hex()}"
