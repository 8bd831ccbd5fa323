"""The bounds of a journal."""

import logging
from typing import Any

import pytest

from pyrula.workflows import Context, SerializationError
from pyrula.workflows.engine import run as run_state
from tests.engine.rig import both, play


async def asks_for_ever(ctx: Context) -> None:
    while True:
        try:
            await ctx.now()
        except Exception:  # noqa: BLE001 - the end isn't the body's to handle
            await ctx.now()


@both
def test_a_journal_that_is_full_fails_the_run(
    tasks: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_state, "MAX_ENTRIES", 100)
    monkeypatch.setattr(run_state, "_WARN_ROWS", 10)
    with caplog.at_level(logging.WARNING):
        outcome, host = play(asks_for_ever, tasks=tasks)
    assert outcome.status == "failed"
    assert isinstance(outcome.error, SerializationError)
    assert "its journal is full" in str(outcome.error)
    assert len(host.rows) == 100
    assert caplog.text.count("the limits are") == 3
    again, more = play(asks_for_ever, tasks=not tasks, rows=sorted(host.rows.items()))
    assert str(again.error) == str(outcome.error)
    assert not more.entries


@both
def test_a_journal_that_is_too_large_fails_the_run(tasks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "MAX_JOURNAL", 100_000)
    monkeypatch.setattr(run_state, "_WARN_BYTES", 10_000)

    async def body(ctx: Context) -> Any:
        while True:
            await ctx.step(lambda: "x" * 20_000)

    outcome, host = play(body, tasks=tasks)
    assert outcome.status == "failed"
    assert "its journal is full" in str(outcome.error)
    assert sum(map(len, host.rows.values())) < 130_000
