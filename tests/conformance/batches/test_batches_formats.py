"""docs/formats-runs.md says what triggers keep in the store: every key found there is in its table, and the reverse."""

import re
from pathlib import Path
from typing import Any

import pyrula.workflows.store.valkey as package
from pyrula.workflows.codec import loads
from pyrula.workflows.store.ids import digest
from pyrula.workflows.store.valkey.run_batches import batch_script
from tests.conformance.batches.rig import START, Rig
from tests.conformance.server import Server
from tests.conformance.test_formats import check, matcher

TEXT = (Path(__file__).parents[3] / "docs" / "formats-runs.md").read_text(encoding="utf-8")
SECTION = TEXT.split("\n## Triggers\n")[1].split("\n## ")[0]
SCRIPTS = ["feed", "take", "plan", "drop", "list"]
LIBRARY = (Path(package.__file__).parent / "lua" / "batches" / "library.lua").read_text(encoding="utf-8")


def keys() -> list[str]:
    rows = [line.split("|")[1] for line in SECTION.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall("`([^`]+)`", row)]


async def test_every_key_is_documented(server: Server, on_valkey: Rig) -> None:
    for value in range(4):
        await on_valkey.feed(value)
    tag = f"{{{server.namespace}:0}}"
    found = {key.decode() for key in await server.keys()} - {f"{{{server.namespace}}}meta", f"{tag}meta"}
    check(found, matcher(keys(), **{"<digest>": "[0-9a-f]{32}", "N:k": f"{server.namespace}:0"}))


async def test_the_values_are_as_documented(server: Server, on_valkey: Rig) -> None:
    tag = f"{{{server.namespace}:0}}".encode()
    for value in range(5):
        fed = await on_valkey.feed({"n": value}, "k", id=f"e{value}")
        if fed.head is not None:
            await on_valkey.store.plan_batch(fed.head, b'["run","1",null]')
    # recorded once: another digest would lose what is gathered
    own = digest("batch", "digest", "k", size=16)
    assert own.hex() == "e1dcdab58dbeff5aa8023a985f1d2f3f"
    assert await server.call("GET", tag + b"te:" + own.hex().encode()) == b'{"n":3},{"n":4}'
    due = digest("due", "digest", size=16).hex().encode()
    moments = dict(await scores(server, tag + b"td:" + due))
    assert moments == {b"o" + own: START + 10, b"s" + own: START + 0.3}
    ids = [
        await server.call("GET", tag + b"ti:" + digest("event", "digest", "k", f"e{n}", size=16).hex().encode())
        for n in range(5)
    ]
    assert [known[:1] for known in ids] == [b"", b"", b"#", b"", b""]
    (sealed,) = await server.call("LRANGE", tag + b"ts:" + own.hex().encode(), 0, -1)
    unpacked = await server.call("EVAL", "return cmsgpack.unpack(ARGV[1])", 0, sealed)
    # without an owner there is no ninth
    batch, params, count, reason, opened, event, plan, key = unpacked
    assert (count, reason, opened, loads(key)) == (3, b"max_events", START * 1e6, "k")
    assert ids[2] == b"#" + batch
    assert event == digest("event", "digest", "k", "e2", size=16).hex().encode()
    assert loads(params) == {"key": "k", "events": [{"n": 0}, {"n": 1}, {"n": 2}], "count": 3}
    assert loads(plan) == ["run", "1", None]
    packed = await server.call("HGET", tag + b"batch", own)
    names = await server.call("EVAL", _FIELDS, 0, packed)
    listed = re.search(r"An open batch is a packed table: (.*?); times", LIBRARY, re.DOTALL)
    assert listed is not None
    assert set(names) == {b"i", b"k", b"n", b"b", b"o", b"d", b"w", b"m"}
    assert {name.encode() for name in re.findall(r"(?:^|, |-- )(\w) ", listed[1])} == set(names) | {b"u", b"x"}


async def test_the_values_of_an_owners_batch_are_as_documented(server: Server, on_valkey: Rig) -> None:
    tag = f"{{{server.namespace}:0}}".encode()
    for value in range(4):
        await on_valkey.feed(value, "k", id=f"e{value}", owner="ann é")
    own = digest("batch", "digest", "k", "ann é", size=16)
    assert own.hex() == "ccf46142f22649440af21a41adf8c8e9"
    (sealed,) = await server.call("LRANGE", tag + b"ts:" + own.hex().encode(), 0, -1)
    unpacked = await server.call("EVAL", "return cmsgpack.unpack(ARGV[1])", 0, sealed)
    assert (len(unpacked), unpacked[2], unpacked[8]) == (9, 3, "ann é".encode())
    assert unpacked[5] == digest("event", "digest", "k", "ann é", "e2", size=16).hex().encode()
    assert await server.call("GET", tag + b"ti:" + unpacked[5]) == b"#" + unpacked[0]
    assert await server.call("GET", tag + b"te:" + own.hex().encode()) == b"3"
    packed = await server.call("HGET", tag + b"batch", own)
    assert await server.call("EVAL", "return cmsgpack.unpack(ARGV[1]).u", 0, packed) == "ann é".encode()


_FIELDS = "local names = {} for name in pairs(cmsgpack.unpack(ARGV[1])) do names[#names + 1] = name end return names"


async def scores(server: Server, key: bytes) -> list[tuple[bytes, float]]:
    flat: Any = await server.call("ZRANGE", key, 0, -1, "WITHSCORES")
    return [(member, float(score) / 1e6) for member, score in zip(flat[::2], flat[1::2], strict=True)]


def test_the_scripts_are_headed_by_what_they_take_and_give() -> None:
    for name in SCRIPTS:
        text = batch_script(name).text.decode()
        assert text.startswith("#!lua")
        for word in ("KEYS", "ARGV", "reply", "Keeps:"):
            assert re.search(f"^--.*{word}", text, re.MULTILINE), f"{name}.lua doesn't tell {word}"
        # what a server at its memory limit must refuse is refused before the script starts
        assert ("flags=allow-oom" in text.split("\n")[0]) == (name == "drop")


def test_a_script_touches_only_the_keys_it_names() -> None:
    """What a Cluster insists on."""
    for name in SCRIPTS:
        named = set(re.findall(r"redis\.call\('\w+', ([\w\[\]]+)", batch_script(name).text.decode()))
        assert named <= {"META", "OPEN", "EVENTS", "SEALED", "DUE", "KEYS[1]", "KEYS[6]"}
