"""Whom a loop that stands still is blamed on."""

import asyncio
import logging
import sys
import threading

import pytest

from pyrula.kafka import stalls
from pyrula.kafka.stalls import StallWatch
from pyrula.workflows import Context, workflow
from pyrula.workflows.clock import SystemClock
from pyrula.workflows.execution import Execution


class Clock:
    """A monotonic clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stalls, "monotonic", clock)
    return clock


@workflow(name="orders")
async def orders(ctx: Context) -> None:
    pass


@pytest.fixture
def ctx() -> Context:
    return Context(Execution(orders, "0a-kabc-3-17", object(), (), clock=SystemClock()))  # type: ignore[arg-type]


def body(ctx: Context) -> str | None:
    def deep_inside() -> str | None:
        return stalls._blamed(sys._getframe())

    return deep_inside()


def test_the_run_is_known_by_its_context(ctx: Context) -> None:
    blamed = body(ctx)
    assert blamed is not None
    assert "0a-kabc-3-17" in blamed
    assert "orders" in blamed


def test_nobody_is_blamed_outside_of_runs() -> None:
    assert stalls._blamed(sys._getframe()) is None
    assert stalls._blamed(None) is None


async def test_a_late_beat_is_told_with_its_length(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    watch = StallWatch(session_timeout=10)
    watch._thread_id = threading.get_ident()
    watch._schedule()
    with caplog.at_level(logging.WARNING):
        clock.now += stalls.BEAT_SECONDS + stalls.STALL_SECONDS
        watch._beat()
        assert caplog.records == []
        clock.now += stalls.BEAT_SECONDS + 7
        watch._holder = " in run r"
        watch._beat()
        clock.now += stalls.BEAT_SECONDS + 3
        watch._beat()
    watch.stop()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "for 7.0 s in run r" in told[0]
    assert "for 3.0 s (in no run" in told[1]


async def test_its_thread_ends_with_it() -> None:
    watch = StallWatch(session_timeout=10)
    watch.start()
    thread = next(one for one in threading.enumerate() if one.name == "pyrula-stalls")
    watch.stop()
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
