"""What GroupClient does with aiokafka's private names, and that they still are what it takes them for."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import (
    IllegalGenerationError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    RequestTimedOutError,
    UnknownMemberIdError,
)
from aiokafka.producer.message_accumulator import MessageAccumulator

from pyrula.kafka.client import BrokerError, Committed, GroupClient, Membership, MembershipLost, MetadataTooLarge
from pyrula.kafka.options import KafkaOptions

TP = TopicPartition("orders", 0)
OURS = Membership(7, "member-1")


class Broker:
    """Answers what a coordinator sends: with a response, or with an error code for every partition of a commit."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.error_code = 0
        self.failure: Exception | None = None

    async def answer(self, request: Any) -> Any:
        self.sent.append(request)
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(topics=[("orders", [(0, self.error_code)])], error_code=self.error_code)


@pytest.fixture
async def coordinator() -> AsyncIterator[GroupCoordinator]:
    """A real coordinator, joined to its group, that has no broker."""
    coordinator = GroupCoordinator(SimpleNamespace(cluster=ClusterMetadata()), SubscriptionState(), group_id="billing")
    coordinator.generation, coordinator.member_id = OURS
    coordinator.coordinator_id = 1
    yield coordinator
    coordinator.generation = -1
    await coordinator.close()


@pytest.fixture
def broker(coordinator: GroupCoordinator) -> Broker:
    broker = Broker()
    coordinator._send_req = broker.answer
    return broker


@pytest.fixture
async def client(coordinator: GroupCoordinator) -> AsyncIterator[GroupClient]:
    client = GroupClient(KafkaOptions(), "billing", ["orders"], "read_committed")
    client._consumer._coordinator = coordinator
    yield client
    client._consumer._coordinator = None
    await client.stop()


def test_names_that_the_client_relies_on() -> None:
    assert list(inspect.signature(GroupCoordinator._do_commit_offsets).parameters) == ["self", "assignment", "offsets"]
    assert list(inspect.signature(AIOKafkaClient.send).parameters) == ["self", "node_id", "request", "group"]
    assert list(inspect.signature(GroupCoordinator.fetch_committed_offsets).parameters) == ["self", "partitions"]
    # Looked up at each call, so that a replacement on the object is used.
    assert "await self._do_heartbeat()" in inspect.getsource(GroupCoordinator._heartbeat_routine)
    assert "await self._coordination_task" in inspect.getsource(GroupCoordinator.close)
    assert "self._max_partition_fetch_bytes)" in inspect.getsource(Fetcher._get_actions_per_node)
    assert list(inspect.signature(AIOKafkaClient.set_topics).parameters) == ["self", "topics"]
    assert list(inspect.signature(SubscriptionState.wait_for_assignment).parameters) == ["self"]
    assert list(inspect.signature(MessageAccumulator.fail_all).parameters) == ["self", "exception"]
    # Whoever sends LeaveGroup must take the generation away, or it would be sent a second time.
    assert "if self.generation > 0" in inspect.getsource(GroupCoordinator._maybe_leave_group)


async def test_the_membership_is_the_coordinators(client: GroupClient, coordinator: GroupCoordinator) -> None:
    assert client.membership == OURS
    coordinator.reset_generation()
    assert client.membership == Membership(-1, "")


async def test_a_task_of_the_clients_that_was_cancelled_cancels_nobody_who_polls(
    client: GroupClient, coordinator: GroupCoordinator
) -> None:
    ended = asyncio.create_task(asyncio.sleep(60))
    ended.cancel()
    await asyncio.wait([ended])
    coordinator._coordination_task = ended
    fetching = asyncio.get_running_loop().create_future()
    client._consumer._fetcher = SimpleNamespace(_fetch_task=fetching)
    with pytest.raises(BrokerError, match="its coordination has ended"):
        await client.poll(0, 1)
    client._consumer._fetcher = None


async def test_a_commit_carries_generation_and_metadata(client: GroupClient, broker: Broker) -> None:
    await client.commit({TP: Committed(12, "text")}, OURS)
    (request,) = broker.sent
    assert (request._consumer_group_generation_id, request._consumer_id) == OURS
    assert request._topics == [("orders", [(0, 12, "text")])]


async def test_a_commit_takes_its_generation_before_anything_can_come_between(
    client: GroupClient, coordinator: GroupCoordinator, broker: Broker
) -> None:
    async def expelled_meanwhile(request: Any) -> Any:
        coordinator.reset_generation()
        return await broker.answer(request)

    coordinator._send_req = expelled_meanwhile
    await client.commit({TP: Committed(12, "")}, OURS)
    assert broker.sent[0]._consumer_group_generation_id == 7


@pytest.mark.parametrize("now", [Membership(8, "member-1"), Membership(7, "member-2"), Membership(-1, "")])
async def test_nothing_is_sent_for_a_membership_that_is_over(
    client: GroupClient, coordinator: GroupCoordinator, broker: Broker, now: Membership
) -> None:
    coordinator.generation, coordinator.member_id = now
    with pytest.raises(MembershipLost):
        await client.commit({TP: Committed(12, "")}, OURS)
    assert broker.sent == []


async def test_no_membership_is_no_licence(client: GroupClient, coordinator: GroupCoordinator, broker: Broker) -> None:
    """A commit without a generation is one that the broker doesn't refuse."""
    coordinator.reset_generation()
    with pytest.raises(MembershipLost):
        await client.commit({TP: Committed(12, "")}, client.membership)
    assert broker.sent == []


@pytest.mark.parametrize("error", [UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError])
async def test_a_refused_commit_is_a_lost_membership(client: GroupClient, broker: Broker, error: Any) -> None:
    broker.error_code = error.errno
    with pytest.raises(MembershipLost):
        await client.commit({TP: Committed(12, "")}, OURS)
    assert client.standing.until == float("inf")


async def test_metadata_that_is_too_large_lowers_the_limit(client: GroupClient, broker: Broker) -> None:
    broker.error_code = OffsetMetadataTooLargeError.errno
    with pytest.raises(MetadataTooLarge):
        await client.commit({TP: Committed(12, "x" * 1000)}, OURS)
    assert client.metadata_limit == 500


@pytest.mark.parametrize("failure", [RequestTimedOutError(), OSError("reset")])
async def test_other_failures_of_a_commit_may_pass(client: GroupClient, broker: Broker, failure: Exception) -> None:
    broker.failure = failure
    with pytest.raises(BrokerError):
        await client.commit({TP: Committed(12, "")}, OURS)


async def test_heartbeats_and_commits_that_were_answered_prove_the_standing(
    client: GroupClient, coordinator: GroupCoordinator, broker: Broker
) -> None:
    client._watch_heartbeats()
    assert client.standing.until == float("inf")
    assert await coordinator._do_heartbeat()
    after_heartbeat = client.standing.until
    assert after_heartbeat < float("inf")
    await client.commit({TP: Committed(12, "")}, OURS)
    after_commit = client.standing.until
    assert after_commit > after_heartbeat
    broker.error_code = UnknownMemberIdError.errno
    assert not await coordinator._do_heartbeat()
    assert client.standing.until == after_commit


async def test_leaving_is_told_over_a_connection_that_no_join_blocks(
    client: GroupClient, coordinator: GroupCoordinator
) -> None:
    told: list[tuple[int, Any, ConnectionGroup]] = []

    async def send(node: int, request: Any, *, group: ConnectionGroup) -> None:
        told.append((node, request, group))

    client._consumer._client.send = send
    client._consumer.subscribe(topics=["orders"])
    await client._leave(coordinator)
    assert coordinator.generation == -1
    coordinator.generation, coordinator.member_id = OURS
    client._consumer._subscription.assign_from_subscribed([TP])
    await client._leave(coordinator)
    assert [(node, group) for node, _, group in told] == [
        (1, ConnectionGroup.DEFAULT),
        (1, ConnectionGroup.COORDINATION),
    ]
    assert {(request._group, request._member_id) for _, request, _ in told} == {("billing", "member-1")}


async def test_the_position_is_known_without_waiting(client: GroupClient) -> None:
    assert client.position(TP) is None
    client._consumer.subscribe(topics=["orders"])
    assert client.position(TP) is None
    client._consumer._subscription.assign_from_subscribed([TP])
    assert client.position(TP) is None
    client._consumer._subscription.seek(TP, 40)
    assert client.position(TP) == 40
    assert client.position(TopicPartition("orders", 1)) is None
    client.pause([TP, TopicPartition("orders", 1)])
    assert client._consumer.paused() == {TP}
    client.resume(TP)
    assert client._consumer.paused() == set()
