"""`pyrula backfill MODULE:WORKER`: run a range of a topic's records through a workflow, or look after such a run.

Without a verb it takes part itself until the backfill is over: it joins no group, and whoever else has the workflow
shares the partitions. The verbs only talk to the worker's store.
"""

import argparse
import asyncio
import json
import logging
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from pyrula.cli.backfill_shown import Bars, line_of_status, lines_of
from pyrula.cli.load import find_kafka_worker
from pyrula.cli.numbers import count
from pyrula.cli.problem import Problem
from pyrula.kafka import Backfill, Binding, KafkaWorker
from pyrula.workflows import BackfillClient, BackfillReport
from pyrula.workflows.backfills import Pace
from pyrula.workflows.definition import WorkflowDefinition, find_definition
from pyrula.workflows.errors import PyrulaError

__all__ = ["add_command"]

_VERBS = ("start", "watch", "status", "pause", "resume", "cancel", "redrive", "list")
_LOOK_SECONDS = 0.5
_HELP = """\
Run the records of a topic from START up to END once more (or for the first time) through a workflow, beside live
traffic: no group's offsets are touched. WORKER is a KafkaWorker in MODULE, or a function that returns one; it says
which store, cluster and binding are meant. START and END are offsets, times such as 2026-11-28T00:00:00Z, how long ago
such as 24h, earliest or latest; they are looked up once, when the backfill begins. Interrupted, the same --id goes on
with it, here or in any worker that has the workflow.

VERB: start (if none is given), or for an ID: watch it to its end, status, pause, resume, cancel, redrive (run what
failed once more, from its dead letters); or list all there are.

The exit status is 0 if all that was in the range and matched is done, 1 if records failed or it didn't come to its end,
2 if it can't be done as asked.
"""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "backfill",
        help="run a range of a topic's records through a workflow",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("worker", metavar="MODULE:WORKER", help="such as shop.orders:worker")
    parser.add_argument("verb", metavar="VERB", nargs="?", choices=_VERBS, default="start", help=", ".join(_VERBS))
    parser.add_argument("of", metavar="ID", nargs="?", help="the backfill that the verb is about; the same as --id")
    parser.add_argument("--watch", action="store_true", help="follow the backfill of --id, which runs elsewhere")
    parser.add_argument("--id", metavar="ID", help="what to call it, or which one to go on with (made up and told)")
    parser.add_argument("--topic", help="the topic to read (the binding's)")
    parser.add_argument("--workflow", metavar="NAME", help="where the worker has several bindings")
    parser.add_argument("--group", help="of the binding that is meant, where a workflow has several")
    parser.add_argument("--partitions", type=_partitions, metavar="LIST", help="such as 0,3-5 (all)")
    parser.add_argument("--start", default="earliest", metavar="START", help="default: earliest")
    parser.add_argument("--end", default="latest", metavar="END", help="exclusive; default: latest, as of now")
    parser.add_argument("--where", metavar="MODULE:NAME", help="a predicate on the record; others are passed over")
    parser.add_argument(
        "--max-concurrency", type=count, default=16, metavar="N", help="bodies at once in a worker (16)"
    )
    parser.add_argument("--rate", type=_rate, metavar="N", help="records a second, in all workers together")
    parser.add_argument("--output", metavar="TOPIC", help="where results go, instead of the binding's output")
    parser.add_argument("--dead-letter-topic", metavar="TOPIC", help="instead of the binding's")
    parser.add_argument("--dry-run", action="store_true", help="count what would run; nothing is written anywhere")
    parser.add_argument("--detach", action="store_true", help="leave it to the workers that run, and return at once")
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    parser.add_argument(
        "--log-level", default="WARNING", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="default: WARNING"
    )
    parser.set_defaults(run=run)


def _partitions(text: str) -> list[int]:
    """An argument's type: numbers and ranges of numbers."""
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        if found is None or (found[2] is not None and int(found[2]) < int(found[1])):
            raise argparse.ArgumentTypeError(f"{text!r} is no list of partitions like 0,3-5")
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
    return numbers


def _rate(text: str) -> float:
    """An argument's type: a number above 0."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of records a second above 0")
    return rate


def run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(
        level=arguments.log_level, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s", stream=sys.stderr
    )
    worker = find_kafka_worker(arguments.worker)
    verb = "watch" if arguments.watch else arguments.verb
    if verb != "redrive" and arguments.of is not None and arguments.id not in (None, arguments.of):
        raise Problem(f"the id is given twice, as {arguments.of!r} and as --id {arguments.id!r}")
    backfill_id = arguments.of if arguments.of is not None else arguments.id
    try:
        if verb == "start":
            return asyncio.run(_start(worker, arguments, backfill_id))
        if not worker.store.durable:
            raise Problem(f"{arguments.worker} keeps its store in memory: what runs elsewhere isn't in it")
        if verb == "list":
            return asyncio.run(_list(worker, arguments.json))
        if backfill_id is None:
            raise Problem(f"{verb} which one? Give its id; `pyrula backfill {arguments.worker} list` lists them")
        if verb == "redrive":
            return asyncio.run(_redrive(worker, arguments, backfill_id))
        return asyncio.run(_control(worker, verb, backfill_id, arguments.json))
    except PyrulaError as error:
        raise Problem(str(error)) from error


async def _start(worker: KafkaWorker, arguments: argparse.Namespace, backfill_id: str | None) -> int:
    source = _source(worker, arguments)
    named: dict[str, Any] = {
        "partitions": arguments.partitions,
        "start": arguments.start,
        "end": arguments.end,
        "max_concurrency": arguments.max_concurrency,
        "rate": arguments.rate,
        "where": arguments.where,
        "output": arguments.output,
        "dead_letter_topic": arguments.dead_letter_topic,
    }
    backfill = Backfill(source, arguments.topic, id=backfill_id, dry_run=arguments.dry_run, **named)
    if arguments.detach:
        if arguments.dry_run:
            raise Problem("--dry-run runs here, so there is nothing to detach from")
        async with _client(worker) as backfills:
            workflow = source.workflow if isinstance(source, Binding) else source
            cluster, group = backfill.job.request.cluster, backfill.job.request.group
            await backfills.start(
                workflow, backfill.topic, backfill_id=backfill.id, group=group, cluster=cluster, **named
            )
        print(backfill.id)
        return 0
    return await _run(worker, backfill, arguments)


async def _redrive(worker: KafkaWorker, arguments: argparse.Namespace, backfill_id: str) -> int:
    new_id = arguments.id if arguments.of is not None else None
    async with _client(worker) as backfills:
        report = await backfills.status(backfill_id)
        if arguments.detach:
            asked = backfills.redrive(
                backfill_id, new_id=new_id, max_concurrency=arguments.max_concurrency, rate=arguments.rate
            )
            print((await asked).id)
            return 0
    pace = Pace(arguments.max_concurrency, arguments.rate)
    return await _run(worker, Backfill.redrive(report, worker.bindings, id=new_id, pace=pace), arguments)


async def _run(worker: KafkaWorker, backfill: Backfill, arguments: argparse.Namespace) -> int:
    if not backfill.dry_run:
        print(f"backfill {backfill.id} (to go on with it after an interruption: --id {backfill.id})", file=sys.stderr)
    first: list[BackfillReport] = []
    with _bars() as bars:

        def show(report: BackfillReport) -> None:
            first.append(report) if not first else None
            bars.show(report)

        task = asyncio.ensure_future(worker.backfill(backfill, on_progress=show))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            report = await task
        except asyncio.CancelledError:
            print(f"interrupted; to go on with it: --id {backfill.id}", file=sys.stderr)
            return 130
    status = _tell(report, arguments.json)
    if first and first[0].over and not backfill.dry_run:
        print(
            f"it was {report.status} before, so nothing has run now; give another --id to run the range once more",
            file=sys.stderr,
        )
    return status


@contextmanager
def _bars() -> Iterator[Bars]:
    """Bars that make room for lines of the log."""
    bars, handlers = Bars(), list(logging.getLogger().handlers)

    def aside(_: logging.LogRecord) -> bool:
        bars.step_aside()
        return True

    for handler in handlers:
        handler.addFilter(aside)
    try:
        yield bars
    finally:
        for handler in handlers:
            handler.removeFilter(aside)


def _source(worker: KafkaWorker, arguments: argparse.Namespace) -> Binding | WorkflowDefinition[..., Any]:
    """The binding that is meant; a workflow without one where it is named and imported."""
    name, group, topic = arguments.workflow, arguments.group, arguments.topic
    found = [
        one
        for one in worker.bindings
        if (name is None or one.workflow.name == name) and (group is None or one.group == group)
    ]
    reading = [one for one in found if topic is None or topic in one.topics]
    chosen = reading if len(reading) == 1 or len(found) > 1 else found
    if len(chosen) == 1:
        return chosen[0]
    if not found and name is not None and group is None and (definition := find_definition(name)) is not None:
        return definition
    has = "; ".join(
        f"--workflow {one.workflow.name} --group {one.group} (of {', '.join(one.topics)})" for one in worker.bindings
    )
    raise Problem(f"which binding is meant? {arguments.worker} has {has}")


@asynccontextmanager
async def _client(worker: KafkaWorker) -> AsyncIterator[BackfillClient]:
    """Of the worker's store, which is open meanwhile."""
    store = worker.store
    try:
        yield BackfillClient(store, store.open)
    finally:
        await store.close()


async def _list(worker: KafkaWorker, as_json: bool) -> int:
    async with _client(worker) as backfills:
        reports = await backfills.list()
        for report in reports:
            print(json.dumps(report.to_dict()) if as_json else line_of_status(report))
        if not reports:
            print(f"no backfills in {worker.store!r}", file=sys.stderr)
    return 0


async def _control(worker: KafkaWorker, verb: str, backfill_id: str, as_json: bool) -> int:
    async with _client(worker) as backfills:
        if verb == "watch":
            return _tell(await _watch(backfills.status, backfill_id), as_json)
        turned = {"pause": backfills.pause, "resume": backfills.resume, "cancel": backfills.cancel}
        report = await turned.get(verb, backfills.status)(backfill_id)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        print("\n".join(lines_of(report)) if verb == "status" else line_of_status(report))
    return 0


async def _watch(status: Callable[[str], Awaitable[BackfillReport]], backfill_id: str) -> BackfillReport:
    with _bars() as bars:
        while True:
            report = await status(backfill_id)
            bars.show(report)
            if report.over:
                return report
            await asyncio.sleep(_LOOK_SECONDS)


def _tell(report: BackfillReport, as_json: bool) -> int:
    print(json.dumps(report.to_dict()) if as_json else "\n".join(lines_of(report)))
    if report.status == "failed" and not report.partitions:
        return 2  # there is no such range
    return 0 if report.status == "completed" and not report.failed and not report.undecided else 1
