"""What a test asks the server itself, beside the store."""

from typing import Any

import redis.asyncio
import redis.asyncio.cluster


class Server:
    """Commands straight to the server; ``call("HGETALL", key)``."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        self._client = redis.asyncio.from_url(url.replace("valkey://", "redis://", 1), protocol=2)

    async def call(self, *command: Any) -> Any:
        return await self._client.execute_command(*command)

    async def keys(self) -> set[bytes]:
        return {key async for key in self._client.scan_iter(match=b"{%b*" % self.namespace.encode(), count=1000)}

    async def keys_without_ttl(self) -> set[bytes]:
        return {key for key in await self.keys() if await self.call("TTL", key) == -1}

    async def clear(self) -> None:
        for key in await self.keys():
            await self.call("UNLINK", key)

    async def calls(self, command: str) -> int:
        """How often the server has run a command since its start (scripts' own commands too)."""
        stats = await self._client.info("commandstats")
        return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))

    async def hash(self, key: bytes) -> dict[bytes, bytes]:
        flat = await self.call("HGETALL", key)
        return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))

    async def close(self) -> None:
        await self._client.aclose()


class ClusterServer(Server):
    """The same for a cluster: a command goes to the node of its key."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        plain = url.replace("valkey://", "redis://", 1)
        self._client = redis.asyncio.cluster.RedisCluster.from_url(plain, protocol=2)

    async def calls(self, command: str) -> int:
        found = await self._client.info("commandstats", target_nodes=redis.asyncio.cluster.RedisCluster.PRIMARIES)
        nodes = (
            found.values()
            if all(isinstance(each, dict) and "calls" not in each for each in found.values())
            else [found]
        )
        return sum(int(stats.get(f"cmdstat_{command}", {}).get("calls", 0)) for stats in nodes)
