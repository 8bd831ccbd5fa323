"""`pyrula backfill`: what its arguments mean, what is refused before anything is read, and what is shown."""

import argparse
import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pyrula.cli import main
from pyrula.cli.backfill import _partitions
from pyrula.cli.backfill_shown import Bars, Speed, line_of_status, lines_of
from pyrula.kafka import Binding, KafkaOptions, KafkaWorker
from pyrula.workflows import BackfillReport, BackfillStatus, Context, Limit, MemoryStore, PartitionReport, workflow


@workflow(name="cli_double")
async def double(ctx: Context, number: int) -> int:
    return number * 2


@workflow(name="cli_limited", concurrency=Limit("key", max=1))
async def limited(ctx: Context, key: str) -> None: ...


def worker_of(*bindings: Binding) -> KafkaWorker:
    return KafkaWorker(bindings, store=MemoryStore(), kafka=KafkaOptions(bootstrap_servers="127.0.0.1:1"))


worker = worker_of(Binding(double, topic="orders", group="billing"))
several = worker_of(Binding(double, topic="orders", group="billing"), Binding(double, topics=["a", "b"], group="audit"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--start", "9", "--end", "8"], "the end (offset 8) is before the start (offset 9)"),
        (["--start", "2026-01-01T00:00"], "has no time zone"),
        (["--start", "yesterday"], "start='yesterday' is no end of a range"),
        (["--where", "json:nothing"], "where='json:nothing' can't be imported"),
        (["--where", "nothing"], "where='nothing' is no name like shop.orders:is_german"),
        (["--workflow", "other"], "worker has --workflow cli_double --group billing (of orders)"),
        (["--workflow", "cli_limited", "--topic", "orders"], "workflow cli_limited has concurrency="),
        (["--id", "a b"], "'a b' can't be the id of a backfill"),
        (["--dry-run", "--detach"], "--dry-run runs here"),
        (["pause", "x", "--id", "y"], "the id is given twice, as 'x' and as --id 'y'"),
        (["list"], "keeps its store in memory"),
        (["--output", "orders"], "output='orders' is a topic it reads"),
    ],
)
def test_what_cannot_be_meant(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["backfill", f"{__name__}:worker", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--topic", "c"], ["--group", "audit"]])
def test_a_worker_with_several_bindings_asks_which(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(["backfill", f"{__name__}:several", *arguments]) == 2
    said = capsys.readouterr().err
    assert ("which binding is meant?" in said) or ("say which topic=; binding audit/a,b reads 2" in said)


@pytest.mark.parametrize(
    ("text", "numbers"), [("3", [3]), ("0,3-5", [0, 3, 4, 5]), (" 1 , 2 - 3 ", [1, 2, 3]), ("7-7", [7])]
)
def test_lists_of_partitions(text: str, numbers: list[int]) -> None:
    assert _partitions(text) == numbers


@pytest.mark.parametrize("text", ["", "1-0", "a", "1,", "-1", "1.5"])
def test_what_is_no_list_of_partitions(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no list of partitions like 0,3-5"):
        _partitions(text)


def partition(number: int, position: int, **more: object) -> PartitionReport:
    state = "done" if position == 100 else "running"
    return PartitionReport(partition=number, state=state, start=0, end=100, position=position, **more)  # type: ignore[arg-type]


def report(*partitions: PartitionReport, **more: object) -> BackfillReport:
    told: dict[str, object] = {
        "id": "b",
        "status": BackfillStatus.RUNNING,
        "workflow": "double",
        "topic": "orders",
        "group": "billing",
        "start": "earliest",
        "end": "latest",
        "where": None,
        "max_concurrency": 16,
        "rate": None,
        "output": None,
        "dead_letter_topic": "orders.billing.dlq",
        "partitions": partitions,
        **more,
    }
    return BackfillReport(**told)  # type: ignore[arg-type]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_for_each_partition_with_its_rate_and_the_time_left() -> None:
    stream = Terminal()
    bars = Bars(stream)
    bars.show(report(partition(0, 0), partition(1, 90)), 0.0)
    stream.truncate(0)
    stream.seek(0)
    bars.show(report(partition(0, 20, read=20, completed=18, failed=2), partition(1, 100)), 2.0)
    up, first, second, summary = stream.getvalue().replace("\n", "").split("\r\x1b[2K")
    assert up == "\x1b[3A"
    assert "20%  20 of 100         10/s  8s left" in first
    assert second.endswith("100%  100 of 100         done")
    assert "1 of 2 partitions, 60%  20 read, 18 completed  2 failed  10 records/s, 5s left" in summary


def test_bars_make_room_for_a_line_of_the_log() -> None:
    stream = Terminal()
    bars = Bars(stream)
    bars.step_aside()
    assert stream.getvalue() == ""
    bars.show(report(partition(0, 0), partition(1, 90)), 0.0)
    stream.truncate(0)
    stream.seek(0)
    for _ in range(2):
        bars.step_aside()
    assert stream.getvalue() == "\x1b[3A\x1b[J"
    bars.show(report(partition(0, 20), partition(1, 100)), 2.0)
    assert stream.getvalue().count("A") == 1


def test_without_a_terminal_a_line_now_and_then() -> None:
    stream = io.StringIO()
    bars = Bars(stream)
    for at in (0.0, 1.0, 2.0, 6.0):
        bars.show(report(partition(0, int(at))), at)
    bars.show(report(partition(0, 100), status=BackfillStatus.COMPLETED), 6.5)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("backfill b: completed")


def test_what_is_paused_says_how_it_goes_on() -> None:
    stream = io.StringIO()
    Bars(stream).show(report(partition(0, 1), status=BackfillStatus.PAUSED), 0.0)
    assert "paused" in stream.getvalue()
    assert stream.getvalue().endswith("pyrula backfill MODULE:WORKER resume b lets it go on\n")


def test_the_rate_is_that_of_the_last_seconds() -> None:
    speed = Speed()
    assert speed.rate(0, 0.0) == 0.0
    for second in range(1, 101):
        assert speed.rate(second * 5, float(second)) == pytest.approx(5.0)
    # it stands still from here on
    rates = [speed.rate(500, 100.0 + second) for second in range(1, 12)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 0.0


T = datetime(2026, 11, 28, tzinfo=UTC)


def test_the_report_tells_all_there_is() -> None:
    one = partition(
        3, 100, read=100, matched=90, completed=80, failed=7, skipped=3, undecided=2, lost=5, first_offset=0,
        first_time=T, last_offset=99, last_time=T, note="offset 4 was not run: where raised",
    )  # fmt: skip
    done = report(one, status=BackfillStatus.COMPLETED, started_at=T, finished_at=T.replace(minute=1))
    lines = lines_of(done)
    assert lines[1].split() == [
        "3", "0", "-", "100", "100", "90", "80", "7", "3", "0", "2026-11-28T00:00:00.000+00:00", "99",
        "2026-11-28T00:00:00.000+00:00",
    ]  # fmt: skip
    assert lines[2] == (
        "backfill b: completed after 1m00s: 100 read, 90 matched, 80 completed, 7 failed, 3 skipped, "
        "2 not run, since where= could not tell, 5 offsets lost"
    )
    assert "partition 3: offset 4 was not run: where raised" in lines
    assert lines[-1].startswith("7 dead letters are in orders.billing.dlq, with the header pyrula-backfill: b")
    json.dumps(done.to_dict())


def test_a_report_of_nothing_says_so() -> None:
    over = report(partition(0, 100), status=BackfillStatus.COMPLETED)
    assert "nothing in the range: orders has no records from earliest up to latest" in lines_of(over)
    none = replace(over, where="a:b", partitions=(partition(0, 100, read=9),))
    assert "nothing matched: where=a:b let none of them through" in lines_of(none)
    redrive = replace(none, where=None, failed_of="a")
    assert "nothing to redrive: orders has no dead letters of backfill a" in lines_of(redrive)
    failed = replace(over, status=BackfillStatus.FAILED, problem="record 7 stands still")
    assert "it failed: record 7 stands still" in lines_of(failed)
    assert "b  failed     double orders" in line_of_status(failed)
    assert lines_of(replace(failed, partitions=()))[0].startswith("backfill b: failed: ")
