"""docs/formats-records.md says what a handed-over run and its lane have in the store."""

from pyrula.workflows.store.lanes import HandingOver, lane_of
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Wait
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.records.rig import ADDRESS, Rig
from tests.conformance.records.test_record_formats import first_columns
from tests.conformance.server import Server


async def test_what_a_lane_leaves_is_documented(valkey_store: ValkeyStore, server: Server) -> None:
    rig = Rig(valkey_store, valkey_store)
    await rig.claim()
    waits = [Wait("signal", "go")]
    await rig.change(7, 1, status=RunStatus.SIGNAL_WAITING, waits=waits, rows=[(0, b"row")])
    run = HandingOver(rig.id(7), lane_of(b"a"), "@k", b"{}", 1, 0, waits, [(0, b"row")])
    assert (await valkey_store.hand_over(rig.registration, rig.token, run)).taken
    prefix = f"{{{server.namespace}:{rig.id(7).shard}}}"
    (documented,) = first_columns("## Runs that were handed over")
    lanes = documented.replace("{N:k}", prefix).replace("<address>", f"k{ADDRESS}")
    assert await server.hash(lanes.encode()) == {b"ka": f"7 {rig.id(7)}".encode()}
    fields = await server.hash(f"{prefix}r:{rig.id(7)}".encode())
    assert {name.decode() for name in fields} >= set(first_columns("Fields of `{N:k}r:<run id>` beside"))
    assert await server.hash(f"{prefix}j:{rig.id(7)}".encode()) == {b"0": b"row"}
    assert (await server.hash(f"{prefix}n:k{ADDRESS}".encode())) == {b"7": b"-2"}
    long, short = b"x" * 65, b"x" * 64
    assert lane_of(short) == b"k" + short
    assert (lane_of(long)[:1], len(lane_of(long))) == (b"d", 17)
