"""docs/formats-records.md says what is in the store of records' runs: every key and field is in its tables, and the
reverse."""

import re
from pathlib import Path

from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Applied, Child, Interrupt, Message, Wait
from pyrula.workflows.store.runs import Query
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.records.rig import ADDRESS, Rig
from tests.conformance.server import Server

TEXT = (Path(__file__).parents[3] / "docs" / "formats-records.md").read_text(encoding="utf-8")


def first_columns(after: str) -> list[str]:
    lines = TEXT[TEXT.index(after) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    names: list[str] = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        names += [name.strip().strip("`") for name in line.split("|")[1].split(",")]
    return names


async def fields(server: Server, key: str) -> set[str]:
    return {name.decode() for name in await server.hash(key.encode())}


async def test_every_key_and_field_is_documented(valkey_store: ValkeyStore, server: Server) -> None:
    rig = Rig(valkey_store, valkey_store)
    await rig.claim()
    run = str(rig.id(7))
    for message in (Message("signal", "s1", "go"), Message("update", "u1", "add"), Message("cancel", "cancel")):
        await valkey_store.deliver(run, message)
    await rig.change(
        7,
        1,
        status=RunStatus.PAUSED,
        error=b"{}",
        rows=[(0, b"row")],
        consumed=[1, 2],
        applied=[Applied("u1", "ok", b"1")],
        opened=[Interrupt("i0", b"1")],
        children=[Child("03-01JDZ8Z5Y3Q4R5S6T7V8W9XABC")],
        events=[b"[]"],
        attempt=2,
    )
    await valkey_store.unpause(run)
    await rig.change(7, 2, status=RunStatus.SLEEPING, waits=[Wait("sleep", "", 1.5)])
    await valkey_store.ask(run, Query("q1", run, "items", b"{}"), seconds=60)
    prefix = f"{{{server.namespace}:{rig.id(7).shard}}}"
    documented = {
        name.replace("{N:k}", prefix).replace("<address>", f"k{ADDRESS}").replace("<run id>", run)
        for name in first_columns("A run has no key")
    }
    found = {key.decode() for key in await server.keys()}
    others = {f"{{{server.namespace}}}meta"} | {key for key in found if re.match(re.escape(prefix) + "[pj]:", key)}
    assert found - others == documented
    assert await fields(server, f"{prefix}s:k{ADDRESS}") == set(first_columns("Fields of `{N:k}s:"))
    expected = set(first_columns("Fields of `{N:k}r:"))
    assert await fields(server, f"{prefix}r:{run}") == expected - {"gone", "value", "finished", "params"}
    await valkey_store.forget_record(rig.registration, rig.token, rig.id(7))
    assert await fields(server, f"{prefix}r:{run}") == {"gone"}
    await rig.end(8, 1, "failed", params=b"{}", rows=[(0, b"kept")])
    assert await server.hash(f"{prefix}j:{rig.id(8)}".encode()) == {b"0": b"kept"}
    assert await fields(server, f"{prefix}r:{rig.id(8)}") == expected - {"gone"}


async def test_the_state_of_a_run_has_the_documented_fields(valkey_store: ValkeyStore, server: Server) -> None:
    rig = Rig(valkey_store, valkey_store)
    await rig.claim()
    run = str(rig.id(7))
    await valkey_store.deliver(run, Message("cancel", "cancel"))
    await rig.change(7, 1, status=RunStatus.PAUSED)
    await valkey_store.unpause(run)
    await rig.change(7, 2, status=RunStatus.SLEEPING, waits=[Wait("sleep", "", 1.5)])
    script = (
        "local names = {} for name in pairs(cmsgpack.unpack(redis.call('HGET', KEYS[1], 'here'))) do "
        "names[#names + 1] = name end return names"
    )
    key = f"{{{server.namespace}:{rig.id(7).shard}}}r:{run}"
    found = {name.decode() for name in await server.call("EVAL", script, 1, key)}
    (row,) = [line for line in TEXT.splitlines() if line.startswith("| `here`")]
    told = row.split("MessagePack:")[1]
    assert found == set(re.findall(r"\b([a-z]) ", told))
