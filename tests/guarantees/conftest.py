"""What the guarantees' tests share."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.guarantees.members import Members


@pytest.fixture
def new_group(kafka: str, valkey: str, topic_prefix: str, namespace: str, tmp_path: Path) -> Callable[..., Members]:
    """``with new_group(partitions=4) as group:``"""
    return partial(Members, kafka, valkey, f"{topic_prefix}-in", namespace, tmp_path / "steps.txt")
