"""How ValkeyStore lays a journal out: buckets, their life, what a prune removes, and how a large one is read."""

import asyncio

import pytest

from pyrula.workflows.errors import StaleToken
from pyrula.workflows.store.port import Batch, Row, Token
from pyrula.workflows.store.valkey import ValkeyStore, keys
from pyrula.workflows.store.valkey.store import TTL_SECONDS
from tests.conformance.server import Server

SOURCE = bytes(range(16))


class Journal:
    """The source's keys as they are on the server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.state_key, self.prefix = keys.source_keys(server.namespace, 16, SOURCE)

    async def buckets(self) -> list[int]:
        found = await self.server.keys()
        return sorted(int(key[len(self.prefix) :]) for key in found if key.startswith(self.prefix))

    async def registered(self) -> list[int]:
        return sorted(int(name[1:]) for name in await self.server.hash(self.state_key) if name[1:].isdigit())

    async def fields(self, bucket: int) -> set[bytes]:
        return set(await self.server.hash(self.prefix + b"%d" % bucket))

    async def ttls(self) -> list[int]:
        names = [self.state_key, *(self.prefix + b"%d" % bucket for bucket in await self.buckets())]
        return [await self.server.call("TTL", name) for name in names]

    async def age(self) -> None:
        """Bring all keys near their end."""
        for name in [self.state_key, *(self.prefix + b"%d" % bucket for bucket in await self.buckets())]:
            await self.server.call("EXPIRE", name, 100)


@pytest.fixture
def server(own_server: Server) -> Server:
    """A server that nobody else uses, since its commands are counted."""
    return own_server


@pytest.fixture
def journal(server: Server) -> Journal:
    return Journal(server)


@pytest.fixture
async def token(valkey_store: ValkeyStore) -> Token:
    return (await valkey_store.claim_source(SOURCE, 1)).token


async def write(store: ValkeyStore, token: Token, *rows: tuple[int, int, bytes]) -> None:
    for at in range(0, len(rows), 2000):
        part = rows[at : at + 2000]
        assert await store.append_rows([Batch(SOURCE, token, part, max(row[0] for row in part))]) == [None]


async def test_every_key_a_call_touches_lives_30_days(
    valkey_store: ValkeyStore, token: Token, journal: Journal
) -> None:
    async def fresh(count: int) -> None:
        ttls = await journal.ttls()
        assert len(ttls) == count
        assert all(TTL_SECONDS - 60 < ttl <= TTL_SECONDS for ttl in ttls[:count]), ttls

    assert TTL_SECONDS == 30 * 24 * 3600
    await fresh(1)
    await journal.age()
    await write(valkey_store, token, (1, 0, b"x"), (5000, 0, b"x"))
    await fresh(3)
    for call in (
        lambda: valkey_store.prune_source(SOURCE, token, 0, None),
        lambda: valkey_store.lower_source(SOURCE, token, 0),
        lambda: valkey_store.append_rows([Batch(SOURCE, token, [], 1)]),
        lambda: valkey_store.claim_source(SOURCE, 1),
        lambda: valkey_store.release_source(SOURCE, token),
    ):
        await journal.age()
        await call()
        assert (await journal.ttls())[0] > TTL_SECONDS - 60
    await journal.age()
    await valkey_store.refresh_source(SOURCE, token)
    await fresh(3)


async def test_a_bucket_that_expired_is_no_trouble(valkey_store: ValkeyStore, token: Token, journal: Journal) -> None:
    await write(valkey_store, token, (1, 0, b"x"), (5000, 0, b"x"))
    await journal.server.call("UNLINK", journal.prefix + b"0")
    assert (await valkey_store.claim_source(SOURCE, 1)).rows == [Row(5000, 0, b"x")]
    await valkey_store.prune_source(SOURCE, token, 5001, None)
    assert await journal.registered() == []


async def test_prune_removes_whole_buckets_and_forgets_them(
    valkey_store: ValkeyStore, token: Token, journal: Journal
) -> None:
    await write(valkey_store, token, *[(position, 0, b"x") for position in range(0, 10_240, 512)])
    assert await journal.buckets() == await journal.registered() == list(range(10))
    await valkey_store.prune_source(SOURCE, token, 5120, None)
    assert await journal.buckets() == await journal.registered() == list(range(5, 10))
    await valkey_store.prune_source(SOURCE, token, 10_240, None)
    assert await journal.buckets() == await journal.registered() == []


async def test_in_the_bucket_of_below_only_fields_under_it_go(
    valkey_store: ValkeyStore, token: Token, journal: Journal
) -> None:
    await write(valkey_store, token, *[(position, index, b"x") for position in range(90, 110) for index in range(2)])
    await valkey_store.prune_source(SOURCE, token, 100, None)
    assert await journal.fields(0) == {b"%d.%d" % (p, i) for p in range(100, 110) for i in range(2)}
    await valkey_store.prune_source(SOURCE, token, 110, None)
    assert await journal.buckets() == await journal.registered() == []


async def test_a_full_bucket_is_swept_a_few_times_only(
    valkey_store: ValkeyStore, token: Token, journal: Journal
) -> None:
    """Walking a bucket at each commit would cost the server more than the rows did."""
    await write(valkey_store, token, *[(position, index, b"x") for position in range(1024) for index in range(3)])
    before = await journal.server.calls("hkeys")
    sizes = set()
    for below in range(10, 1024, 10):
        await valkey_store.prune_source(SOURCE, token, below, None)
        sizes.add(len(await journal.fields(0)))
    # a call each for the store's own look at the registry; the rest are walks of the bucket
    walks = await journal.server.calls("hkeys") - before - len(range(10, 1024, 10))
    assert walks <= 15
    # and what is dead in it never makes up more than 256 records
    assert max(sizes) == 3 * 1024
    assert len(await journal.fields(0)) <= 3 * (4 + 256)


async def test_a_bucket_of_large_values_is_swept_at_once(
    valkey_store: ValkeyStore, token: Token, journal: Journal
) -> None:
    await write(valkey_store, token, *[(position, 0, b"x" * 5000) for position in range(300)])
    await valkey_store.prune_source(SOURCE, token, 10, None)
    assert len(await journal.fields(0)) == 290
    # swept just now, and little written since: not again
    await valkey_store.prune_source(SOURCE, token, 20, None)
    assert len(await journal.fields(0)) == 290


async def test_thousands_of_fields_are_swept_at_once(valkey_store: ValkeyStore, token: Token, journal: Journal) -> None:
    await write(valkey_store, token, *[(position, index, b"x") for position in range(1000) for index in range(10)])
    await valkey_store.prune_source(SOURCE, token, 999, None)
    assert await journal.fields(0) == {b"999.%d" % index for index in range(10)}


async def test_what_is_written_after_positions_were_lowered_is_swept_again(
    valkey_store: ValkeyStore, token: Token, journal: Journal
) -> None:
    await write(valkey_store, token, (5, 0, b"x"), (50, 0, b"x"))
    await valkey_store.prune_source(SOURCE, token, 40, None)
    await valkey_store.lower_source(SOURCE, token, 0)
    await write(valkey_store, token, (7, 0, b"x"))
    await valkey_store.prune_source(SOURCE, token, 10, None)
    assert await journal.fields(0) == {b"50.0"}


async def test_a_journal_far_ahead_of_an_old_one_is_read_without_looking_between(
    valkey_store: ValkeyStore, token: Token, journal: Journal
) -> None:
    await write(valkey_store, token, (1, 0, b"old"), (2**52, 0, b"new"))
    async with asyncio.timeout(60):
        claim = await valkey_store.claim_source(SOURCE, 1)
    assert claim.rows == [Row(1, 0, b"old"), Row(2**52, 0, b"new")]


async def test_a_hundred_thousand_rows_are_read_in_pages(
    valkey_store: ValkeyStore, token: Token, journal: Journal
) -> None:
    rows = [Row(position, index, b"value %d" % index) for position in range(20_000) for index in range(5)]
    await write(valkey_store, token, *rows)
    server = journal.server
    await server.call("CONFIG", "RESETSTAT")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    claim = await valkey_store.claim_source(SOURCE, 2)
    counting.cancel()
    await asyncio.gather(counting, return_exceptions=True)
    assert claim.rows == rows
    # pages of about a thousand rows, eight buckets at a time; the state alone is read whole
    assert await server.calls("hscan") >= 100
    assert await server.calls("hgetall") == 1
    # no page keeps the server for long; of one alone that can't be told on a busy machine
    assert (await server._client.info("commandstats"))["cmdstat_hscan"]["usec_per_call"] < 50_000
    assert turns > 12


async def test_one_bucket_may_hold_everything(valkey_store: ValkeyStore, token: Token, journal: Journal) -> None:
    rows = [Row(5, index, b"%050d" % index) for index in range(30_000)]
    await write(valkey_store, token, *rows)
    assert (await valkey_store.claim_source(SOURCE, 2)).rows == rows
    token = Token(1, 2)
    # too large to walk: it stays until it goes whole
    await valkey_store.prune_source(SOURCE, token, 6, None)
    assert len(await journal.fields(0)) == 30_000
    assert (await valkey_store.claim_source(SOURCE, 2)).rows == []
    await valkey_store.prune_source(SOURCE, token, 1024, None)
    assert await journal.buckets() == []


async def test_a_claim_overtaken_while_it_reads_is_stale(
    valkey_store: ValkeyStore, token: Token, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows may lack what the new holder has pruned or what was written after."""
    await write(valkey_store, token, *[(position, 0, b"x") for position in range(0, 20_000, 5)])
    rival = ValkeyStore(server.url, namespace=server.namespace)
    await rival.open()
    read, pages = valkey_store._read_buckets, 0

    async def overtaken(*arguments: object) -> object:
        nonlocal pages
        pages += 1
        if pages == 2:
            await rival.claim_source(SOURCE, 3)
        return await read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(valkey_store, "_read_buckets", overtaken)
    with pytest.raises(StaleToken) as caught:
        await valkey_store.claim_source(SOURCE, 2)
    assert caught.value.stored == Token(1, 3)
    await rival.close()


async def test_no_key_listing_on_any_path(valkey_store: ValkeyStore, token: Token, server: Server) -> None:
    before = [await server.calls(command) for command in ("keys", "scan", "flushdb")]
    await write(valkey_store, token, (1, 0, b"x"), (2000, 0, b"y"))
    await valkey_store.prune_source(SOURCE, token, 1500, None)
    await valkey_store.lower_source(SOURCE, token, 0, forget=True)
    await valkey_store.refresh_source(SOURCE, token)
    await valkey_store.claim_source(SOURCE, 1)
    await valkey_store.release_source(SOURCE, token)
    assert [await server.calls(command) for command in ("keys", "scan", "flushdb")] == before


async def test_all_keys_of_a_source_lie_in_one_slot(valkey_store: ValkeyStore, token: Token, server: Server) -> None:
    await write(valkey_store, token, (1, 0, b"x"), (2000, 0, b"y"))
    tag = b"{%b:%d}" % (server.namespace.encode(), valkey_store.shard_of(SOURCE))
    of_source = [key for key in await server.keys() if SOURCE.hex().encode() in key]
    assert len(of_source) == 3
    assert all(key.startswith(tag) for key in of_source)
