"""The embedded broker: what of a broker Pyrula needs works on it, and its process never outlives ours."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from pyrula.kafka.embedded import EmbeddedBroker
from pyrula.kafka.embedded.client import DevClient
from pyrula.workflows.errors import ConfigurationError, PyrulaError
from tests.services.waiting import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"three": 3}) as running:
        yield running


async def test_a_topic_has_the_partitions_it_was_made_with(broker: EmbeddedBroker) -> None:
    broker.create_topic("seven", 7)
    broker.create_topic("seven", 2)
    async with DevClient(broker.bootstrap) as client:
        assert await client.ends(["three", "seven"]) == {
            **{("three", partition): 0 for partition in range(3)},
            **{("seven", partition): 0 for partition in range(7)},
        }


async def test_an_impossible_topic_is_refused_and_the_broker_goes_on(broker: EmbeddedBroker) -> None:
    with pytest.raises(ConfigurationError, match="0 partitions"):
        broker.create_topic("none", 0)
    broker.create_topic("fine", 1)


async def test_records_of_no_key_go_round_and_all_come_back(broker: EmbeddedBroker) -> None:
    broker.create_topic("round", 2)
    async with DevClient(broker.bootstrap) as client:
        sent = [(None, b"%d" % number, [("h", b"1"), ("h", b"2")]) for number in range(5)]
        assert await client.produce("round", sent) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
        read = [record async for record in client.read("round")]
        assert [record.value for record in read] == [b"0", b"2", b"4", b"1", b"3"]
        assert read[0].headers == (("h", b"1"), ("h", b"2"))


async def test_a_group_keeps_its_offsets_and_their_metadata(broker: EmbeddedBroker) -> None:
    broker.create_topic("committed", 2)
    partition = TopicPartition("committed", 1)
    consumer = AIOKafkaConsumer(
        "committed", bootstrap_servers=broker.bootstrap, group_id="keeper", enable_auto_commit=False
    )
    await consumer.start()
    try:
        await consumer.commit({partition: OffsetAndMetadata(17, "m" * 4096)})
        kept = await consumer._coordinator.fetch_committed_offsets([partition])
        assert kept[partition].metadata == "m" * 4096
    finally:
        await consumer.stop()
    async with DevClient(broker.bootstrap) as client:
        assert await client.committed("keeper", ["committed"]) == {("committed", 1): 17}


async def test_an_idempotent_producer_works(broker: EmbeddedBroker) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        await producer.send_and_wait("three", b"x" * 900_000, partition=0)
    finally:
        await producer.stop()


def test_the_broker_ends_when_it_is_stopped() -> None:
    broker = EmbeddedBroker()
    broker.start()
    pid = broker.pid
    broker.stop()
    broker.stop()
    assert not psutil.pid_exists(pid)
    with pytest.raises(PyrulaError, match="not running"):
        _ = broker.bootstrap


def test_the_broker_ends_when_its_parent_is_killed() -> None:
    code = (
        "import os, signal\n"
        "from pyrula.kafka.embedded import EmbeddedBroker\n"
        "broker = EmbeddedBroker()\n"
        "broker.start()\n"
        "print(broker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == -signal.SIGKILL
    child = int(done.stdout)
    wait_until(lambda: not psutil.pid_exists(child), description="the broker's process is gone")


def test_a_broker_that_dies_is_told() -> None:
    broker = EmbeddedBroker()
    broker.start()
    psutil.Process(broker.pid).kill()
    with pytest.raises(PyrulaError, match="is gone"):
        broker.create_topic("late", 1)
    broker.stop()
