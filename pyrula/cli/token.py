"""`pyrula token`: makes a bearer token for the HTTP API, shows it this once, and keeps nothing of it but its hash."""

import argparse
import json
import os
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyrula.cli.extra import needing_http
from pyrula.cli.problem import Problem
from pyrula.cli.runs import ago_or_time

__all__ = ["add_command"]


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "token",
        help="make a token for the HTTP API",
        description=(
            "Make a bearer token and print it, this once, with the table for the file that `pyrula serve --tokens`"
            " reads. With --file the table is added to that file."
        ),
    )
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--owner", help="whose runs it may see and touch")
    whose.add_argument("--all-owners", action="store_true", help="it may see and touch all runs")
    parser.add_argument(
        "--role",
        choices=["read", "operate", "admin"],
        default="operate",
        help="read: look and query; operate (the default): start, talk to and stop runs too; admin: schedules and"
        " backfills too",
    )
    parser.add_argument("--name", default="", help="what you call it")
    parser.add_argument("--expires", type=ago_or_time, metavar="WHEN", help="in 30d, say, or at an ISO time")
    parser.add_argument("--file", type=Path, metavar="TOML", help="add its table to this file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    with needing_http():
        from pyrula.http import hash_of, new_token
    if arguments.owner == "":
        raise Problem("--owner needs a text; --all-owners makes a token for all of them")
    token = new_token()
    table = _table(arguments, hash_of(token))
    if arguments.file is None:
        print(f"{token}\n\n{table}", end="")
        return 0
    try:
        if arguments.file.exists():
            tomllib.loads(arguments.file.read_text(encoding="utf-8"))
        _append(arguments.file, table)
    except OSError as error:
        raise Problem(f"--file {arguments.file}: {error.strerror}; no token was made") from error
    except ValueError as error:
        raise Problem(f"--file {arguments.file} is no TOML, so nothing is added to it: {error}") from error
    # not before it is in the file, or one would hand out a token that nobody knows
    print(token)
    return 0


def _table(arguments: argparse.Namespace, digest: str) -> str:
    expires = arguments.expires
    if isinstance(expires, timedelta):
        expires = datetime.now(UTC) + expires
    lines = ["[[tokens]]"]
    if arguments.name:
        lines.append(f"name = {_text(arguments.name)}")
    lines.append(f'hash = "{digest}"')
    lines.append("all_owners = true" if arguments.all_owners else f"owner = {_text(arguments.owner)}")
    lines.append(f'role = "{arguments.role}"')
    if expires is not None:
        lines.append(f"expires = {expires.isoformat(timespec='seconds')}")
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """As TOML has it: JSON's escapes are TOML's, but for the character that JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _append(path: Path, table: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"\n{table}" if file.tell() else table)
