"""What requests and answers look like: the shapes that the OpenAPI document shows.

Requests are validated by these; a field that isn't there is refused, so that a typing error shows. Answers are written
as the store has the JSON, not through these models: they only describe it.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.listing import MAX_LIMIT

__all__ = [
    "MAX_WAIT",
    "AllRuns",
    "Backfill",
    "Counts",
    "EventRow",
    "Explanation",
    "MadeBackfill",
    "MadeSchedule",
    "NewBackfill",
    "NewSchedule",
    "NewTrigger",
    "OpenBatch",
    "Page",
    "PauseRequest",
    "QueryRequest",
    "RedriveRequest",
    "ResumeRequest",
    "RunDetail",
    "RunId",
    "RunState",
    "RunsOfName",
    "ScheduleRow",
    "SignalRequest",
    "SubmitRequest",
    "Submitted",
    "TriggerRequest",
    "Triggered",
    "UpdateRequest",
    "Updated",
    "Value",
]

MAX_WAIT = 60.0
"""Seconds that one request may wait for something of a run."""

Text = Annotated[str, Field(min_length=1)]
Wait = Annotated[float, Field(ge=0, le=MAX_WAIT, allow_inf_nan=False)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SignalRequest(_Request):
    signal: Text
    payload: Any = None
    signal_id: Text | None = None


class SubmitRequest(_Request):
    params: dict[str, Any] = Field(default_factory=dict)
    idempotency_key: Text | None = Field(None, description="or the header Idempotency-Key")
    owner: Text | None = Field(None, description="of a token for one owner: that one")
    metadata: Any = None
    priority: int = Field(0, ge=-100, le=100, strict=True)
    signal: SignalRequest | None = Field(
        None, description="signal_with_start: sent to the run of this idempotency key, which is queued first if needed"
    )


class TriggerRequest(_Request):
    event: dict[str, Any]
    event_id: Text | None = None
    owner: Text | None = Field(None, description="of a token for one owner: that one")


class QueryRequest(_Request):
    query: Text
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)


class UpdateRequest(_Request):
    update: Text
    payload: Any = None
    update_id: Text | None = None
    timeout: Wait = 30.0


class ResumeRequest(_Request):
    action: Text
    value: Any = None
    wait_id: Text | None = None


class PauseRequest(_Request):
    reason: str = ""
    timeout: Wait = 10.0


class NewTrigger(_Request):
    """Either `cron`, with `tz` if it isn't UTC, or `every`."""

    cron: Text | None = None
    tz: Text | None = Field(None, description="a time zone for cron (UTC)")
    every: float | None = Field(None, ge=1, le=10 * 366 * 86_400, description="seconds")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.cron is None) == (self.every is None) or (self.tz is not None and self.cron is None):
            raise PydanticCustomError("trigger", 'takes either "cron", with "tz" if it isn\'t UTC, or "every"')
        return self


class NewSchedule(_Request):
    workflow: Text
    params: dict[str, Any] = Field(default_factory=dict)
    trigger: NewTrigger
    catch_up: Literal["one", "all", "none"] = "one"
    window: float = Field(86_400.0, gt=0, le=10 * 366 * 86_400, description="seconds")
    overlap: Literal["skip", "allow"] = "skip"
    owner: Text | None = None
    metadata: Any = None
    paused: bool = False


class NewBackfill(_Request):
    workflow: Text
    topic: Text
    backfill_id: Text | None = Field(
        None, description="made up if not given; that of one that is there goes on with it"
    )
    group: Text | None = None
    cluster: Text = "default"
    partitions: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    start: int | str = Field("earliest", description='an offset, a time, how long ago ("24h"), earliest or latest')
    end: int | str = "latest"
    output: Text | None = None
    dead_letter_topic: Text | None = None
    max_concurrency: int = Field(16, ge=1, le=100_000, description="bodies at once in one worker")
    rate: float | None = Field(None, gt=0, description="records a second in all")


class RedriveRequest(_Request):
    new_id: Text | None = Field(None, description="<id>.redrive if not given; a repeat goes on with it")
    max_concurrency: int = Field(16, ge=1, le=100_000, strict=True, description="bodies at once in one worker")
    rate: float | None = Field(None, gt=0, description="records a second in all")


class RunsOfName(_Request):
    """The query of a list."""

    status: list[str] | None = Field(
        None, description="a status, or parked, finished, unfinished; several times for several"
    )
    owner: str | None = None
    since: str | None = Field(None, description='a time with its zone, or how long ago, as "24h" or "7d"')
    limit: int = Field(50, ge=1, le=MAX_LIMIT)
    cursor: str | None = Field(None, description="of the page before")


class AllRuns(RunsOfName):
    name: Text | None = Field(None, description="a workflow's name")


class RunId(BaseModel):
    run_id: str


class Submitted(BaseModel):
    run_id: str
    created: bool = Field(description="false: the idempotency key had this run already")
    same_params: bool = Field(description="false: it was submitted with others")
    note: str | None = None


class Triggered(BaseModel):
    run_id: str


class RunState(BaseModel):
    run_id: str
    status: RunStatus


class Value(BaseModel):
    value: Any


class Updated(BaseModel):
    update_id: str
    value: Any


class EventRow(BaseModel):
    type: str
    at: datetime
    data: dict[str, Any]


class _Wait(BaseModel):
    kind: str
    name: str
    deadline: float | None = Field(description="seconds since 1970")


class _Interrupt(BaseModel):
    wait_id: str
    payload: Any


class _Unread(BaseModel):
    kind: str
    id: str
    name: str
    payload: Any
    at: datetime


class _Failure(BaseModel):
    type: str
    message: str


class RunRow(BaseModel):
    run_id: str
    name: str
    status: RunStatus
    version: str | None
    owner: str
    attempt: int
    created_at: datetime
    finished_at: datetime | None
    worker: str | None


class RunDetail(RunRow):
    metadata: Any
    params: dict[str, Any]
    parent: str | None
    waits: list[_Wait]
    interrupts: list[_Interrupt]
    unread: list[_Unread]
    deaths: int
    cancel_requested: bool
    value: Any
    error: _Failure | None


class Page(BaseModel):
    runs: list[RunRow]
    cursor: str | None = Field(description="gets the next page; null: this is the last")


class Counts(BaseModel):
    by_status: dict[str, int]
    oldest_queued_seconds: float | None


class _Limit(BaseModel):
    label: str
    key: str
    max: int


class _Rate(BaseModel):
    label: str
    key: str
    per_second: float
    burst: int


class Explanation(BaseModel):
    run_id: str
    workflow: str
    version: str | None
    status: RunStatus
    text: str = Field(description="one sentence")
    since: datetime | None
    worker: str | None
    waits: list[_Wait]
    served: bool | None = Field(description="whether a live worker serves it; null if nobody asked")
    limit: _Limit | None
    slots_used: int
    slot_holders: list[str] = Field(description="some of the runs that hold slots, of those that the caller may see")
    rate: _Rate | None
    next_start: datetime | None
    waits_at: str | None
    before: int
    owners_before: int


class Backfill(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str
    status: str
    workflow: str
    topic: str
    problem: str
    read: int
    matched: int
    completed: int
    failed: int
    skipped: int
    undecided: int
    lost: int
    partitions: list[dict[str, Any]]


class CronTrigger(BaseModel):
    cron: str
    tz: str


class EveryTrigger(BaseModel):
    every: float


class MadeBackfill(Backfill):
    note: str | None = None


class OpenBatch(BaseModel):
    key: str
    owner: str
    events: int
    opened_at: datetime
    due_at: datetime


class ScheduleRow(BaseModel):
    id: str
    workflow: str
    owner: str
    trigger: CronTrigger | EveryTrigger
    params: dict[str, Any]
    paused: bool
    due: datetime | None
    last_run: str | None
    catch_up: str
    window: float = Field(description="seconds")
    overlap: str
    metadata: Any


class MadeSchedule(ScheduleRow):
    note: str | None = None
