"""Servers for a test run, names of its own for each test, and what every test is checked for.

A test that needs a server asks for `kafka` or `valkey`. Where none can be had it is skipped with the reason; with
PYRULA_REQUIRE_SERVICES=1 (as in `make test`) that is an error.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress

import pytest

from tests.services.child import ServiceUnavailable
from tests.services.find import KAFKA_VARIABLE, VALKEY_VARIABLE, open_kafka, open_valkey

REQUIRE_VARIABLE = "PYRULA_REQUIRE_SERVICES"
_SETTLE_TURNS = 10


def pytest_configure(config: pytest.Config) -> None:
    """The processes of one run (``-n``) share its servers; what can't be had is told by each test that asks for it."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", default=None):
        return
    servers = ExitStack()
    config.add_cleanup(servers.close)
    for variable, opened in ((KAFKA_VARIABLE, open_kafka()), (VALKEY_VARIABLE, open_valkey(appendonly=True))):
        with suppress(ServiceUnavailable):
            os.environ[variable] = servers.enter_context(opened)


def _serve(opened: AbstractContextManager[str]) -> Iterator[str]:
    try:
        address = opened.__enter__()
    except ServiceUnavailable as missing:
        if os.environ.get(REQUIRE_VARIABLE) == "1":
            pytest.fail(f"{missing} ({REQUIRE_VARIABLE}=1, so this is no skip)", pytrace=False)
        pytest.skip(str(missing))
    try:
        yield address
    finally:
        opened.__exit__(None, None, None)


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """Bootstrap address of the run's broker."""
    yield from _serve(open_kafka())


@pytest.fixture(scope="session")
def valkey() -> Iterator[str]:
    """URL of the run's Valkey, with its append-only file on."""
    yield from _serve(open_valkey(appendonly=True))


@pytest.fixture
def topic_prefix() -> str:
    """For topics and groups of this test alone: the servers are shared by the run, and by runs."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def namespace() -> str:
    """A store namespace of this test alone."""
    return f"n{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    """Fails a test that leaves an asyncio task behind. Every async test has it, set up first and torn down last."""
    before = asyncio.all_tasks()
    yield
    # A task that was cancelled at the test's very end gets some turns to end.
    for _ in range(_SETTLE_TURNS):
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0)
    names = sorted(f"{task.get_name()}: {task.get_coro()!r}" for task in left)
    pytest.fail("the test left tasks behind:\n" + "\n".join(names), pytrace=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("asyncio") is not None:
            item.fixturenames.insert(0, no_task_left.__name__)
