"""`pyrula runs`: which submitted runs there are, or how many in each status."""

import argparse
import asyncio
import json
import re
import sys
from datetime import UTC, datetime, timedelta

from pyrula.cli.numbers import count
from pyrula.cli.problem import Problem
from pyrula.cli.stores import add_store_arguments, store_of
from pyrula.workflows import RunCounts, RunPage, RunSummary, WorkflowClient
from pyrula.workflows.errors import PyrulaError

__all__ = ["add_command", "ago_or_time"]

_HELP = """\
List submitted runs, the newest first, or with --counts how many there are in each status. It reads the store's index
and changes nothing. Ended runs are listed until their retention is over, 7 days.
"""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("runs", help="list submitted runs", description=_HELP)
    add_store_arguments(parser)
    parser.add_argument("--name", metavar="WORKFLOW", help="runs of this workflow only")
    parser.add_argument(
        "--status",
        action="append",
        metavar="STATUS",
        help="such as failed, or parked, finished, unfinished; may be given several times",
    )
    parser.add_argument("--owner", help="runs of this owner only; '' for those that have none")
    parser.add_argument(
        "--since", type=ago_or_time, metavar="WHEN", help="submitted since 30m, 2h, 7d ago, or since an ISO time"
    )
    parser.add_argument("--limit", type=count, default=50, metavar="N", help="at most so many (50)")
    parser.add_argument("--cursor", help="go on where an earlier list ended")
    parser.add_argument("--counts", action="store_true", help="count runs by status; only --name goes with it")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=run)


def ago_or_time(text: str) -> datetime | timedelta:
    """An argument's type: how long ago, like 90s, 30m, 2h, 7d, or a time in ISO 8601, in UTC if it names no zone."""
    if found := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither like 30m, 2h or 7d nor a time in ISO 8601") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    try:
        shown = asyncio.run(_show(WorkflowClient(store), arguments))
    except (PyrulaError, ValueError) as error:
        raise Problem(str(error)) from error
    if not shown:
        # not on stdout, which programs read
        print(f"no runs{_of_those_asked_for(arguments)} in {store!r}", file=sys.stderr)
    return 0


def _of_those_asked_for(arguments: argparse.Namespace) -> str:
    asked = (arguments.name, arguments.status, arguments.owner, arguments.since, arguments.cursor)
    return "" if all(each is None for each in asked) else " of those asked for"


async def _show(client: WorkflowClient, arguments: argparse.Namespace) -> int:
    """How many runs it has shown."""
    shown = 0
    async with client:
        if arguments.counts:
            counts = await client.counts(arguments.name)
            _show_counts(counts, arguments.json)
            return counts.total
        left, cursor = arguments.limit, arguments.cursor
        while left > 0:
            page = await client.list(
                name=arguments.name,
                status=arguments.status,
                owner=arguments.owner,
                since=arguments.since,
                limit=min(left, 1000),
                cursor=cursor,
            )
            _show_page(page, arguments.json)
            shown += len(page)
            left, cursor = left - len(page), page.cursor
            if cursor is None:
                return shown
        if not arguments.json:
            print(f"there are more: --cursor {cursor}")
        return shown


def _show_page(page: RunPage, as_json: bool) -> None:
    for summary in page:
        if as_json:
            print(json.dumps(_fields(summary)))
            continue
        ended = "" if summary.finished_at is None else f" - {_text(summary.finished_at)}"
        owner = f"  owner {summary.owner}" if summary.owner else ""
        worker = f"  on {summary.worker}" if summary.worker else ""
        print(
            f"{summary.run_id}  {summary.status:<17} {_text(summary.created_at)}{ended}  {summary.name}{owner}{worker}"
        )


def _fields(summary: RunSummary) -> dict[str, object]:
    return {
        "run_id": summary.run_id,
        "name": summary.name,
        "version": summary.version,
        "owner": summary.owner,
        "status": summary.status,
        "attempt": summary.attempt,
        "created_at": summary.created_at.isoformat(),
        "finished_at": None if summary.finished_at is None else summary.finished_at.isoformat(),
        "worker": summary.worker,
    }


def _show_counts(counts: RunCounts, as_json: bool) -> None:
    oldest = None if counts.oldest_queued is None else counts.oldest_queued.total_seconds()
    if as_json:
        print(json.dumps({"by_status": dict(counts.by_status), "total": counts.total, "oldest_queued_seconds": oldest}))
        return
    for status, number in counts.by_status.items():
        if number:
            print(f"{number:>9}  {status}")
    print(f"{counts.total:>9}  in all")
    if oldest is not None:
        print(f"the first of the queued waits for {oldest:.1f} s")


def _text(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
