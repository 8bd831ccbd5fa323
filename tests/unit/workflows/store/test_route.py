"""Which node a request goes to, and what is made of its answer; over links whose answers the test gives."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio.connection import BaseParser
from redis.exceptions import NoScriptError

from pyrula.workflows.errors import ConfigurationError, StoreError, StoreUnavailable
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.address import Address
from pyrula.workflows.store.valkey.funnel import Funnel, _Request
from pyrula.workflows.store.valkey.link import Link
from pyrula.workflows.store.valkey.route import Again, Call, Route
from pyrula.workflows.store.valkey.scripts import script
from pyrula.workflows.store.valkey.topology import SLOTS, Topology, slot_of

SEED = Address("valkeys://user:s3cret@one:7001")
ASKING = wire.command(b"ASKING")


def reply(text: str) -> Exception:
    error = BaseParser.parse_error(text)
    assert isinstance(error, Exception)
    return error


class Nodes:
    """Links by address; each answers from a list of replies."""

    def __init__(self) -> None:
        self.topology = Topology(SEED, 1.0)
        half = SLOTS // 2
        ranges = [
            [0, half - 1, [b"one", 7001, b"id"]],
            [half, SLOTS - 1, [b"two", 7002, b"id"], [b"three", 7003, b"id"]],
        ]
        self.topology.clustered = True
        self.topology._take(SEED, ranges)
        self.asked: list[tuple[str, list[bytes]]] = []
        self.answers: dict[str, list[list[Any] | Exception]] = {}
        self.route = Route(self.topology, 1.0, self.link)

    def link(self, address: Address) -> Link:
        return _Link(self, address)


class _Link(Link):
    def __init__(self, nodes: Nodes, address: Address) -> None:
        super().__init__(address, 1.0)
        self.nodes = nodes
        self.name = address.host

    async def exchange(self, request: Sequence[bytes], replies: int) -> list[Any]:
        self.nodes.asked.append((self.name, list(request)))
        answer = self.nodes.answers[self.name].pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert len(answer) == replies
        return list(answer)


def key_on(node: int, number: int = 0) -> bytes:
    """A key whose slot is in the first or the second half."""
    found = [key for key in (b"{k%d}" % each for each in range(200)) if slot_of(key) // (SLOTS // 2) == node]
    return found[number]


def call(key: bytes | None, text: bytes = b"x") -> Call:
    return Call(text, key, script("append"))


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"123456789", 12739),
        (b"foo", 12182),
        (b"{foo}bar", 12182),
        (b"a{foo}b{bar}", 12182),
        (b"foo{}{bar}", slot_of(b"foo{}{bar}")),
        (b"", 0),
    ],
)
def test_slots_are_those_of_the_server(key: bytes, slot: int) -> None:
    assert slot_of(key) == slot


def test_an_empty_tag_is_none() -> None:
    assert slot_of(b"foo{}{bar}") != slot_of(b"bar")
    assert slot_of(b"foo{{bar}}zap") == slot_of(b"{bar")


def test_a_node_is_another_address_of_the_same_store() -> None:
    node = SEED.at("two", 7002)
    assert node.text == "valkeys://two:7002/0"
    assert node == SEED.at("two", 7002)
    assert node != SEED
    assert "s3cret" not in repr(node)
    connection = node.connection(1.0)
    assert (connection.host, connection.port, connection.username, connection.password) == (
        "two",
        7002,
        "user",
        "s3cret",
    )
    assert Address("unix:///run/valkey.sock").at("two", 7002).text == "valkey://two:7002/0"


async def test_each_node_gets_one_pipeline_and_answers_stand_in_order() -> None:
    nodes = Nodes()
    nodes.answers = {"one": [[1, 3]], "two": [[2, 4]]}
    keys = [key_on(0), key_on(1), key_on(0, 1), key_on(1, 1)]
    assert await nodes.route.send([call(key, b"%d" % place) for place, key in enumerate(keys)]) == [1, 2, 3, 4]
    assert sorted(nodes.asked) == [("one", [b"0", b"2"]), ("two", [b"1", b"3"])]


async def test_a_slot_that_has_moved_is_asked_for_at_its_new_place() -> None:
    nodes = Nodes()
    key = key_on(0)
    nodes.answers = {"one": [[reply(f"MOVED {slot_of(key)} four:7004"), 1]], "four": [[2]]}
    moved, other = await nodes.route.send([call(key), call(key_on(0, 1))])
    assert isinstance(moved, Again)
    assert other == 1
    nodes.topology._doubtful = False
    assert await nodes.route.send([call(key)]) == [2]


async def test_a_slot_that_is_handed_over_is_asked_for_once_at_the_other_node() -> None:
    nodes = Nodes()
    key = key_on(0)
    nodes.answers = {"one": [[reply(f"ASK {slot_of(key)} two:7002")], [5]], "two": [[b"OK", 3]]}
    asked = call(key)
    (answer,) = await nodes.route.send([asked])
    assert isinstance(answer, Again)
    assert await nodes.route.send([asked]) == [3]
    assert nodes.asked[1] == ("two", [ASKING, b"x"])
    assert await nodes.route.send([asked]) == [5]


async def test_a_script_is_loaded_on_the_node_that_lacks_it() -> None:
    nodes = Nodes()
    nodes.answers = {"one": [[NoScriptError(), 1], [b"sha", 2]], "two": [[3]]}
    missing, fine, there = await nodes.route.send([call(key_on(0)), call(key_on(0, 1)), call(key_on(1))])
    assert isinstance(missing, Again)
    assert (fine, there) == (1, 3)
    assert await nodes.route.send([call(key_on(0))]) == [2]
    assert nodes.asked[-1] == ("one", [wire.script_load(script("append")), b"x"])


async def test_a_node_that_is_away_is_in_nobody_elses_way() -> None:
    nodes = Nodes()
    nodes.answers = {"one": [StoreUnavailable("cut")], "two": [[4]]}
    away, fine = await nodes.route.send([call(key_on(0)), call(key_on(1))])
    assert type(away) is StoreUnavailable
    assert fine == 4
    assert nodes.topology._doubtful


async def test_what_passes_and_what_does_not() -> None:
    nodes = Nodes()
    nodes.answers = {"one": [[reply("TRYAGAIN Multiple keys request during rehashing of slot"), reply("WRONGTYPE no")]]}
    passing, wrong = await nodes.route.send([call(key_on(0)), call(key_on(0, 1))])
    assert type(passing) is StoreUnavailable
    assert type(wrong) is StoreError
    assert not nodes.topology._doubtful, "nobody has moved"


async def test_a_slot_that_nobody_has_is_waited_for() -> None:
    nodes = Nodes()
    nodes.topology._owners[slot_of(key_on(0))] = None
    nodes.answers = {"two": [[1]]}
    nobody, fine = await nodes.route.send([call(key_on(0)), call(key_on(1))])
    assert isinstance(nobody, StoreUnavailable)
    assert "has no node for slot" in str(nobody)
    assert fine == 1


async def test_what_must_be_on_disk_is_followed_by_waitaof() -> None:
    nodes = Nodes()
    nodes.topology.synced = True
    nodes.answers = {"one": [[1, [1, 0]], [1, [0, 0]], [1, reply("ERR WAITAOF cannot be used")]]}
    assert await nodes.route.send([call(key_on(0))]) == [1]
    assert nodes.asked[0][1][1].startswith(b"*4\r\n$7\r\nWAITAOF\r\n$1\r\n1\r\n$1\r\n0\r\n")
    (late,) = await nodes.route.send([call(key_on(0))])
    assert "not written to disk in time" in str(late)
    with pytest.raises(ConfigurationError, match="any more"):
        await nodes.route.send([call(key_on(0))])


async def test_requests_of_a_shard_keep_one_lane_while_any_is_under_way() -> None:
    nodes = Nodes()
    funnel = Funnel(nodes.topology, 1.0, 1.0)
    key, there = key_on(0), key_on(1)
    lanes = [_Request(b"", each, None, asyncio.get_running_loop().create_future()) for each in (key, key, there)]
    first = funnel._lane_of(lanes[0], key)
    # the slot goes to the other node while the first request is under way
    nodes.topology.moved(slot_of(key), "two", 7002, SEED)
    assert funnel._lane_of(lanes[1], key) is first
    other = funnel._lane_of(lanes[2], there)
    assert other is not first
    for request in lanes[:2]:
        funnel._settle(request)
    assert funnel._lane_of(lanes[0], key) is other
    await funnel.close()
