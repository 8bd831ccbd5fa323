"""`pyrula topics MODULE:WORKER`: which topics a worker needs, which of them exist, and making the others."""

import argparse
import asyncio
import sys

from pyrula.cli.load import find_kafka_worker
from pyrula.cli.numbers import count
from pyrula.cli.problem import Problem
from pyrula.kafka import KafkaWorker
from pyrula.kafka.topic_admin import TopicAdmin, topics_of
from pyrula.workflows.errors import PyrulaError

__all__ = ["add_command"]


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "topics",
        help="list the topics that a worker needs, or make them",
        description=(
            "List the input, output and dead-letter topics of a KafkaWorker, and whether they exist; with --create make"
            " those that don't. Topics that bodies send to with ctx.send aren't known: name them with --also."
            " The exit status is 1 if one is missing."
        ),
    )
    parser.add_argument("worker", metavar="MODULE:WORKER", help="such as shop.orders:worker")
    parser.add_argument("--create", action="store_true", help="make the topics that don't exist")
    parser.add_argument("--also", action="append", default=[], metavar="TOPIC", help="a topic that bodies send to")
    parser.add_argument("--partitions", type=count, default=4, metavar="N", help="of each new topic (4)")
    parser.add_argument("--replication", type=count, default=1, metavar="N", help="copies of each new topic (1)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    worker = find_kafka_worker(arguments.worker)
    try:
        return asyncio.run(_look(worker, arguments))
    except PyrulaError as error:
        raise Problem(str(error)) from error


async def _look(worker: KafkaWorker, arguments: argparse.Namespace) -> int:
    missing = 0
    for cluster, options in worker.clusters.items():
        needed = dict(topics_of(binding for binding in worker.bindings if binding.cluster == cluster))
        for name in arguments.also:
            needed.setdefault(name, "sent to")
        async with TopicAdmin(options) as admin:
            existing = await admin.existing()
            for name, purpose in needed.items():
                standing = "exists"
                if name not in existing:
                    standing = "MISSING"
                    if arguments.create:
                        made = await admin.create(name, arguments.partitions, arguments.replication)
                        standing = "made" if made else "exists"
                missing += standing == "MISSING"
                print(f"{standing:<8} {name}  ({purpose})")
    if missing:
        print(f"pyrula: {missing} missing; --create makes them", file=sys.stderr)
    return 1 if missing else 0
