"""`pyrula explain WORKFLOW RUN`: why a run isn't running."""

import argparse
import asyncio
import dataclasses
import json
from datetime import datetime

from pyrula.cli.problem import Problem
from pyrula.cli.stores import add_store_arguments, store_of
from pyrula.workflows import RunExplanation, WorkflowClient
from pyrula.workflows.errors import PyrulaError

__all__ = ["add_command"]

_HELP = """\
Say in one sentence why a submitted run isn't running, and by whom if it is: what it waits for, the Limit and Rate
before it and who holds the slots, how many runs are ahead of it, or that no live worker serves it. Nothing of the run
changes.
"""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("explain", help="say why a run isn't running", description=_HELP)
    parser.add_argument("workflow", metavar="WORKFLOW", help="the workflow's name")
    parser.add_argument("run_id", metavar="RUN", help="the run's id")
    add_store_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the facts, as one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    try:
        explanation = asyncio.run(_read(WorkflowClient(store), arguments))
    except PyrulaError as error:
        raise Problem(str(error)) from error
    print(json.dumps(dataclasses.asdict(explanation), default=_text) if arguments.json else explanation)
    return 0


async def _read(client: WorkflowClient, arguments: argparse.Namespace) -> RunExplanation:
    async with client:
        return await client.explain(arguments.workflow, arguments.run_id)


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
