"""When a request is sent again, over a link whose answers the test gives."""

from collections.abc import Sequence
from typing import Any

import pytest
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from pyrula.workflows.errors import LeaseLost, PyrulaError, StoreError, StoreUnavailable
from pyrula.workflows.store.port import Batch, Token
from pyrula.workflows.store.valkey import wire
from pyrula.workflows.store.valkey.address import Address
from pyrula.workflows.store.valkey.appender import Appender
from pyrula.workflows.store.valkey.link import Link
from pyrula.workflows.store.valkey.route import Route
from pyrula.workflows.store.valkey.scripts import script
from pyrula.workflows.store.valkey.session import Session
from pyrula.workflows.store.valkey.topology import Topology

A, B = b"a" * 16, b"b" * 16
TOKEN = Token(1, 1)
LOAD = wire.script_load(script("append"))


class FakeLink(Link):
    """Answers exchange by exchange: a list of replies, or an error to raise."""

    def __init__(self, *answers: Sequence[Any] | Exception) -> None:
        super().__init__(Address("valkey://fake"), 1.0)
        self.answers = list(answers)
        self.requests: list[list[bytes]] = []
        self.drops = 0

    async def exchange(self, request: Sequence[bytes], replies: int) -> list[Any]:
        assert replies == len(request)
        self.requests.append(list(request))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert len(answer) == replies
        return list(answer)

    async def drop(self, *, wait: bool = False) -> None:
        self.drops += 1


def route(link: Link) -> Route:
    return Route(Topology(Address("valkey://fake"), 1.0), 1.0, lambda _: link)


def appender(link: Link, patience: float = 5.0) -> Appender:
    return Appender(route(link), "n", b"sender", lambda source: (b"p:" + source, b"j:" + source), 60, patience)


def batch(source: bytes, position: int, token: Token = TOKEN) -> Batch:
    return Batch(source, token, [(position, 0, b"x")], position)


def sent(request: bytes) -> tuple[bytes, int, int]:
    """Source, position and number of an append."""
    parts = request.split(b"\r\n")
    source = next(part[2:] for part in parts if part.startswith(b"p:"))
    number = next(part for part in parts if part.startswith(b"sender."))
    return source, int(parts[-4].split(b".")[0]), int(number[7:])


async def test_after_a_refused_batch_all_later_ones_of_its_source_go_again_with_new_numbers() -> None:
    """Another process may load the script between two commands of the pipeline."""
    link = FakeLink([NoScriptError(), 1, 1, 1], [b"sha", 1, 1])
    batches = [batch(A, 1), batch(B, 2), batch(A, 3), batch(B, 4)]
    assert await appender(link).append(batches) == [None] * 4
    assert [sent(request) for request in link.requests[0]] == [(A, 1, 1), (B, 2, 2), (A, 3, 3), (B, 4, 4)]
    assert link.requests[1][0] == LOAD
    assert [sent(request) for request in link.requests[1][1:]] == [(A, 1, 5), (A, 3, 6)]
    assert link.drops == 0


async def test_a_pipeline_without_an_answer_is_sent_again_whole_on_a_new_connection() -> None:
    link = FakeLink(StoreUnavailable("cut"), [1, 1])
    assert await appender(link).append([batch(A, 1), batch(B, 2)]) == [None, None]
    assert [sent(request)[2] for request in link.requests[1]] == [3, 4]
    assert link.drops == 1


async def test_a_replica_is_left_and_only_what_it_refused_is_sent_again() -> None:
    link = FakeLink([1, ReadOnlyError()], [1])
    assert await appender(link).append([batch(A, 1), batch(B, 2)]) == [None, None]
    assert [sent(request)[:2] for request in link.requests[1]] == [(B, 2)]
    assert link.drops == 1


async def test_what_can_never_work_is_answered_and_not_sent_again() -> None:
    link = FakeLink([ResponseError("WRONGTYPE"), 0, NoScriptError()], [b"sha", 1])
    wrong, lost, fine = await appender(link).append([batch(A, 1), batch(B, 2), batch(bytes(16), 3)])
    assert type(wrong) is StoreError
    assert isinstance(lost, LeaseLost)
    assert fine is None
    assert len(link.requests[1]) == 2


async def test_a_script_that_can_not_be_loaded_ends_it() -> None:
    link = FakeLink([NoScriptError()], [ResponseError("ERR Error compiling script"), NoScriptError()])
    with pytest.raises(PyrulaError, match="compiling"):
        await appender(link).append([batch(A, 1)])


async def test_a_flush_is_given_up_when_its_patience_is_used_up() -> None:
    link = FakeLink(StoreUnavailable("first"), StoreUnavailable("second"))
    with pytest.raises(StoreUnavailable, match="first"):
        await appender(link, patience=0).append([batch(A, 1)])
    assert len(link.requests) == 1


def session(link: Link, patience: float = 5.0) -> Session:
    session = Session(Topology(Address("valkey://fake"), 1.0), 1.0, patience)
    session._idle.append(route(link))
    return session


async def test_a_command_refused_by_a_replica_is_asked_on_a_new_connection() -> None:
    link = FakeLink([b"fine", ReadOnlyError()], [b"fine", b"done"])
    assert await session(link).ask((b"GET", b"one"), (b"GET", b"two")) == [b"fine", b"done"]
    assert link.drops == 1


async def test_a_script_is_loaded_once_more_if_it_went_again() -> None:
    link = FakeLink([NoScriptError()], [b"sha", NoScriptError()], [b"sha", b"answer"])
    assert await session(link).run(script("append"), [b"k"], []) == b"answer"
    assert link.requests[1][0] == LOAD
    assert link.drops == 0


async def test_a_script_that_can_not_be_loaded_is_an_error_at_once() -> None:
    link = FakeLink([NoScriptError()], [ResponseError("ERR nonsense"), NoScriptError()])
    with pytest.raises(StoreError, match="nonsense"):
        await session(link).run(script("append"), [b"k"], [])
    assert link.answers == []
