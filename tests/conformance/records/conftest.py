"""Each test gets a registered source."""

import pytest

from pyrula.workflows.store.port import SourceStore
from tests.conformance.records.rig import Rig


@pytest.fixture
async def rig(store: SourceStore, other: SourceStore) -> Rig:
    rig = Rig(store, other)
    await rig.claim()
    return rig
