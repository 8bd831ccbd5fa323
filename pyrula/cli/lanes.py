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
from pyrula.workflows import RunNotFoundError, WorkflowClient
from pyrula.workflows.errors import PyrulaError
from pyrula.workflows.store.lanes import WHOLE
from pyrula.workflows.store.lifecycle import TERMINAL, RunStatus
from pyrula.workflows.store.payloads import read_failure

__all__ = ["add_command"]

_CANCEL_SECONDS = 10.0


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
    parser.add_argument(
        "--discard", metavar="RUN", help="end the run that a key waits for, as cancelled, so that the key goes on"
    )
    parser.add_argument("--most", type=count, default=100, metavar="N", help="how many to list (100)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    worker = find_kafka_worker(arguments.worker)
    try:
        if arguments.discard is not None:
            return asyncio.run(_discard(worker, arguments.discard))
        return asyncio.run(_list(worker, arguments.most))
    except (PyrulaError, ValueError) as error:
        raise Problem(str(error)) from error


async def _discard(worker: KafkaWorker, run_id: str) -> int:
    async with WorkflowClient(worker.store) as client:
        name = (await client.origin("", run_id)).name
        status = await client.cancel(name, run_id, timeout=_CANCEL_SECONDS)
    print(f"{run_id} is {status}" if status in TERMINAL else f"{run_id} is {status}, and ends when a worker gets to it")
    return 0


async def _list(worker: KafkaWorker, most: int) -> int:
    await worker.store.open()
    try:
        found = [lane async for lane in _away(worker)]
        for lane in found[:most]:
            behind = f", {lane.queued} queued behind it" if lane.queued else ""
            why = await _blocked(worker, lane.run_id)
            print(f"{lane.topic}[{lane.partition}]  {lane.key}  waits for {lane.run_id}{behind}{why}")
    finally:
        await worker.store.close()
    if len(found) > most:
        print(f"... and {len(found) - most} more")
    print(f"{len(found)} away" if found else "no lane is away")
    return 0


async def _blocked(worker: KafkaWorker, run_id: str) -> str:
    """Why the run of a lane's head doesn't go on by itself, if it doesn't."""
    try:
        detail = await worker.store.detail(run_id)
    except RunNotFoundError:
        return ""  # it ended meanwhile
    if detail.status != RunStatus.PAUSED or detail.error is None:
        return ""
    failure = read_failure(detail.error)
    name = failure.type.rpartition(".")[2]
    return f"; blocked: {name}: {failure.message}" if name else f"; paused: {failure.message}"


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
