"""Why group_instance_id is refused: what the Kafka client can't say. A client that can shall be looked at again."""

from typing import Any

import aiokafka.errors
import pytest
from aiokafka.errors import UnknownError, for_code
from aiokafka.protocol import commit, group

FENCED_INSTANCE_ID = 82


def versions(module: Any, name: str) -> dict[int, tuple[str, ...]]:
    """The fields of a request by its version."""
    found = [getattr(module, each) for each in dir(module) if each.startswith(f"{name}_v")]
    return {one.API_VERSION: one.SCHEMA.names for one in found}


@pytest.mark.parametrize(
    ("module", "name"),
    [(group, "HeartbeatRequest"), (commit, "OffsetCommitRequest"), (group, "LeaveGroupRequest")],
)
def test_the_instance_is_named_in_no_version_of(module: Any, name: str) -> None:
    found = versions(module, name)
    assert found
    assert not any("group_instance_id" in fields for fields in found.values())


@pytest.mark.parametrize("name", ["JoinGroupRequest", "SyncGroupRequest"])
def test_the_instance_is_named_when_it_joins(name: str) -> None:
    assert any("group_instance_id" in fields for fields in versions(group, name).values())


def test_the_client_has_no_error_for_a_fenced_instance() -> None:
    assert for_code(FENCED_INSTANCE_ID) is UnknownError
    assert not hasattr(aiokafka.errors, "FencedInstanceIdError")
