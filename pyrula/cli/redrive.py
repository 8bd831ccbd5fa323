"""`pyrula redrive MODULE:WORKER RUN`: run a dead-lettered record once more."""

import argparse
import asyncio
import re
from typing import Any, NamedTuple

from pyrula.cli.load import find_kafka_worker
from pyrula.cli.problem import Problem
from pyrula.kafka import Binding, KafkaWorker
from pyrula.kafka.letters import read_letter
from pyrula.workflows import RunHandle, WorkflowClient
from pyrula.workflows.errors import PyrulaError

__all__ = ["add_command"]

_HELP = """\
Run a dead-lettered record once more, beside its key's other records. RUN is the id of its run, or its place as
TOPIC:PARTITION:OFFSET, or the place of its letter in the dead-letter topic. Steps that had ended aren't executed again
as long as their journal is kept. A worker that runs (pyrula worker) executes it; this command only asks for that. All
that failed in a backfill: pyrula backfill MODULE:WORKER redrive ID. With on_failure="park_key" a key waits for its
record; then that goes on, and the key follows.
"""


_ASKED_FOR = ("redriven", "retried", "unpaused")


class _Place(NamedTuple):
    topic: str
    partition: int
    offset: int


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("redrive", help="run a dead-lettered record once more", description=_HELP)
    parser.add_argument("worker", metavar="MODULE:WORKER", help="such as shop.orders:worker")
    parser.add_argument("which", metavar="RUN", help="a run's id, or TOPIC:PARTITION:OFFSET")
    parser.add_argument("--group", help="of several bindings that read the topic, the one of this group")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    worker = find_kafka_worker(arguments.worker)
    try:
        return asyncio.run(_redrive(worker, arguments.which, arguments.group))
    except (PyrulaError, ValueError) as error:
        raise Problem(str(error)) from error


async def _redrive(worker: KafkaWorker, which: str, group: str | None) -> int:
    async with WorkflowClient(worker.store) as client:
        run = await _asked_for(client, worker, which, group)
        last = [event for event in await run.events() if event.type in _ASKED_FOR][-1]
    resumed = last.data.get("resumed", True)  # one that was held or blocked still has its journal
    how = "goes on at the step that failed" if resumed else "begins anew: no journal of it is kept"
    print(f"{run} is queued, and {how}")
    return 0


async def _asked_for(client: WorkflowClient, worker: KafkaWorker, which: str, group: str | None) -> "RunHandle[Any]":
    place = _place(which)
    if place is None:
        run = client.handle((await client.origin("", which)).name, which)
        await run.retry()
        return run
    fitting = [one for one in worker.bindings if group in (None, one.group)]
    reading = [one for one in fitting if place.topic in one.topics]
    if len(reading) == 1:
        run = await client.record_run(reading[0], place.partition, place.offset, topic=place.topic)
        await run.retry()
        return run
    if reading:
        raise Problem(f"{place.topic} has several bindings: say --group, {' or '.join(one.group for one in reading)}")
    letters = [one for one in fitting if place.topic in _letters_of(one)]
    if not letters:
        raise Problem(f"no binding{'' if group is None else f' of group {group}'} reads {place.topic} or fills it")
    return await client.redrive(await read_letter(worker.clusters[letters[0].cluster], *place))


def _letters_of(binding: Binding) -> set[str]:
    return {binding.dead_letter_topic_of(topic) for topic in binding.topics}


def _place(text: str) -> _Place | None:
    """None for what is a run's id."""
    found = re.fullmatch(r"([A-Za-z0-9._-]+):([0-9]{1,9}):([0-9]{1,18})", text)
    if found is None and ":" in text:
        raise Problem(f"{text} is neither a run's id nor a place like orders:0:1234")
    return None if found is None else _Place(found[1], int(found[2]), int(found[3]))
