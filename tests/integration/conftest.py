"""What tests of the running worker share."""

import pytest

from tests.integration.rig import Rig


@pytest.fixture
def rig(kafka: str, valkey: str, topic_prefix: str, namespace: str) -> Rig:
    """Names of this test alone on the run's servers."""
    return Rig(kafka, valkey, topic_prefix, namespace)
