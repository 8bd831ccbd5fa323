"""What tests of the running worker share."""

from collections.abc import AsyncIterator

import pytest

from pyrula.workflows import ValkeyStore, WorkflowClient
from tests.integration.rig import Rig


@pytest.fixture
def rig(kafka: str, valkey: str, topic_prefix: str, namespace: str) -> Rig:
    """Names of this test alone on the run's servers."""
    return Rig(kafka, valkey, topic_prefix, namespace)


@pytest.fixture
async def store(rig: Rig) -> AsyncIterator[ValkeyStore]:
    """Another process's: what the test does, not the worker."""
    store = ValkeyStore(rig.valkey, namespace=rig.namespace)
    yield store
    await store.close()


@pytest.fixture
def hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that wait are handed over although the server of the tests promises no disk: what is tested with this
    doesn't rest on it."""
    monkeypatch.setattr(ValkeyStore, "hands_over", True)


@pytest.fixture
def client(store: ValkeyStore) -> WorkflowClient:
    """One that asks often."""
    return WorkflowClient(store, poll_interval=0.1)
