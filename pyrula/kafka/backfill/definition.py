"""A backfill as a person declares it, and as a worker runs it: its binding and its predicate, from code or by name.

A backfill's binding has the options of the one it is for, under a group of its own that no Kafka group has, so that its
runs, journals and lanes are its own. What is wrong with a declaration raises ConfigurationError here, before anything
is read; knows no broker and no store.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args, get_origin

from pyrula.kafka.backfill.redrive import is_letter_of
from pyrula.kafka.binding import Binding
from pyrula.kafka.record import RawRecord, Record
from pyrula.kafka.value_reader import RecordError, unwrapped, value_reader
from pyrula.workflows.backfills import (
    Boundary,
    Pace,
    Request,
    checked_backfill_id,
    checked_where,
    is_importable,
    shown_name,
)
from pyrula.workflows.client.backfill_report import BackfillReport
from pyrula.workflows.client.backfills import new_backfill_id, redrive_of
from pyrula.workflows.definition import WorkflowDefinition, find_definition
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.naming import names_checked
from pyrula.workflows.store.backfills import StoredBackfill

__all__ = ["Backfill", "Job", "NotHere", "Undecided", "group_of", "job_of", "serves"]

Where: TypeAlias = Callable[[Record[Any]], bool]
# Whether a record, read at a topic's partition, is to be run.
Matches: TypeAlias = Callable[[RawRecord, tuple[str, int]], bool]


class Undecided(Exception):
    """`where` raised for a record, or could not read it."""


class NotHere(ConfigurationError):
    """This process can't run a backfill that another one may be able to."""


@dataclass(frozen=True, slots=True)
class Job:
    """All that running a backfill takes. `matches` None: every record of the range is run; it raises Undecided."""

    id: str
    request: Request
    pace: Pace
    binding: Binding
    matches: Matches | None = None


@names_checked
class Backfill:
    """A range of a topic's records to be run through a workflow, beside or instead of those that arrive.

    >>> from pyrula.workflows import workflow
    >>> @workflow(name="charge_order")
    ... async def charge_order(ctx, order: dict): ...
    >>> binding = Binding(charge_order, topic="orders", group="billing")
    >>> Backfill(binding, start="24h", id="yesterday").topic
    'orders'

    `workflow` may be a binding, whose options then count (ordering, retry, on_failure, serde, topics for output and
    dead letters), and whose topic is meant unless `topic` says another. `start` and `end` (exclusive) are offsets,
    times (aware datetimes or ISO 8601 text), how long ago (a timedelta, or text such as "24h"), "earliest" or "latest";
    they are looked up once, when the backfill begins. `where` is a predicate on the record, called with its value as
    JSON, or as T where its parameter is annotated ``Record[T]``; a function at the top of a module, or its name as
    ``module:function``, can be shared by several workers. `max_concurrency` counts bodies in one worker, `rate` records
    a second in all workers. The same `id` again goes on with the same backfill. `failed_of` redrives what failed in the
    backfill of that id: `topic` is then the dead-letter topic, the binding's if none is given. `dry_run` only counts.
    """

    __slots__ = ("dry_run", "job", "where")

    def __init__(
        self,
        workflow: WorkflowDefinition[..., Any] | Binding,
        topic: str | None = None,
        partitions: Iterable[int] | None = None,
        *,
        start: Boundary = "earliest",
        end: Boundary = "latest",
        id: str | None = None,  # noqa: A002 - the word a person uses
        max_concurrency: int = 16,
        rate: float | None = None,
        where: Where | str | None = None,
        output: str | None = None,
        dead_letter_topic: str | None = None,
        cluster: str | None = None,
        failed_of: str | None = None,
        dry_run: bool = False,
    ) -> None:
        bound = workflow if isinstance(workflow, Binding) else None
        definition = workflow.workflow if isinstance(workflow, Binding) else workflow
        if not isinstance(definition, WorkflowDefinition):
            raise ConfigurationError(f"Backfill: {workflow!r:.100} is neither a workflow nor a Binding")
        if bound is not None and cluster not in (None, bound.cluster):
            raise ConfigurationError(f"Backfill: binding {bound.name} is of cluster {bound.cluster!r}, not {cluster!r}")
        if topic is None and failed_of is not None and bound is not None and len(bound.topics) == 1:
            topic = bound.dead_letter_topic_of(bound.topics[0])
        if topic is None:
            if bound is None or len(bound.topics) != 1:
                has = f"; binding {bound.name} reads {len(bound.topics)}" if bound is not None else ""
                raise ConfigurationError(f"Backfill of {definition.name}: say which topic={has}")
            (topic,) = bound.topics
        request = Request.of(
            definition.name,
            topic,
            group=None if bound is None else bound.group,
            cluster=cluster or ("default" if bound is None else bound.cluster),
            partitions=partitions,
            start=start,
            end=end,
            output=output,
            dead_letter_topic=dead_letter_topic,
            failed_of=failed_of,
        )
        pace = Pace(max_concurrency, rate)
        backfill_id = new_backfill_id(topic) if id is None else checked_backfill_id(id)
        self.dry_run = dry_run
        self.where: Where | None = None
        matches = None if failed_of is None else is_letter_of(failed_of)
        if where is not None:
            self.where = load_where(where) if isinstance(where, str) else where
            matches = compile_where(self.where)
            name = checked_where(where) if isinstance(where, str) else shown_name(self.where)
            request = replace(request, where=name)
        self.job = Job(backfill_id, request, pace, bind(workflow, backfill_id, request, pace), matches)

    @classmethod
    def redrive(
        cls,
        of: BackfillReport,
        bindings: Sequence[Binding],
        *,
        id: str | None = None,  # noqa: A002
        pace: Pace = Pace(),  # noqa: B008
    ) -> "Backfill":
        """What runs once more the records that failed in a backfill that is over. BackfillRefused for one that isn't,
        ConfigurationError if nothing of its workflow is here."""
        request = redrive_of(of)
        source = serves(request, bindings)
        if source is None:
            raise ConfigurationError(f"there is no workflow {request.workflow} here; import it, or bind it")
        made = cls.__new__(cls)
        made.dry_run, made.where = False, None
        backfill_id = f"{of.id}.redrive" if id is None else checked_backfill_id(id)
        matches = is_letter_of(of.id)
        made.job = Job(backfill_id, request, pace, bind(source, backfill_id, request, pace), matches)
        return made

    @property
    def id(self) -> str:
        """What the backfill is called."""
        return self.job.id

    @property
    def topic(self) -> str:
        return self.job.request.topic

    def __repr__(self) -> str:
        return f"<Backfill {self.id} of {self.job.request.workflow} over {self.topic}>"


def group_of(backfill_id: str) -> str:
    """What stands in the group's place in the ids of a backfill's runs and journals."""
    return f"backfill:{backfill_id}"


def bind(source: WorkflowDefinition[..., Any] | Binding, backfill_id: str, request: Request, pace: Pace) -> Binding:
    """The binding that a backfill runs by: the given one's options, but for what is the backfill's own."""
    if request.failed_of is not None:
        # Its range ends where the topic did when it began, so what fails again doesn't come back.
        letters = request.dead_letter_topic or request.topic
    elif isinstance(source, Binding):
        letters = request.dead_letter_topic or source.dead_letter_topic_of(request.topic)
    else:
        letters = request.dead_letter_topic or f"{request.topic}.backfill.dlq"
    output = request.output
    if output is None and isinstance(source, Binding):
        output = source.output
    bound = Binding(
        source.workflow if isinstance(source, Binding) else source,
        topic=request.topic,
        group=group_of(backfill_id),
        cluster=request.cluster,
        max_concurrency=pace.max_concurrency,
        output=output,
        dead_letter_topic=letters if letters != request.topic else f"{request.topic}.again",
    )
    if isinstance(source, Binding):
        own, bound = bound, copy(source)
        for name in ("topics", "group", "cluster", "max_concurrency", "output"):
            setattr(bound, name, getattr(own, name))
    bound.dead_letter_topic = letters
    # There are no offsets that a transaction could hold together with outputs.
    bound.exactly_once = False
    return bound


def serves(request: Request, bindings: Sequence[Binding]) -> WorkflowDefinition[..., Any] | Binding | None:
    """What of this process a request is for; None if it has nothing of that name.

    ConfigurationError if it can't tell which of several bindings is meant."""
    fitting = [one for one in bindings if one.workflow.name == request.workflow and one.cluster == request.cluster]
    if request.group is not None:
        return next((one for one in fitting if one.group == request.group), None)
    if len(fitting) > 1:
        reading = [one for one in fitting if request.topic in one.topics]
        if len(reading) != 1:
            groups = ", ".join(sorted(one.group for one in fitting))
            raise ConfigurationError(f"workflow {request.workflow} has several bindings; say group= ({groups})")
        fitting = reading
    return fitting[0] if fitting else find_definition(request.workflow)


def job_of(stored: StoredBackfill, bindings: Sequence[Binding]) -> Job | None:
    """A stored backfill as this process can run it; None if it isn't one of its workflows.

    NotHere if it is, and only its predicate is wanting; ConfigurationError if it can't be run at all."""
    request, pace = Request.decode(stored.request), Pace.decode(stored.pace)
    source = serves(request, bindings)
    if source is None:
        return None
    binding = bind(source, stored.id, request, pace)
    matches = None if request.failed_of is None else is_letter_of(request.failed_of)
    if request.where is not None:
        if not is_importable(request.where):
            raise NotHere(f"where={request.where} can't be imported by others than the process that started it")
        try:
            matches = compile_where(load_where(request.where))
        except ConfigurationError as error:
            raise NotHere(str(error)) from error
    return Job(stored.id, request, pace, binding, matches)


def load_where(name: str) -> Where:
    """The predicate of that name. ConfigurationError if there is none."""
    module_name, _, path = checked_where(name).partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ConfigurationError(f"where={name!r} can't be imported: {error!r}") from error
    if not callable(found):
        raise ConfigurationError(f"where={name!r} is {found!r:.100}, which can't be called")
    return found  # type: ignore[no-any-return]


def compile_where(predicate: Where) -> Matches:
    """From a record as the client gives it. ConfigurationError for what can't be a predicate."""
    if not callable(predicate):
        raise ConfigurationError(f"where={predicate!r:.100} is no function of a record")
    name = shown_name(predicate)
    if inspect.iscoroutinefunction(predicate):
        raise ConfigurationError(f"where={name} is an `async def`; it must be a plain function of a record")
    annotation = _value_annotation(predicate)
    reader = value_reader(annotation, f"where={name}", "", None, False)

    def matches(raw: RawRecord, place: tuple[str, int]) -> bool:
        try:
            return bool(predicate(Record.of(raw, reader.value(raw.value), place)))
        except RecordError as error:
            hint = "" if annotation is not Any else "; annotate its parameter as Record[bytes] or Record[your type]"
            raise Undecided(f"{error}{hint}") from error
        except Exception as error:
            raise Undecided(f"where={name} raised {type(error).__name__}: {error}") from error

    return matches


def _value_annotation(predicate: Where) -> Any:
    """T of a first parameter that is annotated ``Record[T]``; Any without an annotation."""
    try:
        parameters = list(inspect.signature(predicate, eval_str=True).parameters.values())
    except (ValueError, NameError, TypeError):
        return Any
    try:
        inspect.signature(predicate).bind(None)
    except TypeError as error:
        raise ConfigurationError(f"where={shown_name(predicate)} can't be called with a record: {error}") from None
    bare = unwrapped(parameters[0].annotation)
    if bare is Record or get_origin(bare) is Record:
        return (get_args(bare) or (Any,))[0]
    return Any
