"""A Valkey Cluster of local servers: masters that share the slots, and a replica of each if wanted.

Nodes are told of each other by commands; nothing but the server's binary is needed. A slot can be moved step by step,
so that a test may look at what happens in between.
"""

from collections.abc import Mapping
from typing import Any

import redis

from tests.services.child import StartFailed, free_port
from tests.services.server import Service
from tests.services.valkey import ValkeyServer
from tests.services.waiting import wait_until

SLOTS = 16384


class ClusterNode:
    """One server of a cluster."""

    def __init__(self, *, appendonly: bool, node_timeout: float, settings: Mapping[str, str]) -> None:
        self.bus_port = free_port()
        self.server = ValkeyServer(
            appendonly=appendonly,
            settings={
                "cluster-enabled": "yes",
                "cluster-port": str(self.bus_port),
                "cluster-node-timeout": str(round(node_timeout * 1000)),
                # a failover needs no more than this data
                "cluster-replica-validity-factor": "0",
                **settings,
            },
        )
        self.id = ""

    def call(self, *command: str | int | bytes) -> Any:
        """A command to this node alone."""
        client = redis.Redis(host="127.0.0.1", port=self.server.port, protocol=2, socket_timeout=30)
        try:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]
        finally:
            client.close()

    def state(self) -> str:
        lines = self.call("CLUSTER", "INFO").decode().split()
        return str(dict(line.split(":", 1) for line in lines)["cluster_state"])


class ValkeyCluster(Service):
    """``with ValkeyCluster(replicas=1) as cluster: ... cluster.url``; the slots are shared out evenly.

    A node that is silent for ``node_timeout`` seconds counts as dead, which on a busy machine one soon is that is not.
    """

    def __init__(
        self,
        *,
        masters: int = 3,
        replicas: int = 0,
        appendonly: bool = False,
        node_timeout: float = 30,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        def node() -> ClusterNode:
            return ClusterNode(appendonly=appendonly, node_timeout=node_timeout, settings=settings or {})

        self.masters = [node() for _ in range(masters)]
        self.replicas = [node() for _ in range(masters * replicas)]

    @property
    def nodes(self) -> list[ClusterNode]:
        return [*self.masters, *self.replicas]

    @property
    def url(self) -> str:
        return self.masters[0].server.url

    def start(self) -> None:
        for node in self.nodes:
            node.server.start()
        for epoch, node in enumerate(self.nodes, start=1):
            node.id = node.call("CLUSTER", "MYID").decode()
            node.call("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        share = SLOTS // len(self.masters)
        for number, node in enumerate(self.masters):
            last = SLOTS - 1 if node is self.masters[-1] else (number + 1) * share - 1
            node.call("CLUSTER", "ADDSLOTSRANGE", number * share, last)
        first = self.nodes[0]
        for node in self.nodes[1:]:
            first.call("CLUSTER", "MEET", "127.0.0.1", node.server.port, node.bus_port)
        wait_until(
            lambda: all(len(self._seen_by(node)) == len(self.nodes) for node in self.nodes),
            description="all nodes of the cluster to know each other",
        )
        for number, node in enumerate(self.replicas):
            node.call("CLUSTER", "REPLICATE", self.masters[number % len(self.masters)].id)
        self.wait_healthy()

    def _seen_by(self, node: ClusterNode) -> set[str]:
        lines = node.call("CLUSTER", "NODES").decode().splitlines()
        return {line.split()[0] for line in lines if "handshake" not in line}

    def wait_healthy(self) -> None:
        """Until every running node says that the cluster is fine, and every replica has its data."""

        def healthy() -> bool:
            running = [node for node in self.nodes if node.server.running]
            if not all(node.state() == "ok" for node in running):
                return False
            copies = [node.call("INFO", "replication") for node in running]
            return all(copy["role"] == "master" or copy["master_link_status"] == "up" for copy in copies)

        wait_until(healthy, description="the cluster to be healthy", interval=0.1)

    def primaries(self) -> list[ClusterNode]:
        """The running nodes that are masters now."""
        running = [node for node in self.nodes if node.server.running]
        return [node for node in running if node.call("INFO", "replication")["role"] == "master"]

    def owner_of(self, slot: int) -> ClusterNode:
        """The master that has the slot now."""
        ports = {node.server.port: node for node in self.nodes}
        for first, last, (_, port, *_), *_ in self._any().call("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return ports[port]
        raise StartFailed(f"nobody has slot {slot}")

    def _any(self) -> ClusterNode:
        return next(node for node in self.nodes if node.server.running)

    def begin_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: ClusterNode, target: ClusterNode, count: int) -> int:
        """Moves up to so many keys; how many there were."""
        keys = source.call("CLUSTER", "GETKEYSINSLOT", slot, count)
        if keys:
            source.call("MIGRATE", "127.0.0.1", target.server.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        for node in (target, source, *self.primaries()):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def stop(self) -> None:
        for node in self.nodes:
            node.server.stop()
