"""Declaring backfills, choosing records, keeping a rate and marking outputs; without a broker."""

import asyncio
import inspect
import time
from dataclasses import replace
from typing import Any

import pytest

from pyrula.kafka import Backfill, Binding, JsonSerde, Record
from pyrula.kafka.backfill.courtesy import Courtesy
from pyrula.kafka.backfill.definition import NotHere, Undecided, bind, compile_where, job_of, load_where, serves
from pyrula.kafka.backfill.marked import MarkedOutputs
from pyrula.kafka.backfill.pacing import Pacer
from pyrula.kafka.backfill.redrive import is_letter_of, journal_in
from pyrula.kafka.dead_letter import encode_journal
from pyrula.kafka.record import fingerprint
from pyrula.workflows import BackfillReport, ConfigurationError, Context, Every, Limit, Rate, Retry, workflow
from pyrula.workflows.backfills import Pace, Request
from pyrula.workflows.execution import Output
from pyrula.workflows.replay.journal import Entry, decode_row, encode_row
from pyrula.workflows.store.backfills import BackfillStatus, StoredBackfill


@workflow(name="backfill_unit")
async def order(ctx: Context, value: dict[str, Any]) -> None: ...


@workflow(name="backfill_unit_other")
async def other(ctx: Context, value: dict[str, Any]) -> None: ...


PLACE = ("orders", 0)


class Raw:
    """A record as the client gives it."""

    offset, timestamp, key, headers = 7, 1000, b"k", ()

    def __init__(self, value: bytes | None) -> None:
        self.value = value


BINDING = Binding(
    order,
    topic="orders",
    group="billing",
    max_concurrency=99,
    ordering="partition",
    retry=Retry(max_attempts=4),
    on_failure="skip",
    dead_letter_topic="letters",
    value_serde=JsonSerde(),
    output="out",
    auto_offset_reset="latest",
    on_out_of_range="stop",
    keep="all",
    run_timeout=9,
    exactly_once=True,
)


def test_a_backfill_of_a_binding_has_all_its_options() -> None:
    """But for what is its own: group, concurrency, topics; and no transactions, which are of a group's offsets."""
    bound = Backfill(BINDING, id="b").job.binding
    own = {"group": "backfill:b", "max_concurrency": 16, "exactly_once": False}
    for name in inspect.signature(Binding.__init__).parameters:
        if name not in ("self", "topic"):
            assert getattr(bound, name) == own.get(name, getattr(BINDING, name)), name
    assert BINDING.group == "billing"
    assert BINDING.exactly_once


def test_topics_of_its_own() -> None:
    backfill = Backfill(BINDING, "archive", id="b", output="o", dead_letter_topic="d", max_concurrency=3)
    bound = backfill.job.binding
    assert (bound.topics, bound.output, bound.max_concurrency) == (("archive",), "o", 3)
    assert bound.dead_letter_topic_of("archive") == "d"
    plain = Binding(order, topic="orders", group="billing")
    assert Backfill(plain, id="b").job.binding.dead_letter_topic_of("orders") == "orders.billing.dlq"
    assert Backfill(order, "orders", id="b").job.binding.dead_letter_topic_of("orders") == "orders.backfill.dlq"


@pytest.mark.parametrize("policy", [{"concurrency": Limit("k", max=1)}, {"rate_limit": Rate("k", per_second=1)}])
def test_flow_control_is_refused_as_by_a_binding(policy: dict[str, Any]) -> None:
    @workflow(name="backfill_unit_flow", **policy)
    async def limited(ctx: Context, k: str) -> None: ...

    with pytest.raises(ConfigurationError) as by_binding:
        Binding(limited, topic="orders", group="billing")
    with pytest.raises(ConfigurationError) as by_backfill:
        Backfill(limited, "orders")
    assert str(by_backfill.value) == str(by_binding.value)


async def later(record: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("given", "named", "said"),
    [
        (order, {}, "say which topic="),
        (Binding(order, topics=["a", "b"], group="g"), {}, "binding g/a,b reads 2"),
        ("order", {"topic": "t"}, "is neither a workflow nor a Binding"),
        (BINDING, {"cluster": "other"}, "is of cluster 'default', not 'other'"),
        (order, {"topic": "t", "where": 5}, "where=5 is no function of a record"),
        (order, {"topic": "t", "where": "no_such_module:x"}, "can't be imported"),
        (order, {"topic": "t", "where": f"{__name__}:BINDING"}, "which can't be called"),
        (order, {"topic": "t", "where": lambda: True}, "can't be called with a record: too many positional"),
        (order, {"topic": "t", "where": lambda record, other: True}, "missing a required argument: 'other'"),
        (order, {"topic": "t", "where": later}, "later is an `async def`; it must be a plain function"),
        (order, {"topic": "t", "partitions": 3}, "partitions=3 is no list of numbers, such as [3]"),
        (order, {"topic": "t", "start": "1d", "end": "36h"}, "the end (1d12h ago) is before the start (1d ago)"),
        (order, {"topic": "t", "end": "1h", "start": "30m"}, "is before the start"),
        (order, {"topic": "t", "max_concurrency": 0}, "max_concurrency=0 is no count"),
        (order, {"topic": "t", "rate": 0}, "rate=0 is no number of records a second"),
        (order, {"topic": "no topic"}, "can't be the name of a topic"),
        (order, {"topic": "t", "id": "a b"}, "'a b' can't be the id"),
        (order, {"topic": "t", "strat": "1h"}, "Backfill takes no strat=; did you mean start?"),
    ],
)
def test_what_cannot_be_meant(given: Any, named: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Backfill(given, **named)
    assert said in str(refused.value)


async def unsure(record: Record[Any]) -> bool:
    return True


def test_a_predicate_that_must_be_awaited_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be a plain function"):
        Backfill(order, "orders", where=unsure)  # type: ignore[arg-type]


def is_big(record: Record[dict[str, int]]) -> bool:
    return record.value["n"] > 5


def is_short(record: Record[bytes]) -> bool:
    return len(record.value) < 3


def has_value(record: "Record[dict[str, int] | None]") -> bool:
    return record.value is not None


def unannotated(record):  # type: ignore[no-untyped-def]
    return record.value == [1] and record.key == b"k" and record.offset == 7


@pytest.mark.parametrize(
    ("predicate", "value", "matches"),
    [
        (is_big, b'{"n":6}', True),
        (is_big, b'{"n":5}', False),
        (is_short, b"ab", True),
        (is_short, b"abc", False),
        (has_value, None, False),
        (has_value, b"{}", True),
        (unannotated, b"[1]", True),
        (unannotated, None, False),
        (lambda record: record.timestamp_ms == 1000, b"1", True),
    ],
)
def test_a_predicate_reads_the_value_as_it_is_annotated(predicate: Any, value: bytes | None, matches: bool) -> None:
    assert compile_where(predicate)(Raw(value), PLACE) is matches  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("predicate", "value", "said"),
    [
        (is_big, b"{}", "raised KeyError: 'n'"),
        (is_big, b'{"n":"x"}', "where="),
        (is_big, b"no json", "where="),
        (unannotated, b"no json", "annotate its parameter as Record[bytes]"),
        (is_short, None, "where="),
    ],
)
def test_what_it_cannot_decide(predicate: Any, value: bytes | None, said: str) -> None:
    with pytest.raises(Undecided) as undecided:
        compile_where(predicate)(Raw(value), PLACE)  # type: ignore[arg-type]
    assert said in str(undecided.value)


def test_a_predicate_by_its_name() -> None:
    assert load_where(f"{__name__}:is_big") is is_big


def stored(request: Request) -> StoredBackfill:
    return StoredBackfill("b", request.encode(), Pace(3).encode(), b"", BackfillStatus.REQUESTED, "", 0.0, None, None)


def test_a_worker_serves_what_it_has() -> None:
    audit = Binding(order, topic="orders", group="audit")
    elsewhere = Binding(order, topic="archive", group="audit", cluster="two")
    bindings = [BINDING, audit, elsewhere, Binding(other, topic="x", group="g")]

    def of(**named: Any) -> Any:
        return serves(Request.of(**{"workflow": "backfill_unit", "topic": "orders", **named}), bindings)

    assert of(group="audit") is audit
    assert of(group="no such") is None
    assert of(cluster="two", topic="archive") is elsewhere
    assert of(workflow="backfill_unit_other", topic="other") is bindings[3]
    assert of(workflow="nowhere") is None
    with pytest.raises(ConfigurationError, match=r"has several bindings; say group= \(audit, billing\)"):
        of()
    # bound to nothing here, but imported
    assert serves(Request.of("backfill_unit_other", "t"), [BINDING]) is other


def test_a_job_is_made_of_what_is_stored() -> None:
    request = Request.of("backfill_unit", "orders", group="billing", where=f"{__name__}:is_big", output="o")
    job = job_of(stored(request), [BINDING])
    assert job is not None
    assert job.matches is not None
    assert job.matches(Raw(b'{"n":6}'), PLACE)  # type: ignore[arg-type]
    assert (job.binding.max_concurrency, job.binding.output, job.binding.group) == (3, "o", "backfill:b")
    assert job_of(stored(Request.of("nowhere", "orders")), [BINDING]) is None
    for where, said in ((f"{__name__}:f.<lambda>", "by others than the process that started it"), ("no.such:x", "no")):
        asked = Request.of("backfill_unit", "orders", group="billing", where=where)
        with pytest.raises(NotHere, match=said):
            job_of(stored(asked), [BINDING])


def test_the_binding_of_a_request_keeps_its_clusters_name() -> None:
    request = Request.of("backfill_unit", "orders", cluster="two")
    assert bind(order, "b", request, Pace()).cluster == "two"


def test_a_rate_is_kept_over_any_portions() -> None:
    pacer = Pacer(100.0)
    assert pacer.portion(500) == 10
    now = waited = 0.0
    for _ in range(50):
        pause = pacer.spend(7, now)
        waited += pause
        now += pause
    assert 50 * 7 / 100 - 0.2 <= waited <= 50 * 7 / 100
    # what wasn't used while it stood still is not made up for
    assert pacer.spend(10, now + 60.0) == 0.0
    assert pacer.spend(10, now + 60.0) == pytest.approx(0.1)
    assert Pacer(0.5).portion(500) == 1
    free = Pacer(None)
    assert (free.portion(500), free.spend(500, 0.0)) == (500, 0.0)


def test_it_rests_while_the_loop_is_late_and_no_longer() -> None:
    courtesy = Courtesy()
    assert courtesy.rest() == 0.0
    for _ in range(50):
        courtesy.observe(0.02)
    rests = [courtesy.rest() for _ in range(40)]
    assert rests == sorted(rests)
    assert (rests[0], rests[-1]) == (0.005, 0.5)
    for _ in range(100):
        courtesy.observe(0.0002)
    rests = [courtesy.rest() for _ in range(20)]
    assert rests == sorted(rests, reverse=True)
    assert rests[-1] == 0.0


async def test_lateness_is_measured_while_it_is_wanted() -> None:
    courtesy = Courtesy()
    courtesy.start()
    await asyncio.sleep(0)
    time.sleep(0.1)  # noqa: ASYNC251 - that is the case
    for _ in range(3):
        await asyncio.sleep(0)
    assert courtesy.late > 0.005
    courtesy.stop()
    courtesy.stop()


def test_outputs_are_marked_once() -> None:
    produced: list[Output] = []

    class Outputs:
        def produce(self, outputs: Any, done: Any) -> None:
            produced.extend(outputs)
            done(None)

    answers: list[Any] = []
    headers = (("pyrula-backfill", b"before"), ("mine", b"1"))
    outputs = [Output("o", b"v", None, headers, 3, 5), Output("p", None, b"k", (), None, None)]
    MarkedOutputs(Outputs(), "b").produce(outputs, answers.append)
    assert produced == [
        Output("o", b"v", None, (("mine", b"1"), ("pyrula-backfill", b"b")), 3, 5),
        Output("p", None, b"k", (("pyrula-backfill", b"b"),), None, None),
    ]
    assert answers == [None]


def test_a_schedule_is_no_flow_control() -> None:
    @workflow(name="backfill_unit_scheduled", schedule=Every(60))
    async def scheduled(ctx: Context) -> None: ...

    assert Backfill(scheduled, "orders").topic == "orders"


def letter(*headers: tuple[str, bytes], timestamp: int = 1000) -> Any:
    raw = Raw(b"{}")
    raw.headers, raw.timestamp = headers, timestamp  # type: ignore[assignment]
    return raw


def test_letters_are_known_by_their_headers() -> None:
    matches = is_letter_of("b")
    reason = ("pyrula-dlq-reason", b"failed")
    assert matches(letter(reason, ("pyrula-backfill", b"b")), PLACE)
    for headers in ([reason], [("pyrula-backfill", b"b")], [reason, ("pyrula-backfill", b"bb")]):
        assert not matches(letter(*headers), PLACE)


def value(index: int, op: str) -> tuple[int, Entry]:
    return index, Entry("value", op, "step", "charge", index, None, b'"x"')


def error(index: int, op: str) -> tuple[int, Entry]:
    return index, Entry("error", op, "step", "ship", index, None, b"{}")


def attempt(index: int, op: str) -> tuple[int, Entry]:
    return index, Entry("attempt", op, "", "", None, None, b"[1,null,null]")


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ([value(0, "1"), attempt(1, "2"), error(2, "2")], [0]),
        ([value(0, "1"), value(1, "2")], [0, 1]),
        ([attempt(0, "1"), value(1, "1"), attempt(2, ""), error(3, "2")], [0, 1]),
        ([error(0, "1"), value(1, "2")], [0, 1]),
        ([error(0, "1")], []),
        ([], []),
    ],
    ids=["a step failed", "the body failed", "in its second round", "an error was handled", "at once", "none"],
)
def test_a_letters_run_goes_on_before_the_error_that_ended_it(rows: list[tuple[int, Entry]], kept: list[int]) -> None:
    data = encode_journal([(index, encode_row(entry, "0.~.~")) for index, entry in rows])
    found = letter(("pyrula-dlq-journal", b"an older one"), ("pyrula-dlq-journal", data), timestamp=5)
    given = journal_in(found)
    assert [index for index, _ in given] == kept
    assert all(decode_row(row)[1] == fingerprint(found) for _, row in given)


@pytest.mark.parametrize("header", [b"", b"1:", b"1:00000000:[]", b"2:0:[]", b"1:zz:[]"])
def test_a_letter_with_a_journal_that_cannot_be_read_begins_anew(header: bytes) -> None:
    assert journal_in(letter(("pyrula-dlq-journal", header))) == []


def test_a_redrive_reads_the_letters_and_writes_what_fails_again_beside_them() -> None:
    report = replace(REPORT, dead_letter_topic="letters", output="o")
    backfill = Backfill.redrive(report, [BINDING])
    bound = backfill.job.binding
    assert (backfill.id, backfill.topic, bound.topics, bound.output) == ("b.redrive", "letters", ("letters",), "o")
    assert bound.dead_letter_topic_of("letters") == "letters"
    assert backfill.job.request.failed_of == "b"
    assert Backfill(BINDING, failed_of="b").topic == "letters"
    with pytest.raises(ConfigurationError, match="takes no where="):
        Backfill(BINDING, failed_of="b", where=is_big)
    with pytest.raises(ConfigurationError, match="there is no workflow nowhere here"):
        Backfill.redrive(replace(report, workflow="nowhere", group=None), [BINDING])


REPORT = BackfillReport(
    id="b",
    status=BackfillStatus.COMPLETED,
    workflow="backfill_unit",
    topic="orders",
    group="billing",
    start="earliest",
    end="latest",
    where=None,
    max_concurrency=16,
    rate=None,
    output=None,
    dead_letter_topic=None,
)
