"""`pyrula worker MODULE:WORKER`: run a worker that the user's module made, until SIGTERM or Ctrl-C drains it."""

import argparse
import asyncio
import logging

from pyrula.cli import unawaited
from pyrula.cli.damper import Damper
from pyrula.cli.load import find_worker
from pyrula.kafka import KafkaWorker
from pyrula.workflows import WorkflowWorker
from pyrula.workflows.errors import PyrulaError

__all__ = ["add_command"]

log = logging.getLogger("pyrula.cli")


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "worker",
        help="run a worker on real servers",
        description=(
            "Run a KafkaWorker or a WorkflowWorker until SIGTERM or Ctrl-C; then it finishes what is at hand, commits"
            " and leaves. A second signal ends it at once. WORKER is a worker in MODULE, or a function that returns"
            " one."
        ),
    )
    parser.add_argument("worker", metavar="MODULE:WORKER", help="such as shop.orders:worker")
    parser.add_argument(
        "--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="default: INFO"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    if arguments.log_level == "INFO":
        # Its INFO tells every request to a coordinator.
        logging.getLogger("aiokafka").setLevel("WARNING")
    for handler in logging.getLogger().handlers:
        handler.addFilter(Damper())
    unawaited.told()
    worker = find_worker(arguments.worker)
    try:
        asyncio.run(_run(worker))
    except PyrulaError as error:
        log.error("%s", error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


async def _run(worker: KafkaWorker | WorkflowWorker) -> None:
    """Run it, and say what it waits for once a SIGTERM would be heard."""
    running = asyncio.ensure_future(worker.run())
    await asyncio.sleep(0)
    log.info("waiting for the store: %r", worker.store)
    if isinstance(worker, KafkaWorker):
        for name, options in worker.clusters.items():
            log.info("waiting for Kafka at %s (cluster %r)", options.bootstrap_servers, name)
    await running
