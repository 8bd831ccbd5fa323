"""ValkeyStore: sources' journals on one Valkey or Redis server. What is about submitted runs is in the run_ modules.

Puts requests together and takes replies apart. What a script does is in ``lua/``, when a request is sent again in
session.py and appender.py, what an error means in link.py.
"""

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Literal, get_args

from pyrula.workflows.clock import to_seconds
from pyrula.workflows.errors import ConfigurationError, LeaseLost, StaleToken, StoreError, StoreUnavailable
from pyrula.workflows.naming import names_checked
from pyrula.workflows.store.lanes import Persistence
from pyrula.workflows.store.messages import Lease
from pyrula.workflows.store.port import Batch, Claim, Row, Token
from pyrula.workflows.store.runs import Beat
from pyrula.workflows.store.valkey import keys, wire
from pyrula.workflows.store.valkey.address import Address
from pyrula.workflows.store.valkey.appender import Appender, lost
from pyrula.workflows.store.valkey.checks import SYNCED, check_server, check_settling, parse_info, persistence_of
from pyrula.workflows.store.valkey.link import Meaning, meaning
from pyrula.workflows.store.valkey.record_redrive import ValkeyRedrive
from pyrula.workflows.store.valkey.route import Route
from pyrula.workflows.store.valkey.run_backfills import ValkeyBackfills
from pyrula.workflows.store.valkey.run_batches import ValkeyBatches
from pyrula.workflows.store.valkey.run_claims import Claimer
from pyrula.workflows.store.valkey.run_link import RunLink
from pyrula.workflows.store.valkey.run_listing import ValkeyListing
from pyrula.workflows.store.valkey.run_outlook import ValkeyOutlook
from pyrula.workflows.store.valkey.run_schedules import ValkeySchedules
from pyrula.workflows.store.valkey.scripts import script
from pyrula.workflows.store.valkey.session import Session
from pyrula.workflows.store.valkey.topology import Topology

logger = logging.getLogger("pyrula.store")

Durability = Literal["memory", "everysec", "fsync"]

FORMAT = 1
TTL_SECONDS = 30 * 24 * 3600
_TTL = b"%d" % TTL_SECONDS
_PAGE_ROWS = b"1000"
_PAGE_BUCKETS = 8


@names_checked
class ValkeyStore(ValkeyRedrive, ValkeySchedules, ValkeyListing, ValkeyBackfills, ValkeyBatches, ValkeyOutlook):
    """A SourceStore and RunStore on Valkey >= 7.2 or Redis >= 7.2.

    A request is given ``timeout`` seconds, and sent again for ``retry_for`` seconds before StoreUnavailable. With TLS,
    options such as ``ssl_ca_certs`` stand in the URL's query. The URL may be that of any node of a cluster.

    ``durability``: "memory" takes the server's word that it has a write; "fsync" wants it on disk first, which needs
    ``appendonly yes`` and ``appendfsync always``: ConfigurationError otherwise. "everysec" is as "memory", but for
    records that are handed over to the store, whose offsets wait for the disk. What each may lose: docs/store.md.

    >>> ValkeyStore("valkeys://app:secret@store.internal/2", namespace="orders")
    ValkeyStore('valkeys://store.internal:6379/2', namespace='orders')
    """

    durable = True

    def __init__(
        self,
        url: str = "valkey://localhost:6379",
        *,
        namespace: str = "pyrula",
        shards: int = 16,
        timeout: float | timedelta = 5.0,
        retry_for: float | timedelta = 30.0,
        durability: Durability = "memory",
    ) -> None:
        self._address = Address(url)
        self.namespace = keys.check_namespace(namespace)
        if type(shards) is not int or not 1 <= shards <= 16384:
            raise ConfigurationError(f"shards must be a number from 1 to 16384, not {shards!r}")
        self.shards = shards
        self.timeout = to_seconds(timeout, "ValkeyStore(timeout=)", zero=False)
        self.retry_for = to_seconds(retry_for, "ValkeyStore(retry_for=)")
        self.instance_id = ""
        self._process = secrets.token_hex(8).encode()
        if durability not in get_args(Durability):
            raise ConfigurationError(f'durability must be "memory", "everysec" or "fsync", not {durability!r:.100}')
        self.durability = durability
        self._topology = Topology(self._address, self.timeout, synced=durability == "fsync")
        self._session = Session(self._topology, self.timeout, self.retry_for)
        route = Route(self._topology, self.timeout)
        self._appender = Appender(route, self.namespace, self._process, self._keys, TTL_SECONDS, self.retry_for)
        self._warned = False
        self._runs = RunLink(self._topology, self.namespace, shards, self.timeout, self.retry_for)
        self._claimer = Claimer(self._runs)
        self._strays = {}

    def __repr__(self) -> str:
        return f"ValkeyStore({self._address.text!r}, namespace={self.namespace!r})"

    def shard_of(self, source: bytes) -> int:
        return keys.shard_of(source, self.shards)

    async def open(self) -> None:
        await self._session.persist(self._check)
        await self._introduce()
        await self._runs.open()

    async def close(self) -> None:
        await self._runs.close()
        await self._session.close()
        await self._appender.close()

    async def _check(self, route: Route) -> None:
        try:
            await self._check_servers(route)
        except StoreUnavailable:
            # who is a replica today may be reached at another address tomorrow
            await route.drop()
            raise
        self._warned = True

    async def persistence(self) -> Persistence:
        return await self._session.persist(lambda route: _persistence(route, self._address))

    async def _check_servers(self, route: Route) -> None:
        topology, seed = self._topology, self._address
        fields, policy = await _settings(route, seed)
        if self.settles:
            check_settling(seed.text, await _persistence(route, seed))
        if fields.get("cluster_enabled") != "1":
            self._warn(check_server(seed.text, fields, policy))
            return
        await topology.learn()
        for node in topology.primaries:
            self._warn(check_server(node.text, *await _settings(route, node)))

    def _warn(self, warnings: Iterable[str]) -> None:
        if not self._warned:
            for warning in warnings:
                logger.warning("%s", warning)

    async def _introduce(self) -> None:
        """Read the namespace's metadata, made at its first use."""
        key, where = keys.metadata_key(self.namespace), f"namespace {self.namespace!r} on {self._address.text}"
        mine = {b"format": b"%d" % FORMAT, b"shards": b"%d" % self.shards, b"instance": secrets.token_hex(16).encode()}
        made = [(b"HSETNX", key, name, value) for name, value in mine.items()]
        *_, (stored_format, shards, instance) = await self._session.ask(*made, (b"HMGET", key, *mine))
        if int(stored_format) != FORMAT:
            raise ConfigurationError(
                f"{where} has format {int(stored_format)}, this version of Pyrula reads {FORMAT}: "
                "upgrade it, or use another namespace"
            )
        if int(shards) != self.shards:
            raise ConfigurationError(
                f"{where} has {int(shards)} shards, fixed when it was first used; this store has shards={self.shards}"
            )
        found = instance.decode()
        if self.instance_id not in ("", found):
            logger.error(
                "%s was emptied (instance %s, now %s): submitted runs are gone, steps of unfinished records run again",
                where,
                self.instance_id,
                found,
            )
        self.instance_id = found

    async def heartbeat(self, worker: str, held: Mapping[Lease, int]) -> Beat:
        beat = await super().heartbeat(worker, held)
        (found,) = await self._session.ask((b"HGET", keys.metadata_key(self.namespace), b"instance"))
        if found is None or found.decode() != self.instance_id:
            # emptied under its workers: another store might fix another number of shards, were this one not told again
            await self._introduce()
        return beat

    async def claim_source(self, source: bytes, generation: int, *, replaces: Token | None = None) -> Claim:
        key, _ = self._keys(source)
        claim_id = secrets.token_hex(8).encode()
        arguments = [b"%d" % generation, _text(replaces), self._process, claim_id, _TTL]
        verdict, found = await self._session.run(script("claim"), [key], arguments)
        if verdict == b"stale":
            raise StaleToken(_token(found))
        state = dict(zip(found[::2], found[1::2], strict=True))
        token, below = _token(state[b"token"]), _number(state.get(b"below"))
        rows = await self._read(source, token, below, _buckets(state))
        await self._introduce()
        return Claim(
            token=token,
            below=below,
            high=_number(state.get(b"high")),
            witness=state.get(b"log"),
            crashes=_number(state.get(b"crashes")) or 0,
            crashed=state.get(b"died") == b"1",
            rows=rows,
        )

    async def append_rows(self, batches: Sequence[Batch]) -> list[Exception | None]:
        return await self._appender.append(batches)

    async def prune_source(self, source: bytes, token: Token, below: int, witness: bytes | None) -> None:
        here = keys.bucket_of(below)
        passed = [bucket for bucket in await self._live_buckets(source) if bucket < here]
        numbers = [b"%d" % bucket for bucket in (here, *passed)]
        await self._fenced("prune", source, token, (here, *passed), [b"%d" % below, witness or b"", _TTL, *numbers])

    async def lower_source(self, source: bytes, token: Token, below: int, *, forget: bool = False) -> None:
        buckets = await self._live_buckets(source) if forget else []
        await self._fenced("lower", source, token, buckets, [b"%d" % below, b"1" if forget else b"", _TTL])

    async def refresh_source(self, source: bytes, token: Token) -> None:
        await self._fenced("refresh", source, token, await self._live_buckets(source), [_TTL])

    async def release_source(self, source: bytes, token: Token) -> None:
        await self._fenced("release", source, token, [], [_TTL])

    async def _fenced(
        self, name: str, source: bytes, token: Token, buckets: Iterable[int], arguments: Sequence[bytes]
    ) -> None:
        key, prefix = self._keys(source)
        names = [key, *(b"%b%d" % (prefix, bucket) for bucket in buckets)]
        if await self._session.run(script(name), names, [_text(token), *arguments]) == 0:
            raise lost(source, token)

    async def _live_buckets(self, source: bytes) -> list[int]:
        (fields,) = await self._session.ask((b"HKEYS", self._keys(source)[0]))
        return _buckets(fields)

    async def _read(self, source: bytes, token: Token, below: int | None, buckets: Sequence[int]) -> list[Row]:
        """The rows from ``below`` on, in pages that hold up neither the server nor the loop."""
        first = 0 if below is None else keys.bucket_of(below)
        wanted = [bucket for bucket in buckets if bucket >= first]
        rows: list[Row] = []
        for at in range(0, len(wanted), _PAGE_BUCKETS):
            for found in await self._read_buckets(source, token, wanted[at : at + _PAGE_BUCKETS]):
                rows += [
                    Row(position, index, data)
                    for (position, index), data in sorted(found.items())
                    if below is None or position >= below
                ]
        return rows

    async def _read_buckets(
        self, source: bytes, token: Token, buckets: Sequence[int]
    ) -> Iterable[dict[tuple[int, int], bytes]]:
        key, prefix = self._keys(source)
        found: dict[int, dict[tuple[int, int], bytes]] = {bucket: {} for bucket in buckets}
        cursors = dict.fromkeys(buckets, b"0")
        while cursors:
            request = [
                (b"HSCAN", b"%b%d" % (prefix, bucket), cursor, b"COUNT", _PAGE_ROWS)
                for bucket, cursor in cursors.items()
            ]
            # the token was raised before, so nobody else writes meanwhile, unless it has been raised once more
            *pages, stored = await self._session.ask(*request, (b"HGET", key, b"token"))
            if stored != _text(token):
                raise _replaced(source, stored)
            for bucket, (cursor, flat) in zip(list(cursors), pages, strict=True):
                for name, data in zip(flat[::2], flat[1::2], strict=True):
                    position, _, index = name.partition(b".")
                    found[bucket][int(position), int(index)] = data
                if cursor == b"0":
                    del cursors[bucket]
                else:
                    cursors[bucket] = cursor
        return found.values()

    def _keys(self, source: bytes) -> tuple[bytes, bytes]:
        return keys.source_keys(self.namespace, self.shards, source)


async def _settings(route: Route, node: Address) -> tuple[dict[str, str], str | None]:
    """What a server tells of itself, and its eviction policy."""
    request = [wire.command(b"INFO"), wire.command(b"CONFIG", b"GET", b"maxmemory-policy")]
    info, config = await route.ask_node(node, request)
    for answer in (info, config):
        # a managed service may forbid either
        if isinstance(answer, Exception) and meaning(answer) not in (Meaning.SETTINGS, Meaning.REFUSED):
            raise route.error(node, answer)
    fields = {} if isinstance(info, Exception) else parse_info(info)
    if not isinstance(config, Exception) and len(config) == 2:
        return fields, config[1].decode()
    return fields, fields.get("maxmemory_policy")


async def _persistence(route: Route, node: Address) -> Persistence:
    request = [wire.command(b"INFO"), wire.command(b"CONFIG", b"GET", *(name.encode() for name in SYNCED))]
    info, config = await route.ask_node(node, request)
    for answer in (info, config):
        if isinstance(answer, Exception) and meaning(answer) not in (Meaning.SETTINGS, Meaning.REFUSED):
            raise route.error(node, answer)
    flat = [] if isinstance(config, Exception) else [part.decode() for part in config]
    fields = {} if isinstance(info, Exception) else parse_info(info)
    return persistence_of(fields, dict(zip(flat[::2], flat[1::2], strict=True)))


def _text(token: Token | None) -> bytes:
    return b"" if token is None else str(token).encode()


def _token(text: bytes) -> Token:
    return Token.parse(text.decode())


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value)


def _buckets(fields: Iterable[bytes]) -> list[int]:
    return sorted(int(name[1:]) for name in fields if name[:1] == b"b" and name[1:].isdigit())


def _replaced(source: bytes, stored: bytes | None) -> StoreError:
    if stored is None:
        return LeaseLost(f"source {source.hex()} went from the store while its journal was read")
    return StaleToken(_token(stored))
