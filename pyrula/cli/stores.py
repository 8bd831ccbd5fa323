"""The store that a command is about: its arguments, and what they name."""

import argparse

from pyrula.cli.load import find_store
from pyrula.cli.numbers import count
from pyrula.workflows.store.runs import RunStore

__all__ = ["add_store_arguments", "store_of"]


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """``--store``, ``--namespace`` and ``--shards``."""
    parser.add_argument(
        "--store",
        default="valkey://localhost:6379",
        metavar="STORE",
        help="a URL like valkey://localhost:6379 (the default), or MODULE:NAME of a store or a worker",
    )
    parser.add_argument("--namespace", metavar="NAME", help="of a store that is given by its URL (pyrula)")
    parser.add_argument("--shards", type=count, metavar="N", help="of a store that is given by its URL (16)")


def store_of(arguments: argparse.Namespace) -> RunStore:
    """The store they name. Raises Problem if they name none."""
    return find_store(arguments.store, arguments.namespace, arguments.shards)
