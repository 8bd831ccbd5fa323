"""`pyrula dev FILE`: its arguments, and what it prints."""

import argparse
import asyncio
import logging
import shlex
from collections.abc import Callable, Iterable

from pyrula.cli import unawaited
from pyrula.cli.dev import report
from pyrula.cli.dev.code import UserCode
from pyrula.cli.dev.journals import WatchedStore
from pyrula.cli.dev.records import Given, count_lines, from_file, from_samples, redirected
from pyrula.cli.dev.session import Session
from pyrula.cli.dev.shown import Place, Shown
from pyrula.cli.numbers import count
from pyrula.cli.problem import Problem
from pyrula.kafka import Binding
from pyrula.kafka.embedded import EmbeddedBroker
from pyrula.kafka.events import RecordEvent
from pyrula.kafka.record import record_identity
from pyrula.workflows.errors import PyrulaError

__all__ = ["add_command"]

_SAMPLES = 20
# So many dead letters and held records are listed after a bar.
_LISTED = 3
_LISTED_UNFINISHED = 20
_HELP = """\
Run the bindings of a Python file on a broker and a store in this process: no Kafka, no Valkey, no Docker. The bindings
are the file's `bindings` (a list of pyrula.kafka.Binding), else those of its KafkaWorker named `worker`, else every
Binding in it. Records come from --records or standard input, else from a function `sample_records(count)` in the file
that yields (key, value) or a dict with value and, if wanted, key, headers, topic. Topics are made as needed. When the
file changes, or a module next to it, the new code goes on with the records and journals. Nothing is kept in the end.
"""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("dev", help="try a file's workflows on an embedded broker", description=_HELP)
    parser.add_argument("file", metavar="FILE", help="the Python file with the bindings")
    parser.add_argument("--records", metavar="FILE", help='JSON lines, each a record\'s value; "-" is standard input')
    parser.add_argument("--envelope", action="store_true", help='a line is {"key": …, "value": …, "headers": …, …}')
    parser.add_argument("--key", metavar="FIELD", help="the value's field that is the record's key")
    parser.add_argument("--count", type=count, metavar="N", help=f"so many records at most (samples: {_SAMPLES})")
    parser.add_argument("--partitions", type=count, default=4, metavar="N", help="partitions of each topic (4)")
    parser.add_argument("--show", metavar="RECORD", help="tell all about one record, named like orders/0@17")
    parser.add_argument(
        "--watch", action="store_true", help="go on until Ctrl-C; feed anew after each change of the code"
    )
    parser.add_argument("--log-level", default=None, choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    code = UserCode(arguments.file)
    records, hint = _records(arguments, code)
    bindings = code.bindings
    topics = sorted({topic for binding in bindings for topic in binding.topics})
    shown = Shown(Place.parse(arguments.show, topics)) if arguments.show else None
    quiet = shown is not None or (hint is not None and hint > report.MANY)
    _log_to_stderr(arguments.log_level, quiet)
    unawaited.told(exactly=True)
    store = WatchedStore(_watched(shown.place, bindings) if shown else None)
    printed = _Printed(code, quiet, shown)
    session = Session(
        code,
        records,
        store=store,
        partitions=arguments.partitions,
        hint=hint or 0,
        watched=shown is None,
        again=_again(arguments, code) if arguments.watch and shown is None else None,
        on_event=printed.take,
        on_progress=printed.progress,
        on_round=lambda session: printed.round(_summary(session, store.retried, printed, arguments)),
        on_reload=printed.reloaded,
        on_problem=printed.problem,
    )
    letters = {binding.dead_letter_topic_of(topic) for binding in bindings for topic in binding.topics}
    try:
        with EmbeddedBroker() as broker:
            asyncio.run(session.run(broker, (lambda client: shown.fetch(client, letters)) if shown else None))
    except PyrulaError as error:
        raise Problem(str(error)) from error
    finally:
        printed.end()
    if shown is not None:
        print(shown.text(store.journal_lines()))
        if not shown.found:
            return 1
    elif not (arguments.watch and session.done):
        print("\n".join(_summary(session, store.retried, printed, arguments)))
    if arguments.watch:
        # Ctrl-C is how it ends.
        return 0 if session.done else 1
    return 130 if session.interrupted else 0 if session.complete else 1


def _log_to_stderr(level: str | None, quiet: bool) -> None:
    """What is printed says what became of each record, so of the logs only the user's own are wanted, if any."""
    logging.basicConfig(level=level or "WARNING", format="%(levelname)-7s %(name)s  %(message)s")
    if level is None:
        logging.getLogger("aiokafka").setLevel("CRITICAL")
        logging.getLogger("pyrula.kafka").setLevel("CRITICAL" if quiet else "ERROR")
        # That a record is held is printed with all the others.
        logging.getLogger("pyrula.kafka.held").addFilter(lambda _: False)


def _records(arguments: argparse.Namespace, code: UserCode) -> tuple[Iterable[Given], int | None]:
    """The records to feed, and how many they will be at most where that is known. Sets where they come from."""
    samples = getattr(code.module, "sample_records", None)
    if arguments.records is None and (redirected() == "file" or (redirected() == "pipe" and not callable(samples))):
        arguments.records = "-"
    path, count = arguments.records, arguments.count
    if path is not None:
        given = from_file(path, envelope=arguments.envelope, key_field=arguments.key, count=count)
        lines = None if path == "-" else count_lines(path)
        return given, min((number for number in (lines, count) if number is not None), default=None)
    if not callable(samples):
        raise Problem(
            f"there are no records: give some with --records FILE (JSON lines), or on standard input, or write in"
            f" {arguments.file}:\n\n"
            "    def sample_records(count):\n"
            "        for number in range(count):\n"
            '            yield f"key-{number}", {"number": number}'
        )
    count = count or _SAMPLES
    return from_samples(samples, count), count


def _again(arguments: argparse.Namespace, code: UserCode) -> Callable[[], Iterable[Given]]:
    """What is fed after a change of the code: the same once more, as far as it can be had twice."""

    def records() -> Iterable[Given]:
        if arguments.records == "-" or (arguments.records is None and not hasattr(code.module, "sample_records")):
            return ()
        return _records(arguments, code)[0]

    return records


def _watched(place: Place, bindings: list[Binding]) -> tuple[frozenset[bytes], int]:
    sources = (
        record_identity(binding.cluster, binding.group, place.topic, place.partition)
        for binding in bindings
        if place.topic in binding.topics
    )
    return frozenset(sources), place.offset


class _Printed:
    """What appears while the session runs, and what is worth listing after it."""

    def __init__(self, code: UserCode, quiet: bool, shown: Shown | None) -> None:
        self.letters: list[RecordEvent] = []
        self.held: list[RecordEvent] = []
        self.last: RecordEvent | None = None
        self._code = code
        self._lines = 0 if quiet else report.MANY
        self._shown = shown
        self._bar = report.Bar() if shown is None else None

    def take(self, event: RecordEvent) -> None:
        if event.kind == "dead_lettered" and len(self.letters) < _LISTED:
            self.letters.append(event)
        elif event.kind in ("stopped", "paused", "blocked", "lost") and len(self.held) < _LISTED:
            self.held.append(event)
        self.last = event
        if self._shown is not None:
            self._shown.take(event)
        elif self._lines:
            self._lines -= 1
            print(report.line_of(event, len(self._code.bindings) > 1), flush=True)

    def progress(self, session: Session) -> None:
        if self._bar is not None and not self._lines:
            self._bar.show(session.tally.finished, session.expected, session.rate)

    def reloaded(self) -> None:
        self.end()
        print(f"{self._code.path} has changed: the new code is running", flush=True)

    def problem(self, problem: Problem) -> None:
        """Something that doesn't end the session."""
        self.end()
        print(problem, flush=True)

    def round(self, summary: list[str]) -> None:
        """All is done until the code changes."""
        self.end()
        print("\n".join([*summary, "", f"waiting for a change of {self._code.path}; Ctrl-C ends"]), flush=True)
        self._lines = self._lines and report.MANY
        self.letters, self.held = [], []

    def end(self) -> None:
        if self._bar is not None:
            self._bar.end()


def _summary(session: Session, retried: int, printed: _Printed, arguments: argparse.Namespace) -> list[str]:
    tally = session.tally
    unfinished = session.expected - tally.finished
    lines = [
        "",
        f"{tally.finished:,} of {session.expected:,} records in {session.seconds:.1f} s, {session.rate:,.0f} records/s",
        f"  completed      {tally.counts['completed']:>9,}",
        f"  retried        {retried:>9,}   (a step or the run was tried again)",
        f"  dead-lettered  {tally.counts['dead_lettered']:>9,}",
    ]
    lines += [f"  {kind:<13}  {tally.counts[kind]:>9,}" for kind in ("skipped", "cancelled") if tally.counts[kind]]
    if unfinished:
        lines.append(f"  UNFINISHED     {unfinished:>9,}")
    for events, title in ((printed.letters, "dead letters"), (printed.held, "held records")):
        if events:
            lines += ["", f"{title}:" if len(events) < _LISTED else f"the first {title}:"]
        for event in events:
            lines += [
                f"  {Place.of(event)}  {report.text_of(event.key)}",
                f"      {report.short(event.error or '', 240)}",
            ]
    example = next(iter([*printed.held, *printed.letters, printed.last]), None)
    if example is not None and arguments.records != "-":
        lines += ["", f"look at one:  {_command(arguments)} --show {Place.of(example)}"]
    if session.interrupted:
        lines += ["", "interrupted", *_left(tally.unfinished())]
    elif not unfinished and not session.committed and not arguments.watch:
        lines += ["", "NOT COMMITTED: the groups' offsets don't reach the end of their topics"]
    return lines


def _left(places: list[tuple[str, int, int]]) -> list[str]:
    if not places:
        return []
    lines = ["unfinished records:", *(f"  {Place(*place)}" for place in places[:_LISTED_UNFINISHED])]
    return lines if len(places) <= _LISTED_UNFINISHED else [*lines, f"  and {len(places) - _LISTED_UNFINISHED:,} more"]


def _command(arguments: argparse.Namespace) -> str:
    parts = ["pyrula", "dev", arguments.file]
    for option in ("records", "key", "count"):
        value = getattr(arguments, option)
        if value is not None:
            parts += [f"--{option}", str(value)]
    if arguments.envelope:
        parts.append("--envelope")
    if arguments.partitions != 4:
        parts += ["--partitions", str(arguments.partitions)]
    return shlex.join(parts)
