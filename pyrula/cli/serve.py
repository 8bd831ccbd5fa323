"""`pyrula serve`: the HTTP API of a store, and beside it, in the same process, the worker that was named.

The worker and the API end together: at a signal both drain; when one fails, the other is stopped. A store that isn't as
it must be ends the start; one that doesn't answer is told of, and waited for.
"""

import argparse
import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyrula.cli.damper import Damper
from pyrula.cli.extra import needing_http
from pyrula.cli.load import Worker, find_store, find_worker, import_named
from pyrula.cli.numbers import count, port
from pyrula.cli.problem import Problem
from pyrula.workflows import MemoryStore, ValkeyStore, WorkflowClient, WorkflowWorker
from pyrula.workflows.errors import ConfigurationError, PyrulaError, StoreUnavailable
from pyrula.workflows.signals import process_signals

if TYPE_CHECKING:
    from pyrula.http import HttpApp, HttpServer

__all__ = ["add_command"]

log = logging.getLogger("pyrula.cli")

TOKENS_VARIABLE = "PYRULA_TOKENS"
_DRAIN_SECONDS = 10.0
_STORE_SECONDS = 3.0


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "serve",
        help="serve the HTTP API",
        description=(
            "Serve the HTTP API until SIGTERM or Ctrl-C. TARGET is a worker, MODULE:WORKER, which runs in the same"
            " process, or a store's URL. Without tokens the API listens on this machine's own address only."
        ),
    )
    parser.add_argument("target", metavar="TARGET", help="such as shop.orders:worker, or valkey://localhost:6379")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=port, default=8321, help="8321 is the default; 0: any that is free")
    parser.add_argument(
        "--tokens", metavar="TOML", help=f"the file with the tokens, see `pyrula token` (${TOKENS_VARIABLE})"
    )
    parser.add_argument("--allow-anonymous", action="store_true", help="whoever reaches it may do everything")
    parser.add_argument(
        "--allowed-host", action="append", metavar="NAME", help="a name in the Host header; may be given several times"
    )
    parser.add_argument("--no-worker", action="store_true", help="serve the worker's store, but don't run the worker")
    parser.add_argument(
        "--import", dest="modules", action="append", default=[], metavar="MODULE", help="with workflows"
    )
    parser.add_argument("--namespace", metavar="NAME", help="of a store that is given by its URL (pyrula)")
    parser.add_argument("--shards", type=count, metavar="N", help="of a store that is given by its URL (16)")
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS: the certificate, with its chain")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key")
    parser.add_argument(
        "--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="default: INFO"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    with needing_http():
        from pyrula.http import HttpServer, Tokens, create_app
    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    if arguments.log_level == "INFO":
        logging.getLogger("aiokafka").setLevel("WARNING")
        logging.getLogger("uvicorn").setLevel("WARNING")
    for handler in logging.getLogger().handlers:
        handler.addFilter(Damper())
    _check_certificate(arguments)
    for module in arguments.modules:
        import_named(module)
    worker = None if "://" in arguments.target else find_worker(arguments.target)
    tokens = arguments.tokens or os.environ.get(TOKENS_VARIABLE)
    try:
        client = _client(arguments, worker)
        app = create_app(
            client,
            tokens=None if tokens is None else Tokens.load(tokens),
            allow_anonymous=arguments.allow_anonymous,
            allowed_hosts=arguments.allowed_host,
        )
        server = HttpServer(
            app,
            host=arguments.host,
            port=arguments.port,
            ssl_certfile=arguments.tls_cert,
            ssl_keyfile=arguments.tls_key,
        )
    except (ConfigurationError, OSError) as error:
        raise Problem(str(error)) from error
    try:
        return asyncio.run(_serve(app, server, client, None if arguments.no_worker else worker))
    except PyrulaError as error:
        log.error("%s", error)
        return 1
    except KeyboardInterrupt:
        return 130


def _check_certificate(arguments: argparse.Namespace) -> None:
    if arguments.tls_key is not None and arguments.tls_cert is None:
        raise Problem("--tls-key is the key of a certificate: give it by --tls-cert")
    for option, path in (("--tls-cert", arguments.tls_cert), ("--tls-key", arguments.tls_key)):
        if path is None:
            continue
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise Problem(f"{option} {path}: {error.strerror}") from error


def _client(arguments: argparse.Namespace, worker: Worker | None) -> WorkflowClient:
    if worker is None:
        return WorkflowClient(find_store(arguments.target, arguments.namespace, arguments.shards, option=""))
    if isinstance(worker, WorkflowWorker):
        return worker.client
    if not isinstance(worker.store, (MemoryStore, ValkeyStore)):
        raise Problem(f"{arguments.target}: its store, {worker.store!r}, keeps no submitted runs")
    return WorkflowClient(worker.store)


@dataclass
class _Beside:
    """The worker in this process, as health sees it."""

    task: "asyncio.Task[None]"
    worker: Worker

    @property
    def ended(self) -> bool:
        return self.task.done()

    def state(self) -> str:
        return self.worker.health().state


async def _open(client: WorkflowClient) -> None:
    """ConfigurationError for what no waiting mends."""
    try:
        async with asyncio.timeout(_STORE_SECONDS):
            await client.store.open()
    except ConfigurationError:
        await client.close()
        raise
    except (StoreUnavailable, TimeoutError):
        log.warning("%r doesn't answer yet: until it does, what needs it is answered with 503", client.store)


async def _serve(app: "HttpApp", server: "HttpServer", client: WorkflowClient, worker: Worker | None) -> int:
    loop = asyncio.get_running_loop()
    if worker is None:
        # a worker says so itself
        await _open(client)
    serving = loop.create_task(server.run_until_stopped(), name="http")
    tasks: list[asyncio.Task[None]] = [serving]
    if worker is not None:
        working = loop.create_task(worker.run(), name="worker")
        tasks.append(working)
        app.watched = _Beside(working, worker)
        app.worker = worker
    forget = process_signals.watch(loop, server.stop, _DRAIN_SECONDS)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.stop()
        if worker is not None:
            worker.stop()
        await asyncio.wait(tasks)
        forget()
        if worker is None:
            # a worker closes its store itself
            await client.close()
    for task in tasks:
        task.result()
    return 0
