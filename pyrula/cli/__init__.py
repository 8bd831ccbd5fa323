"""The `pyrula` command. One module a subcommand; each adds its arguments and returns an exit status.

0: done as asked. 1: it ran, and something did not come out right. 2: it can't be done as asked. 130: Ctrl-C.
"""

import argparse
import io
import sys
from collections.abc import Sequence

from pyrula import __version__
from pyrula.cli import backfill, explain, history, lanes, redrive, runs, serve, token, topics, worker
from pyrula.cli.dev import command as dev
from pyrula.cli.problem import Problem

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own by default) and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="pyrula", description="Durable stream processing on Kafka topics, in plain async Python."
    )
    parser.add_argument("--version", action="version", version=f"pyrula {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    dev.add_command(commands)
    worker.add_command(commands)
    topics.add_command(commands)
    lanes.add_command(commands)
    redrive.add_command(commands)
    backfill.add_command(commands)
    history.add_command(commands)
    explain.add_command(commands)
    runs.add_command(commands)
    serve.add_command(commands)
    token.add_command(commands)
    arguments = parser.parse_args(argv)
    # Keys and errors may hold what the terminal's encoding can't say; better a mark than no output.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status: int = arguments.run(arguments)
    except Problem as problem:
        print(f"pyrula: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status
