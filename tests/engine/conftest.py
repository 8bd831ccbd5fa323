"""A prepared event loop for tests that are coroutines themselves."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pyrula.workflows.execution import install, uninstall


@pytest.fixture
async def prepared() -> AsyncIterator[None]:
    """The test's own loop, prepared for workflows."""
    loop = asyncio.get_running_loop()
    install(loop)
    yield
    uninstall(loop)
