"""`pyrula runs` on a real store."""

import argparse
import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from pyrula.cli import main
from pyrula.cli.runs import ago_or_time
from pyrula.workflows import ValkeyStore, WorkflowClient
from tests.conformance.server import Server


@pytest.fixture
async def server(valkey: str, namespace: str) -> Server:
    return Server(valkey, namespace)


async def fill(server: Server) -> list[str]:
    store = ValkeyStore(server.url, namespace=server.namespace)
    async with WorkflowClient(store) as client:
        runs = [(await client.submit("cart", owner=owner)).run_id for owner in ("ada", "ben", "ada")]
        await client.cancel("cart", runs[0])
    return runs


async def command(server: Server, *arguments: str) -> int:
    given = ["runs", "--store", server.url, "--namespace", server.namespace, *arguments]
    return await asyncio.to_thread(main, given)


async def test_it_lists_and_counts(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        runs = await fill(server)
        assert await command(server) == 0
        told = capsys.readouterr().out
        assert all(run_id in told for run_id in runs)
        assert "cancelled" in told
        assert "owner ben" in told
        assert await command(server, "--owner", "ada", "--status", "queued", "--since", "1h", "--json") == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["run_id"] == runs[2]
        assert await command(server, "--limit", "2") == 0
        *_, more = capsys.readouterr().out.splitlines()
        assert more.startswith("there are more: --cursor ")
        assert await command(server, "--limit", "2", "--cursor", more.split()[-1]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1
        assert await command(server, "--counts", "--name", "cart") == 0
        told = capsys.readouterr().out
        assert "2  queued" in told
        assert "3  in all" in told
        assert await command(server, "--counts", "--json") == 0
        assert json.loads(capsys.readouterr().out)["by_status"]["cancelled"] == 1
        assert await command(server, "--status", "gone") == 2
        assert "status 'gone' is none of" in capsys.readouterr().err
    finally:
        await server.clear()
        await server.close()


async def test_no_runs_are_told_of_beside_the_output(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        for arguments, said in (
            ((), "no runs in ValkeyStore("),
            (("--json",), "no runs in ValkeyStore("),
            (("--name", "cart"), "no runs of those asked for in ValkeyStore("),
        ):
            assert await command(server, *arguments) == 0
            told = capsys.readouterr()
            assert told.out == ""
            assert told.err.startswith(said)
            assert f"namespace={server.namespace!r}" in told.err
        await fill(server)
        assert await command(server) == 0
        assert capsys.readouterr().err == ""
    finally:
        await server.clear()
        await server.close()


def test_when_is_told_in_two_ways() -> None:
    assert ago_or_time("90s") == timedelta(seconds=90)
    assert ago_or_time("7d") == timedelta(days=7)
    assert ago_or_time("2026-01-02") == datetime(2026, 1, 2, tzinfo=UTC)
    assert ago_or_time("2026-01-02T03:04:05+02:00").utcoffset() == timedelta(hours=2)  # type: ignore[union-attr]
    with pytest.raises(argparse.ArgumentTypeError, match="neither like 30m"):
        ago_or_time("yesterday")
