"""`pyrula history WORKFLOW RUN`: a run's history as a file, for `replay` in the tests of tomorrow's code."""

import argparse
import asyncio
import sys
from pathlib import Path

from pyrula.cli.numbers import count
from pyrula.cli.problem import Problem
from pyrula.cli.stores import add_store_arguments, store_of
from pyrula.workflows import RunNotFoundError, WorkflowClient
from pyrula.workflows.errors import PyrulaError
from pyrula.workflows.store.history import History
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.runs import LINKS_KEPT, RETENTION_SECONDS

__all__ = ["add_command"]

_HELP = """\
Write a run's history as JSON: its journal, params and version, all that pyrula.workflows.testing.replay (of a record's
run pyrula.kafka.testing.replay_record_run) needs to run it against the code of another day. Values are in it as they
were journaled, secrets too. An id of any link of a run that continued as new is its live link, or that of --link.
Nothing of the run changes.
"""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("history", help="save a run's history, to be replayed in tests", description=_HELP)
    parser.add_argument("workflow", metavar="WORKFLOW", help="the workflow's name")
    parser.add_argument("run_id", metavar="RUN", help="the run's id")
    add_store_arguments(parser)
    parser.add_argument("--link", type=count, metavar="N", help="an earlier link of its chain; the first is 1")
    parser.add_argument("--out", metavar="FILE", help="write it there instead of to standard output")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    try:
        history = asyncio.run(_read(WorkflowClient(store), arguments))
    except PyrulaError as error:
        raise Problem(str(error)) from error
    if arguments.out is None:
        sys.stdout.writelines(history.pieces())
        return 0
    try:
        history.dump(arguments.out)
    except OSError as error:
        raise Problem(f"--out {arguments.out}: {error.strerror}") from None
    print(
        f"{Path(arguments.out)}: {len(history.rows)} rows of run {history.run_id} ({history.status})", file=sys.stderr
    )
    return 0


async def _read(client: WorkflowClient, arguments: argparse.Namespace) -> History:
    async with client:
        detail = await client.detail(arguments.workflow, arguments.run_id)
        try:
            return await client.history(arguments.workflow, arguments.run_id, link=arguments.link)
        except RunNotFoundError:
            live = RunId.parse(detail.run_id).link
            links = "one link" if live == 1 else f"links 1 to {live}"
            raise Problem(
                f"run {arguments.run_id} has no link {arguments.link} any more: it has {links}, of which the last "
                f"{LINKS_KEPT} that continued are kept, for {RETENTION_SECONDS / 86400:.0f} days"
            ) from None
