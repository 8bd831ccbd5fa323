"""What has become of a backfill, as a person reads it: counts, partitions, times. Plain data, no I/O."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from pyrula.workflows.backfills import Pace, Place, Progress, Request
from pyrula.workflows.codec import loads
from pyrula.workflows.store.backfills import BACKFILL_OVER, BackfillStatus, StoredBackfill, StoredPart

__all__ = ["BackfillReport", "PartitionReport", "report_of_backfill", "report_of_progress"]

PartitionState: TypeAlias = Literal["waiting", "running", "done", "stuck"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """One partition of a backfill. Its range is from `start` up to `end`; below `position` nothing is left to do.

    `matched` are the records that `where` let through, and each of them is completed, failed (dead-lettered) or skipped
    in the end. `undecided` are those that `where` raised for or could not read: they were not run. `lost` are offsets
    that retention had deleted, or that the log doesn't have any more. First and last are of the records read.
    """

    partition: int
    state: PartitionState
    start: int
    end: int
    position: int
    read: int = 0
    matched: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    undecided: int = 0
    lost: int = 0
    first_offset: int | None = None
    first_time: datetime | None = None
    last_offset: int | None = None
    last_time: datetime | None = None
    worker: str | None = None
    problem: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """A backfill as it stands. Counts are sums over its partitions, of which there are none before its range is known.

    Records that failed lie in `dead_letter_topic` with the header ``pyrula-backfill: <id>``; `client.backfills.redrive`
    runs them once more. Of a redrive, `failed_of` is the backfill that it is of.
    """

    id: str
    status: BackfillStatus
    workflow: str
    topic: str
    group: str | None
    cluster: str = "default"
    start: str
    end: str
    where: str | None
    max_concurrency: int
    rate: float | None
    output: str | None
    dead_letter_topic: str | None
    failed_of: str | None = None
    dry_run: bool = False
    problem: str = ""
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    partitions: tuple[PartitionReport, ...] = ()

    @property
    def read(self) -> int:
        return self._sum("read")

    @property
    def matched(self) -> int:
        return self._sum("matched")

    @property
    def completed(self) -> int:
        return self._sum("completed")

    @property
    def failed(self) -> int:
        return self._sum("failed")

    @property
    def skipped(self) -> int:
        return self._sum("skipped")

    @property
    def undecided(self) -> int:
        return self._sum("undecided")

    @property
    def lost(self) -> int:
        return self._sum("lost")

    @property
    def over(self) -> bool:
        """Nothing more happens by itself."""
        return self.status in BACKFILL_OVER

    def _sum(self, name: str) -> int:
        return sum(getattr(one, name) for one in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them; times are ISO 8601 text. With the sums."""
        told: dict[str, Any] = _plain(asdict(self))
        partitions = told.pop("partitions")
        for name in ("read", "matched", "completed", "failed", "skipped", "undecided", "lost"):
            told[name] = self._sum(name)
        return {**told, "partitions": partitions}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, str) else value


def report_of_backfill(stored: StoredBackfill) -> BackfillReport:
    """What is stored, made readable."""
    request, pace = Request.decode(stored.request), Pace.decode(stored.pace)
    plan = loads(stored.plan)[1] if stored.plan else {}
    return BackfillReport(
        id=stored.id,
        status=stored.status,
        workflow=request.workflow,
        topic=request.topic,
        group=request.group,
        cluster=request.cluster,
        failed_of=request.failed_of,
        start=str(request.start),
        end=str(request.end),
        where=request.where,
        max_concurrency=pace.max_concurrency,
        rate=pace.rate,
        output=plan.get("output", request.output),
        dead_letter_topic=plan.get("dead_letter_topic", request.dead_letter_topic),
        problem=stored.problem,
        created_at=_time(stored.created_at),
        started_at=_time(stored.started_at),
        finished_at=_time(stored.finished_at),
        partitions=partition_reports(stored.parts),
    )


def partition_reports(parts: Sequence[StoredPart]) -> tuple[PartitionReport, ...]:
    return tuple(_report_of_part(part) for part in parts)


def _report_of_part(part: StoredPart) -> PartitionReport:
    progress = Progress.decode(part.progress)
    state: PartitionState = part.state if part.state != "open" else "waiting" if part.hold is None else "running"
    worker = None if part.hold is None else part.hold.worker
    return report_of_progress(part.number, progress, state, worker, part.problem)


def report_of_progress(
    number: int, progress: Progress, state: PartitionState, worker: str | None = None, problem: str = ""
) -> PartitionReport:
    """One partition's."""
    return PartitionReport(
        partition=number,
        state=state,
        start=progress.start,
        end=progress.end,
        position=progress.position,
        read=progress.read,
        matched=progress.matched,
        completed=progress.completed,
        failed=progress.failed,
        skipped=progress.skipped,
        undecided=progress.undecided,
        lost=progress.lost,
        first_offset=_offset(progress.first),
        first_time=_record_time(progress.first),
        last_offset=_offset(progress.last),
        last_time=_record_time(progress.last),
        worker=worker,
        problem=problem,
        note=progress.note,
    )


def _offset(place: Place | None) -> int | None:
    return None if place is None else place[0]


def _record_time(place: Place | None) -> datetime | None:
    if place is None or place[1] < 0:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=place[1])
    except OverflowError:  # a producer may send any number
        return None


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
