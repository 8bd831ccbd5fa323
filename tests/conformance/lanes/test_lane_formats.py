"""docs/formats-records.md says what a handed-over run and its lane have in the store."""

from pyrula.workflows.store.lanes import HandingOver, LaneBounds, LinedUp, LiningUp, lane_of
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Change, End, Message, Wait
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
    documented, *_ = first_columns("## Runs that were handed over")
    lanes = documented.replace("{N:k}", prefix).replace("<address>", f"k{ADDRESS}")
    assert await server.hash(lanes.encode()) == {b"ka": f"7 {rig.id(7)} 0 0".encode()}
    fields = await server.hash(f"{prefix}r:{rig.id(7)}".encode())
    assert {name.decode() for name in fields} >= set(first_columns("Fields of `{N:k}r:<run id>` beside"))
    assert await server.hash(f"{prefix}j:{rig.id(7)}".encode()) == {b"0": b"row"}
    assert (await server.hash(f"{prefix}n:k{ADDRESS}".encode())) == {b"7": b"-2"}
    long, short = b"x" * 65, b"x" * 64
    assert lane_of(short) == b"k" + short
    assert (lane_of(long)[:1], len(lane_of(long))) == (b"d", 17)


async def test_what_a_queue_leaves_is_documented(valkey_store: ValkeyStore, server: Server) -> None:
    rig = Rig(valkey_store, valkey_store)
    await rig.claim()
    waits = [Wait("signal", "go")]
    for position, key in ((7, b"a"), (9, b"b")):
        await rig.change(position, 1, status=RunStatus.SIGNAL_WAITING, waits=waits)
        run = HandingOver(rig.id(position), lane_of(key), "@k", b"{}", 1, 0, waits, [])
        assert (await valkey_store.hand_over(rig.registration, rig.token, run)).taken
    sent = [LiningUp(lane_of(b"a"), [(rig.id(8), b'{"value":1}')])]
    bounds = LaneBounds(9, 99, 99)
    assert await valkey_store.line_up(rig.registration, rig.token, "@k", sent, bounds) == [LinedUp(1, "all")]
    prefix = f"{{{server.namespace}:{rig.id(7).shard}}}"
    names = [
        documented.replace("{N:k}", prefix).replace("<address>", f"k{ADDRESS}")
        for documented in first_columns("## Runs that were handed over")
    ]
    lanes, queue, idle = (name.encode() for name in names)
    assert (await server.hash(lanes))[b"ka"] == f"8 {rig.id(7)} 1 11".encode()
    assert (await server.hash(lanes))[b"#"] == b"11"
    (member,) = await server.call("ZRANGE", queue, 0, -1)
    order = (3).to_bytes(8, "big")
    assert member == b"\x02ka" + b"\x80" + order + (11).to_bytes(4, "big") + str(rig.id(8)).encode()
    fields = await server.hash(f"{prefix}r:{rig.id(8)}".encode())
    assert {name.decode() for name in fields} == {
        "name", "version", "metadata", "created", "owner", "params", "digest", "handed",
    }  # fmt: skip
    await valkey_store.deliver(str(rig.id(9)), Message("cancel", "cancel"))
    (claimed,) = (await valkey_store.claim("x", [("@k", "1")], 1)).runs
    await valkey_store.finish(claimed.lease, Change(1), End("cancelled"))
    assert await server.call("ZRANGE", idle, 0, -1, "WITHSCORES") == [b"kb", b"9"]
    assert (await server.hash(lanes))[b"kb"] == b"9 - 0 0"


async def test_nothing_of_a_queue_has_a_time_to_live(valkey_store: ValkeyStore, server: Server) -> None:
    rig = Rig(valkey_store, valkey_store)
    await rig.claim()
    waits = [Wait("signal", "go")]
    await rig.change(7, 1, status=RunStatus.SIGNAL_WAITING, waits=waits, rows=[(0, b"row")])
    run = HandingOver(rig.id(7), lane_of(b"a"), "@k", b"{}", 1, 0, waits, [(0, b"row")])
    assert (await valkey_store.hand_over(rig.registration, rig.token, run)).taken
    await rig.signal(8)  # so that its keys are there, with a time to live
    sent = [LiningUp(lane_of(b"a"), [(rig.id(8), b"{}")])]
    await valkey_store.line_up(rig.registration, rig.token, "@k", sent, LaneBounds(9, 99, 99))
    await valkey_store.pass_records(rig.registration, rig.token, 9, [7, 8])
    prefix = f"{{{server.namespace}:{rig.id(7).shard}}}"
    runs = {f"{prefix}{kind}:{rig.id(7)}" for kind in "rje"} | {f"{prefix}{kind}:{rig.id(8)}" for kind in "remu"}
    places = {f"{prefix}{kind}:k{ADDRESS}" for kind in "fg"}
    lasting = {key.decode() for key in await server.keys_without_ttl()}
    assert lasting >= runs | places
    for position in (7, 8):
        await valkey_store.deliver(str(rig.id(position)), Message("cancel", "cancel"))
    (claimed,) = (await valkey_store.claim("x", [("@k", "1")], 1)).runs
    await valkey_store.finish(claimed.lease, Change(1), End("cancelled"))
    lasting = {key.decode() for key in await server.keys_without_ttl()}
    assert not lasting & (runs | places)
    assert f"{prefix}h:k{ADDRESS}" not in lasting
