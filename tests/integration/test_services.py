"""The servers tests run on answer with real protocol, restart on their data, and die with their starter."""

import textwrap
from pathlib import Path

import psutil
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import KafkaException
from redis.asyncio import Redis

from tests.services.process import WorkerProcess
from tests.services.topics import COMPACTED, Committed, Message, Topics
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until


async def test_kafka_is_a_broker_that_creates_nothing_by_itself(kafka: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        cluster = await admin.describe_cluster()
    finally:
        await admin.close()
    assert len(cluster["brokers"]) == 1


async def test_valkey_is_new_enough(valkey: str) -> None:
    client = Redis.from_url(valkey.replace("valkey://", "redis://"))
    try:
        info = await client.info("server")
    finally:
        await client.aclose()
    assert tuple(int(part) for part in info["valkey_version"].split(".")[:2]) >= (7, 2)


def test_what_was_produced_is_read_back_as_it_was(kafka: str, topic_prefix: str) -> None:
    topics, name = Topics(kafka), f"{topic_prefix}.records"
    topics.create(name, partitions=2)
    sent = [
        Message(b"a", b"1", (("h", b"x"), ("h", b"y"), ("n", None)), partition=0, timestamp_ms=1_700_000_000_000),
        Message(None, b"2", partition=1),
        Message(b"b", None, partition=1),
        Message(b"", b"", partition=1),
    ]
    topics.produce(name, sent)
    stored = topics.read(name)
    assert [(m.partition, m.offset) for m in stored] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert [(m.key, m.value) for m in stored] == [(b"a", b"1"), (None, b"2"), (b"b", None), (b"", b"")]
    assert stored[0].headers == (("h", b"x"), ("h", b"y"), ("n", None))
    assert stored[0].timestamp_ms == 1_700_000_000_000


def test_an_aborted_transaction_is_a_gap(kafka: str, topic_prefix: str) -> None:
    topics, name = Topics(kafka), f"{topic_prefix}.transactions"
    topics.create(name)
    topics.produce_transaction(name, [Message(None, b"gone")] * 3, commit=False)
    topics.produce_transaction(name, [Message(None, b"kept")], commit=True)
    assert [(m.offset, m.value) for m in topics.read(name)] == [(4, b"kept")]
    assert len(topics.read(name, isolation="read_uncommitted")) == 4
    assert topics.ends(name) == {0: 6}


def test_a_test_can_see_compaction(kafka: str, topic_prefix: str) -> None:
    topics, name = Topics(kafka), f"{topic_prefix}.compacted"
    topics.create(name, config=COMPACTED)
    topics.produce(name, [Message(b"k%d" % (n % 3), b"%d" % n) for n in range(300)])

    assert [m.value for m in topics.compact(name)] == [b"297", b"298", b"299"]


def test_records_age_out(kafka: str, topic_prefix: str) -> None:
    topics, name = Topics(kafka), f"{topic_prefix}.aged"
    topics.create(name)
    topics.produce(name, [Message(None, b"x")] * 10)
    topics.delete_records(name, {0: 7})
    assert topics.starts(name) == {0: 7}
    assert [m.offset for m in topics.read(name)] == [7, 8, 9]


def test_offsets_and_their_metadata_as_an_admin_reads_them(kafka: str, topic_prefix: str) -> None:
    topics, name, group = Topics(kafka), f"{topic_prefix}.committed", f"{topic_prefix}.group"
    topics.create(name, partitions=2)
    assert topics.committed(group, name) == {}
    topics.commit(group, name, {1: Committed(5, "a note")})
    assert topics.committed(group, name) == {1: Committed(5, "a note")}
    assert topics.members(group) == 0


def test_a_deleted_topic_can_be_made_again(kafka: str, topic_prefix: str) -> None:
    topics, name = Topics(kafka), f"{topic_prefix}.again"
    topics.create(name)
    topics.produce(name, [Message(None, b"old")])
    topics.delete(name)
    with pytest.raises(KafkaException):
        topics.ends(name)
    topics.create(name)
    assert topics.read(name) == []


async def test_a_killed_valkey_keeps_what_its_file_had() -> None:
    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        for path in (server.url.replace("valkey://", "redis://"), f"unix://{server.socket_path}"):
            client = Redis.from_url(path)
            await client.set("kept", path)
            await client.aclose()
            server.kill()
            server.start()
            client = Redis.from_url(path)
            assert await client.get("kept") == path.encode()
            await client.aclose()


def test_a_server_dies_with_a_starter_that_was_killed(tmp_path: Path) -> None:
    program = """
        from tests.services.valkey import ValkeyServer
        server = ValkeyServer()
        server.start()
        print("server", server.pid, server.socket_path)
        input()
    """
    with WorkerProcess(textwrap.dedent(program).replace("input()", "import signal; signal.pause()")) as starter:
        said = starter.wait_for_line(r"server (\d+) (\S+)")
        server, folder = int(said.group(1)), Path(said.group(2)).parent
        assert psutil.pid_exists(server)
        assert folder.is_dir()
        starter.kill()
        wait_until(lambda: not psutil.pid_exists(server), description="the server to be gone")
        wait_until(lambda: not folder.exists(), description="its folder to be gone")
