"""docs/formats.md says what is in the store: every key and field found there is in its tables, and the reverse."""

import re
from pathlib import Path

import pytest

from pyrula.kafka.record import record_identity
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.replay.journal import DELIVERIES, NOTES, Entry, decode_row, encode_row
from pyrula.workflows.store.port import Batch
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.server import Server

TEXT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
SOURCE = bytes(range(16))
ROW = Entry("value", "2", "step", "charge", 2, None, b'{"id":"c-1","cents":[1,2]}')


def table_after(text: str) -> list[str]:
    """The first column of the first table after a text."""
    assert text in TEXT
    lines = TEXT[TEXT.index(text) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    column = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        column.append(line.split("|")[1].strip().strip("`"))
    return column


def matcher(names: list[str], **parts: str) -> list[re.Pattern[str]]:
    """Documented names with `<parts>` and single letters filled in."""
    patterns = []
    for name in names:
        pattern = re.escape(name)
        for part, meaning in parts.items():
            pattern = pattern.replace(re.escape(part), meaning)
        patterns.append(re.compile(pattern))
    return patterns


def check(found: set[str], patterns: list[re.Pattern[str]]) -> None:
    unknown = {name for name in found if not any(pattern.fullmatch(name) for pattern in patterns)}
    assert unknown == set(), "in the store, not in docs/formats.md"
    unused = {pattern.pattern for pattern in patterns if not any(pattern.fullmatch(name) for name in found)}
    assert unused == set(), "in docs/formats.md, not in the store"


async def fields(server: Server, key: str) -> set[str]:
    return {name.decode() for name in await server.hash(key.encode())}


async def fill(store: ValkeyStore, server: Server) -> None:
    """A source whose state has every field."""
    first = (await store.claim_source(SOURCE, 1)).token
    rows = [(position, 0, b"x") for position in (5, 6, 1030, 5000)]
    assert await store.append_rows([Batch(SOURCE, first, rows, 5000, b"log")]) == [None]
    await store.prune_source(SOURCE, first, 1025, b"log")
    await store.prune_source(SOURCE, first, 1029, None)
    assert await store.append_rows([Batch(SOURCE, first, [(1029, 1, b"y")], 1029)]) == [None]
    await store.prune_source(SOURCE, first, 1030, None)
    crashed = ValkeyStore(server.url, namespace=server.namespace)
    await crashed.claim_source(SOURCE, 2)
    await store.claim_source(SOURCE, 3)
    await crashed.close()


async def test_every_key_and_field_is_documented(valkey_store: ValkeyStore, server: Server) -> None:
    await fill(valkey_store, server)
    await valkey_store.append_rows([Batch(SOURCE, (await valkey_store.claim_source(SOURCE, 4)).token, [], 5000)])
    pid, shard = SOURCE.hex(), int.from_bytes(SOURCE) % 16
    parts = {"<pid>": pid, "<bucket>": "(0|[1-9][0-9]*)", "N:k": f"{server.namespace}:{shard}", "N": server.namespace}
    check({key.decode() for key in await server.keys()}, matcher(table_after("## Keys in the store"), **parts))
    meta, source = f"{{{server.namespace}}}meta", f"{{{server.namespace}:{shard}}}p:{pid}"
    check(await fields(server, meta), matcher(table_after("Fields of `{N}meta`")))
    check(await fields(server, source), matcher(table_after("Fields of `{N:k}p:<pid>`"), **parts))
    bucket = f"{{{server.namespace}:{shard}}}j:{pid}:4"
    assert await fields(server, bucket) == {"5000.0"}
    assert table_after("Fields of `{N:k}j:<pid>:<bucket>`") == ["<position>.<index>"]


async def test_the_values_of_a_source_are_as_documented(valkey_store: ValkeyStore, server: Server) -> None:
    await fill(valkey_store, server)
    state = await server.hash(b"{%b:%d}p:%b" % (server.namespace.encode(), SOURCE[15] % 16, SOURCE.hex().encode()))
    told = {name.decode(): value.decode() for name, value in state.items()}
    assert {name: told[name] for name in ("token", "held", "crashes", "high", "log", "below", "swept")} == {
        "token": "1.3",
        "held": "1",
        "crashes": "2",
        "high": "5000",
        "log": "log",
        "below": "1030",
        "swept": "1030",
    }
    # the first bucket went whole; the second was swept of its only row under `below`, then written to, then swept
    assert {name: value for name, value in told.items() if re.fullmatch("b[0-9]+", name)} == {"b1": "0", "b4": "1"}
    assert re.fullmatch("[0-9a-f]{16}", told["claimant"])
    assert re.fullmatch("[0-9a-f]{16}", told["claim"])
    assert re.fullmatch(f"{told['claimant']}|[0-9a-f]{{16}}\\.[0-9]+", told["seq"])
    meta = await server.hash(b"{%b}meta" % server.namespace.encode())
    assert (meta[b"format"], meta[b"shards"]) == (b"1", b"16")
    assert re.fullmatch(b"[0-9a-f]{32}", meta[b"instance"])
    assert meta[b"instance"].decode() == valkey_store.instance_id


async def test_a_namespace_of_another_format_is_refused_by_name(valkey_store: ValkeyStore, server: Server) -> None:
    await server.call("HSET", b"{%b}meta" % server.namespace.encode(), "format", "2")
    with pytest.raises(ConfigurationError, match="has format 2, this version of Pyrula reads 1"):
        await valkey_store.open()


def test_a_partitions_id_is_as_documented() -> None:
    # recorded once: another digest would lose every journal of a running group
    assert record_identity("default", "billing", "orders", 7).hex() == "d32977c7e6a651cf7adac9b6e0fc42c6"


def test_a_row_is_as_documented() -> None:
    written = encode_row(ROW, "193d2f8a1c0.8a9136aa.~")
    assert written == (b'[1,"value","2","step","charge",2,null,{"id":"c-1","cents":[1,2]},"193d2f8a1c0.8a9136aa.~"]')
    assert decode_row(written) == (ROW, "193d2f8a1c0.8a9136aa.~")
    names = ["format", "kind", "op", "opkind", "name", "clock", "message", "value", "fingerprint"]
    assert f"[{', '.join(names)}]" in TEXT
    assert table_after("## Journal rows") == [str(place) for place in range(9)]
    kinds = re.search(r"^\| 1 \| kind \| (.*) \|$", TEXT, re.MULTILINE)
    assert kinds is not None
    assert set(re.findall("`(\\w+)`", kinds[1])) == DELIVERIES
    notes = " ".join(table_after("go on. The notes:"))
    assert set(re.findall("\\w+", notes)) == NOTES
