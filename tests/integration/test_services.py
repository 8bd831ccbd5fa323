"""The servers tests run on answer with real protocol, restart on their data, and die with their starter."""

from aiokafka.admin import AIOKafkaAdminClient
from redis.asyncio import Redis


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
