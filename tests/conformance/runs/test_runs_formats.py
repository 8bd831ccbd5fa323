"""What flow control writes to the store, as docs/formats-runs.md has it: who reads it may be another version."""

import json
import struct
from pathlib import Path

import pytest

from pyrula.workflows.stamps import LimitStamp, RateStamp, Stamp
from pyrula.workflows.store.messages import Lease
from pyrula.workflows.store.registry import Enlisted
from pyrula.workflows.store.valkey import ValkeyStore
from pyrula.workflows.store.valkey.run_keys import STRUCTURES
from tests.conformance.runs.rig import Rig
from tests.conformance.server import Server

DOC = (Path(__file__).parents[3] / "docs" / "formats-runs.md").read_text()
CLASS = bytes.fromhex("09f444953c8f05316b5a0836")
OWNER = bytes.fromhex("086199ccad013a1c6959d181")
LIMIT = bytes.fromhex("6cd802d27aa699d9515960e767")
RATE = bytes.fromhex("72d802d27aa699d9515960e767")
COHORT = CLASS + bytes.fromhex("4306982ac8991da9c0b99b3a")
STAMP = Stamp(LimitStamp("tenant_id", "acme", 1), RateStamp("tenant_id", "acme", 2.5, 3), ("acme",))


@pytest.fixture
async def rig(server: Server) -> Rig:
    store = ValkeyStore(server.url, namespace=server.namespace, shards=1)
    await store.open()
    return Rig(store, store)


def test_every_structure_is_described() -> None:
    for name in STRUCTURES:
        assert f"`{{N:k}}{name.decode()}`" in DOC


async def test_a_run_that_has_a_slot_and_one_that_waits(rig: Rig, server: Server) -> None:
    tag = b"{%b:0}" % server.namespace.encode()

    async def members(name: bytes) -> list[bytes]:
        found: list[bytes] = await server.call("ZRANGE", tag + name, 0, -1)
        return found

    held = (await rig.started(stamp=STAMP, owner="big")).lease.run_id.encode()
    waits = (await rig.submit(stamp=STAMP, owner="big", priority=3)).encode()
    key = struct.pack(">BQ", 128 - 3, 2)
    place = b"w" + CLASS + LIMIT
    assert await members(b"slot") == [LIMIT + held]
    assert await members(b"gidx") == [LIMIT + b":" + CLASS]
    assert sorted(await members(b"q")) == sorted([b"c" + COHORT + key + waits, place + OWNER + key + b"~" + COHORT])
    (seat,) = await server.call("HVALS", tag + b"seat")
    assert await members(b"ring") == [place + seat + OWNER]
    assert await server.call("HKEYS", tag + b"seat") == [place + OWNER]
    assert await server.call("HKEYS", tag + b"cohort") == [COHORT]
    ((gate, arrival),) = [await server.call("ZRANGE", tag + b"rate", 0, -1, "WITHSCORES")]
    assert gate == RATE
    seconds, _ = await server.call("TIME")
    assert abs(float(arrival) / 1e6 - int(seconds)) < 5
    assert await server.call("HGET", tag + b"r:" + held, "stamp") == (
        b'[["tenant_id","acme",1],["tenant_id","acme",2.5,3],["acme"]]'
    )
    await rig.complete(Lease(held.decode(), "w", 1))
    assert await members(b"slot") == []
    assert sorted(await members(b"open")) == sorted(gate + CLASS + b":" + COHORT for gate in (LIMIT, RATE))
    await rig.complete((await rig.claim()).lease)
    await rig.store.close()


async def test_the_register(rig: Rig, server: Server) -> None:
    await rig.store.enlist("w1", (Enlisted("cart", "1", "orders", False),))
    stored = await server.call("HGET", b"{%b:0}workers" % server.namespace.encode(), "w1")
    seen, served = json.loads(stored)
    assert abs(seen - rig.store.now()) < 5
    assert served == [["cart", "1", "orders", False]]
    await rig.store.strike("w1")
    await rig.store.close()
