"""Stores of batches: each test gets one, the same one as another process would hold it, and a clock for both."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.batches.rig import Rig, memory_rig, valkey_rig
from tests.conformance.runs.conftest import cluster_server, server
from tests.conformance.server import Server

__all__ = ["closed_rig", "cluster_server", "on_valkey", "rig", "server"]


@pytest.fixture(params=["memory", "valkey", "cluster"])
def closed_rig(request: pytest.FixtureRequest) -> Rig:
    if request.param == "memory":
        return memory_rig()
    return valkey_rig(request.getfixturevalue("server" if request.param == "valkey" else "cluster_server"))


@pytest.fixture
async def rig(closed_rig: Rig) -> AsyncIterator[Rig]:
    await closed_rig.open()
    yield closed_rig
    await closed_rig.close()


@pytest.fixture
async def on_valkey(server: Server) -> AsyncIterator[Rig]:
    rig = valkey_rig(server)
    await rig.open()
    yield rig
    await rig.close()
