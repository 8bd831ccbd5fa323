"""ValkeyStore: sources' journals on one Valkey or Redis server.

Owns when a request is sent again. A request that fails on its way is sent again at once, then with growing delays,
for ``retry_for`` seconds; that is safe since every script answers a second sending as it did the first. What a reply
means is link.py's, what a script does is in ``lua/``.
"""

import asyncio
import itertools
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pyrula.workflows.errors import ConfigurationError, LeaseLost, StaleToken, StoreError, StoreUnavailable
from pyrula.workflows.store.port import Batch, Claim, Row, Token
from pyrula.workflows.store.valkey import keys, wire
from pyrula.workflows.store.valkey.checks import check_server, parse_info
from pyrula.workflows.store.valkey.link import Address, Link, Meaning, meaning
from pyrula.workflows.store.valkey.scripts import Script, script

logger = logging.getLogger("pyrula.store")

_T = TypeVar("_T")

FORMAT = 1
_TTL = 30 * 24 * 3600
_CONNECTIONS = 3
_PAGE_ROWS = 1000
_PAGE_BUCKETS = 8
_FIRST_DELAY, _LAST_DELAY = 0.05, 1.0
# How long a flush is tried here before its caller, who tries for ever, hears of it.
_APPEND_PATIENCE = 2.0


class ValkeyStore:
    """A SourceStore on Valkey >= 7.2 or Redis >= 7.2.

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
        timeout: float = 5.0,
        retry_for: float = 30.0,
    ) -> None:
        self._address = Address(url)
        self.namespace = keys.check_namespace(namespace)
        if not isinstance(shards, int) or not 1 <= shards <= 16384:
            raise ConfigurationError(f"shards must be a number from 1 to 16384, not {shards!r}")
        if not timeout > 0 or not retry_for >= 0:
            raise ConfigurationError(
                f"timeout must be above 0 and retry_for not negative (seconds), not {timeout!r} and {retry_for!r}"
            )
        self.shards = shards
        self.retry_for = retry_for
        self.instance_id = ""
        self._timeout = timeout
        self._process = secrets.token_hex(8).encode()
        self._sendings = itertools.count(1)
        self._flushing = asyncio.Lock()
        self._flush_link = Link(self._address, timeout)
        self._room = asyncio.Semaphore(_CONNECTIONS)
        self._idle: list[Link] = []
        self._warned = False

    def __repr__(self) -> str:
        return f"ValkeyStore({self._address.text!r}, namespace={self.namespace!r})"

    def shard_of(self, source: bytes) -> int:
        return keys.shard_of(source, self.shards)

    async def open(self) -> None:
        async with self._link() as link:
            await self._persist(lambda: self._check(link), self.retry_for)
            await self._persist(lambda: self._introduce(link), self.retry_for)

    async def close(self) -> None:
        links, self._idle = [*self._idle, self._flush_link], []
        for link in links:
            await link.drop()

    async def _check(self, link: Link) -> None:
        info, config = await link.exchange(
            [wire.command(b"INFO"), wire.command(b"CONFIG", b"GET", b"maxmemory-policy")], 2
        )
        for answer in (info, config):
            if isinstance(answer, Exception) and meaning(answer) not in (Meaning.SETTINGS, Meaning.REFUSED):
                raise link.error(answer)
        fields = {} if isinstance(info, Exception) else parse_info(info)
        policy = fields.get("maxmemory_policy")
        if not isinstance(config, Exception) and len(config) == 2:
            policy = config[1].decode()
        warnings = check_server(self._address.text, fields, policy)
        if not self._warned:
            self._warned = True
            for warning in warnings:
                logger.warning("%s", warning)

    async def _introduce(self, link: Link) -> None:
        key = keys.metadata_key(self.namespace)
        mine = {b"format": b"%d" % FORMAT, b"shards": b"%d" % self.shards, b"instance": secrets.token_hex(16).encode()}
        request = [wire.command(b"HSETNX", key, name, value) for name, value in mine.items()]
        request.append(wire.command(b"HMGET", key, *mine))
        answers = await link.exchange(request, len(request))
        for answer in answers:
            if isinstance(answer, Exception):
                raise link.error(answer)
        stored_format, shards, instance = answers[-1]
        if int(stored_format) != FORMAT:
            raise ConfigurationError(
                f"namespace {self.namespace!r} on {self._address.text} has format {int(stored_format)}, this version "
                f"of Pyrula reads {FORMAT}: upgrade it, or use another namespace"
            )
        if int(shards) != self.shards:
            raise ConfigurationError(
                f"namespace {self.namespace!r} on {self._address.text} has {int(shards)} shards, fixed when it was "
                f"first used; this store was given shards={self.shards}"
            )
        found = instance.decode()
        if self.instance_id not in ("", found):
            logger.error(
                "%s was emptied: its instance was %s and is %s; steps of unfinished records run again",
                self._address.text,
                self.instance_id,
                found,
            )
        self.instance_id = found

    async def claim_source(self, source: bytes, generation: int, *, replaces: Token | None = None) -> Claim:
        arguments = [
            b"%d" % generation,
            b"" if replaces is None else str(replaces).encode(),
            self._process,
            secrets.token_hex(8).encode(),
            b"%d" % _TTL,
        ]
        async with self._link() as link:
            answer = await self._run(link, script("claim"), [self._key(source)], arguments)
            if answer[0] == b"stale":
                raise StaleToken(Token.parse(answer[1].decode()))
            state = _pairs(answer[1])
            token = Token.parse(state[b"token"].decode())
            below = _number(state.get(b"below"))
            rows = await self._read(link, source, token, below, _buckets(state))
            await self._persist(lambda: self._introduce(link), self.retry_for)
        return Claim(
            token=token,
            below=below,
            high=_number(state.get(b"high")),
            witness=state.get(b"log"),
            crashes=_number(state.get(b"crashes")) or 0,
            rows=rows,
        )

    async def append_rows(self, batches: Sequence[Batch]) -> list[Exception | None]:
        # one at a time, so that sendings arrive in the order of their numbers
        async with self._flushing:
            return await self._append(batches)

    async def prune_source(self, source: bytes, token: Token, below: int, witness: bytes | None) -> None:
        bucket = keys.bucket_of(below)
        async with self._link() as link:
            passed = [number for number in await self._live_buckets(link, source) if number < bucket]
            names = [self._bucket_key(source, number) for number in (bucket, *passed)]
            arguments = [_text(token), b"%d" % below, witness or b"", b"%d" % _TTL, b"%d" % bucket]
            arguments += [b"%d" % number for number in passed]
            await self._fenced(link, "prune", source, token, names, arguments)

    async def lower_source(self, source: bytes, token: Token, below: int, *, forget: bool = False) -> None:
        async with self._link() as link:
            buckets = await self._live_buckets(link, source) if forget else []
            names = [self._bucket_key(source, number) for number in buckets]
            arguments = [_text(token), b"%d" % below, b"1" if forget else b"", b"%d" % _TTL]
            await self._fenced(link, "lower", source, token, names, arguments)

    async def refresh_source(self, source: bytes, token: Token) -> None:
        async with self._link() as link:
            names = [self._bucket_key(source, number) for number in await self._live_buckets(link, source)]
            await self._fenced(link, "refresh", source, token, names, [_text(token), b"%d" % _TTL])

    async def release_source(self, source: bytes, token: Token) -> None:
        async with self._link() as link:
            await self._fenced(link, "release", source, token, [], [_text(token), b"%d" % _TTL])

    async def _read(self, link: Link, source: bytes, token: Token, below: int | None, buckets: list[int]) -> list[Row]:
        """The rows from ``below`` on, in pages that hold up neither the server nor the loop. The token was raised
        before, so nobody else writes; if it is raised again meanwhile, what was read may lack rows: StaleToken."""
        if below is not None:
            first = keys.bucket_of(below)
            buckets = [number for number in buckets if number >= first]
        rows: list[Row] = []
        for some in _chunks(buckets, _PAGE_BUCKETS):
            found: dict[int, dict[tuple[int, int], bytes]] = {number: {} for number in some}
            cursors = dict.fromkeys(some, b"0")
            while cursors:
                request = [
                    wire.command(b"HSCAN", self._bucket_key(source, number), cursor, b"COUNT", b"%d" % _PAGE_ROWS)
                    for number, cursor in cursors.items()
                ]
                request.append(wire.command(b"HGET", self._key(source), b"token"))
                *pages, stored = await self._ask(link, request)
                if stored != _text(token):
                    raise _replaced(source, token, stored)
                for number, (cursor, flat) in zip(list(cursors), pages, strict=True):
                    _take(flat, found[number])
                    if cursor == b"0":
                        del cursors[number]
                    else:
                        cursors[number] = cursor
            for number in some:
                rows += [
                    Row(position, index, data)
                    for (position, index), data in sorted(found[number].items())
                    if below is None or position >= below
                ]
        return rows

    async def _live_buckets(self, link: Link, source: bytes) -> list[int]:
        (flat,) = await self._ask(link, [wire.command(b"HKEYS", self._key(source))])
        return _buckets(flat)

    async def _append(self, batches: Sequence[Batch]) -> list[Exception | None]:
        answers: list[Exception | None] = [None] * len(batches)
        waiting = list(range(len(batches)))
        load = False
        attempts = _Attempts(_APPEND_PATIENCE)
        while True:
            packed = self._pack(batches, waiting, answers)
            if not packed:
                return answers
            request = list(packed.values())
            if load:
                request.insert(0, wire.script_load(script("append")))
            try:
                replies = await self._flush_link.exchange(request, len(request))
            except StoreUnavailable as error:
                await attempts.failed(error)
                waiting = list(packed)
                continue
            replies = replies[1:] if load else replies
            waiting, load, refused = self._sort(batches, dict(zip(packed, replies, strict=True)), answers)
            if refused is not None:
                await self._flush_link.drop()
                await attempts.failed(refused)

    def _pack(self, batches: Sequence[Batch], waiting: list[int], answers: list[Exception | None]) -> dict[int, bytes]:
        # Every sending has a number of its own, a second sending too: a batch that was refused while a later one of
        # its source was written would otherwise be taken for written.
        packed: dict[int, bytes] = {}
        for number in waiting:
            batch = batches[number]
            key, prefix = self._key(batch.source), self._prefix(batch.source)
            try:
                packed[number] = wire.append(script("append"), key, prefix, batch, next(self._sendings), _TTL)
            except ValueError as error:
                answers[number] = error
        return packed

    def _sort(
        self, batches: Sequence[Batch], replies: dict[int, Any], answers: list[Exception | None]
    ) -> tuple[list[int], bool, StoreUnavailable | None]:
        """Which batches to send again, whether the script is to be loaded, and what the server can't do at present.
        After a batch to be sent again come all later ones of its source, so that its rows keep their order."""
        again: list[int] = []
        behind: set[bytes] = set()
        load = False
        refused: StoreUnavailable | None = None
        for number, reply in replies.items():
            batch = batches[number]
            if batch.source in behind:
                again.append(number)
                continue
            if not isinstance(reply, Exception):
                answers[number] = None if reply == 1 else _lost(batch.source, batch.token)
                continue
            error = self._flush_link.error(reply)
            if meaning(reply) is Meaning.LOAD:
                load = True
            elif isinstance(error, StoreUnavailable):
                refused = error
            else:
                answers[number] = error
                continue
            again.append(number)
            behind.add(batch.source)
        return again, load, refused

    async def _run(self, link: Link, wanted: Script, names: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
        attempts = _Attempts(self.retry_for)
        call = wire.evalsha(wanted, names, arguments)
        request = [call]
        while True:
            try:
                reply = (await link.exchange(request, len(request)))[-1]
                if not isinstance(reply, Exception):
                    return reply
                if meaning(reply) is Meaning.LOAD:
                    request = [wire.script_load(wanted), call]
                    continue
                raise link.error(reply)
            except StoreUnavailable as error:
                await link.drop()
                await attempts.failed(error)

    async def _fenced(
        self, link: Link, name: str, source: bytes, token: Token, buckets: Sequence[bytes], arguments: Sequence[bytes]
    ) -> None:
        if await self._run(link, script(name), [self._key(source), *buckets], arguments) == 0:
            raise _lost(source, token)

    async def _ask(self, link: Link, request: Sequence[bytes]) -> list[Any]:
        async def ask() -> list[Any]:
            replies = await link.exchange(request, len(request))
            for reply in replies:
                if isinstance(reply, Exception):
                    raise link.error(reply)
            return replies

        return await self._persist(ask, self.retry_for)

    async def _persist(self, attempt: Callable[[], Awaitable[_T]], patience: float) -> _T:
        attempts = _Attempts(patience)
        while True:
            try:
                return await attempt()
            except StoreUnavailable as error:
                await attempts.failed(error)

    @asynccontextmanager
    async def _link(self) -> AsyncIterator[Link]:
        async with self._room:
            link = self._idle.pop() if self._idle else Link(self._address, self._timeout)
            try:
                yield link
            finally:
                self._idle.append(link)

    def _key(self, source: bytes) -> bytes:
        return keys.source_key(self.namespace, self.shards, source)

    def _prefix(self, source: bytes) -> bytes:
        return keys.journal_prefix(self.namespace, self.shards, source)

    def _bucket_key(self, source: bytes, bucket: int) -> bytes:
        return b"%b%d" % (self._prefix(source), bucket)


class _Attempts:
    """When to send again: at once after the first failure (a connection may just have grown stale), then with growing
    delays, until ``patience`` seconds have passed."""

    def __init__(self, patience: float) -> None:
        self._deadline = time.monotonic() + patience
        self._delay = 0.0

    async def failed(self, error: StoreUnavailable) -> None:
        if time.monotonic() + self._delay >= self._deadline:
            raise error
        await asyncio.sleep(self._delay * random.uniform(0.8, 1.2))
        self._delay = min(max(self._delay * 2, _FIRST_DELAY), _LAST_DELAY)


def _text(token: Token) -> bytes:
    return str(token).encode()


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value)


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _buckets(fields: Iterable[bytes]) -> list[int]:
    return sorted(int(name[1:]) for name in fields if name[:1] == b"b" and name[1:].isdigit())


def _take(flat: Sequence[bytes], into: dict[tuple[int, int], bytes]) -> None:
    for name, data in zip(flat[::2], flat[1::2], strict=True):
        position, _, index = name.partition(b".")
        into[int(position), int(index)] = data


def _chunks(items: list[int], size: int) -> Iterable[list[int]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _lost(source: bytes, token: Token) -> LeaseLost:
    return LeaseLost(f"source {source.hex()} is not held with token {token} any more")


def _replaced(source: bytes, token: Token, stored: bytes | None) -> StoreError:
    if stored is None:
        return _lost(source, token)
    return StaleToken(Token.parse(stored.decode()))
