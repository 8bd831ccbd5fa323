"""The same random calls on MemoryStore and ValkeyStore, by two processes each: the same answers, the same journal."""

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyrula.workflows.errors import PyrulaError, StaleToken
from pyrula.workflows.store.memory import MemoryStore
from pyrula.workflows.store.port import Batch, SourceStore, Token
from pyrula.workflows.store.valkey import ValkeyStore
from tests.conformance.server import ClusterServer, Server

processes = st.integers(0, 1)
# which of the tokens seen so far, counted from the last
tokens = st.integers(0, 2)
# around the bounds of buckets
positions = st.integers(0, 3) | st.integers(1020, 1030) | st.integers(2040, 2055) | st.integers(5000, 5400)
witnesses = st.sampled_from([None, b"", b"log", b"other log"])
rows = st.lists(st.tuples(positions, st.integers(0, 3), st.sampled_from([b"", b"a", b"b", b"long" * 30])), max_size=30)
steps = st.one_of(
    st.tuples(st.just("claim"), processes, st.integers(1, 4), st.none() | tokens),
    st.tuples(st.just("append"), processes, st.lists(st.tuples(tokens, rows, positions, witnesses), max_size=3)),
    st.tuples(st.just("append"), processes, st.lists(st.tuples(tokens, rows, positions, witnesses), max_size=3)),
    st.tuples(st.just("prune"), processes, tokens, positions, witnesses),
    st.tuples(st.just("lower"), processes, tokens, positions, st.booleans()),
    st.tuples(st.just("refresh"), processes, tokens),
    st.tuples(st.just("release"), processes, tokens),
)
names = itertools.count()


class Bench:
    """Two stores, each held by two processes, alive over all examples of a test."""

    def __init__(self, server: Callable[[], Server]) -> None:
        self.runner = asyncio.Runner()
        memory = MemoryStore()
        self.server = self.runner.run(_made(server))
        url, namespace = self.server.url, self.server.namespace
        self.pairs: list[tuple[SourceStore, SourceStore]] = [
            (memory, ValkeyStore(url, namespace=namespace)),
            (memory.twin(), ValkeyStore(url, namespace=namespace)),
        ]
        for pair in self.pairs:
            for store in pair:
                self.runner.run(store.open())

    def close(self) -> None:
        for pair in self.pairs:
            for store in pair:
                self.runner.run(store.close())
        self.runner.run(self.server.clear())
        self.runner.run(self.server.close())
        self.runner.close()


async def _made(server: Callable[[], Server]) -> Server:
    # a client of a cluster belongs to the loop it is made in
    return server()


@pytest.fixture(params=["valkey", "cluster"])
def bench(request: pytest.FixtureRequest, namespace: str) -> Iterator[Bench]:
    given = request.getfixturevalue(request.param)
    if request.param == "valkey":
        bench = Bench(lambda: Server(given, namespace))
    else:
        bench = Bench(lambda: ClusterServer(given.url, namespace))
    yield bench
    bench.close()


async def call(store: SourceStore, source: bytes, seen: list[Token], step: tuple) -> object:  # type: ignore[type-arg]
    """One step's outcome, errors by kind."""

    def token(back: int) -> Token:
        return seen[-1 - back % len(seen)]

    kind, _, *rest = step
    try:
        if kind == "claim":
            generation, replaces = rest
            return await store.claim_source(source, generation, replaces=None if replaces is None else token(replaces))
        if kind == "append":
            batches = [Batch(source, token(back), some, high, witness) for back, some, high, witness in rest[0]]
            return [type(answer) for answer in await store.append_rows(batches)]
        if kind == "prune":
            return await store.prune_source(source, token(rest[0]), rest[1], rest[2])
        if kind == "lower":
            return await store.lower_source(source, token(rest[0]), rest[1], forget=rest[2])
        if kind == "refresh":
            return await store.refresh_source(source, token(rest[0]))
        return await store.release_source(source, token(rest[0]))
    except StaleToken as stale:
        return stale.stored
    except PyrulaError as error:
        return type(error)


@given(st.lists(steps, max_size=25))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_stores_answer_alike(bench: Bench, example: list[tuple]) -> None:  # type: ignore[type-arg]
    source = next(names).to_bytes(16)
    seen = [Token(1, 1)]

    async def run() -> None:
        for step in [*example, ("claim", 0, 4, None), ("claim", 0, 9, None)]:
            memory, valkey = bench.pairs[step[1]]
            expected = await call(memory, source, seen, step)
            assert await call(valkey, source, seen, step) == expected, step
            token = expected if isinstance(expected, Token) else getattr(expected, "token", None)
            if token is not None and token not in seen:
                seen.append(token)

    bench.runner.run(run())
