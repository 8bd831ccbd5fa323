"""`ctx`: what a body can ask for. An operation has an effect or waits, and is journaled; the rest is plain.

Every operation is an `async def` that asks when it first runs, not when it is called. It has two ways: the straight one
for a run of one task, written out here since every record takes it, and the one through the run's crew.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from datetime import datetime, timedelta
from random import random
from typing import Any, Final, ParamSpec, TypeVar, overload

from pydantic import BaseModel

from pyrula.workflows.batching import trigger_event, triggered
from pyrula.workflows.clock import to_seconds
from pyrula.workflows.codec import Codec, dumps, encode_message, loads
from pyrula.workflows.definition import StepDefinition, WorkflowDefinition, step_of
from pyrula.workflows.engine.as_completed import AsCompleted
from pyrula.workflows.engine.attempt import pause
from pyrula.workflows.engine.attempts import begin, error_from, perform
from pyrula.workflows.engine.crew import Crew
from pyrula.workflows.engine.emitting import EmitOperation, emitted
from pyrula.workflows.engine.host import UNTIL_DURABLE, Output
from pyrula.workflows.engine.operations import InstantOperation, SleepOperation, StepOperation
from pyrula.workflows.engine.run import Run, present_run
from pyrula.workflows.engine.talking import Talking
from pyrula.workflows.engine.timeout import Timeout
from pyrula.workflows.engine.triggering import Feeding, TriggerOperation, feed, read_run_id, written
from pyrula.workflows.errors import NoBrokerError, NonDeterminismError, SerializationError
from pyrula.workflows.model import MAX_VALUE, RunInfo
from pyrula.workflows.naming import is_topic
from pyrula.workflows.replay.journal import Entry

__all__ = ["Context"]

P = ParamSpec("P")
R = TypeVar("R")

# A longer sleep of a run that is talked to is waited for where a message can reach it.
_IN_PLACE_SECONDS: Final = 1.0

Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]


class Context(Talking):
    """The first argument of every workflow.

    >>> from pyrula.workflows import workflow
    >>> @workflow(name="double")
    ... async def double(ctx: Context, cents: int) -> int:
    ...     return await ctx.step(lambda: cents * 2)
    """

    __slots__ = ()

    def __init__(self, run: Run) -> None:
        self._run = run

    @overload
    async def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Executes `fn` once and journals what it returned; a replay gives that value without executing it.

        Raises StepError when its attempts are used up, SerializationError when its value can't be journaled.
        """
        run = self._run
        definition = fn if fn.__class__ is StepDefinition else step_of(fn)
        codec = definition.codec or definition.return_codec
        if not run.straight or present_run() is not run:
            await run.admit()
            if run.crew is not None:
                return await run.crew.ask(StepOperation(definition, args, kwargs))
        machine = run.machine or run.begin()
        machine.asked = clock = machine.asked + 1
        op, name = str(clock), definition.name
        if machine.left:
            return await self._replayed(op, name, codec)
        run.in_place = op
        try:
            if run.told or definition.total_timeout is not None or machine.journal.notes:
                kind, data, answer = await perform(run, op, definition, args, kwargs, True)
            else:
                # What nearly all steps are: nothing is known of earlier attempts, and nobody is told of this one.
                waiter = run.host.durable(run)
                if waiter is UNTIL_DURABLE:
                    try:
                        await waiter
                    except Exception as error:  # noqa: BLE001 - as in `acknowledged`
                        run.on_lost_rows(error)
                    if run.stopped is not None:
                        await run.refuse()
                elif waiter is not None:
                    await run.acknowledged(waiter)
                kind, data, answer = begin(run, definition, codec, args, kwargs)
                if kind == "begun":
                    kind, data, answer = await perform(run, op, definition, args, kwargs, True, answer)
        finally:
            run.in_place = None
        if not run.straight:
            if kind == "later" and run.stopped is None:
                return await Crew.of(run).take_over(StepOperation(definition, args, kwargs), op)
            return await self._hand_in("step", name, op, kind, data, answer)
        run.write((kind, op, "step", name, clock, None, data))
        if kind == "error":
            raise answer
        return answer

    async def sleep(self, seconds: float | timedelta | None = None, *, until: datetime | None = None) -> None:
        """Waits `seconds`, or until an aware datetime; not at all if that is over. The deadline is journaled: a replay
        waits for the rest of it."""
        if (seconds is None) == (until is None):
            raise TypeError("ctx.sleep() takes seconds or until=, one of them")
        run = self._run
        if until is not None:
            if until.tzinfo is None:
                raise TypeError("ctx.sleep(until=) needs an aware datetime")
            wanted = None
        else:
            wanted = to_seconds(_at_least_0(seconds or 0), "ctx.sleep()")
        moment = None if until is None else until.timestamp()
        if not run.straight or present_run() is not run:
            await run.admit()
            if run.crew is not None:
                await run.crew.ask(SleepOperation("sleep", wanted, moment))
                return
        machine = run.machine or run.begin()
        machine.asked = clock = machine.asked + 1
        op = str(clock)
        if machine.left:
            await self._recorded(op, "sleep", "")
            return
        left = run.time_left(op, "sleep", wanted, moment)
        if left > _IN_PLACE_SECONDS:
            run.attend(left)
        if run.talking is not None and left > min(_IN_PLACE_SECONDS, run.talking.park_after):
            await Crew.of(run).take_over(SleepOperation("sleep", wanted, moment), op)
            return
        run.in_place = op
        try:
            await pause(left)
        finally:
            run.in_place = None
        if not run.straight:
            await self._hand_in("sleep", "", op, "value", b"null", None)
            return
        run.write(("value", op, "sleep", "", clock, None, b"null"))

    def timeout(self, seconds: float | timedelta) -> Timeout:
        """`async with ctx.timeout(5):` raises TimeoutError if the block takes longer. Its end is journaled."""
        return Timeout(self._run, to_seconds(seconds, "ctx.timeout()"))

    async def gather(self, *awaitables: Awaitable[Any], return_exceptions: bool = False) -> list[Any]:
        """The results of all, in the order given; asyncio.gather does the same."""
        results: list[Any] = await asyncio.gather(*awaitables, return_exceptions=return_exceptions)
        return results

    async def wait(
        self,
        awaitables: Iterable[Awaitable[R]],
        *,
        timeout: float | timedelta | None = None,  # the name in asyncio
        return_when: str = asyncio.ALL_COMPLETED,
    ) -> "tuple[list[asyncio.Future[R]], list[asyncio.Future[R]]]":
        """As asyncio.wait: the done and the pending ones, as lists in the order given. Coroutines become tasks."""
        futures = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
        try:
            if timeout is None:
                await asyncio.wait(futures, return_when=return_when)
            else:
                async with self.timeout(timeout):
                    await asyncio.wait(futures, return_when=return_when)
        except TimeoutError:
            pass
        return [future for future in futures if future.done()], [future for future in futures if not future.done()]

    def as_completed(
        self, awaitables: Iterable[Awaitable[R]], *, timeout: float | timedelta | None = None
    ) -> AsCompleted[R]:
        """As asyncio.as_completed, in an order that replays: `async for task in ...` gives tasks that are done."""
        return AsCompleted(
            self._run, awaitables, None if timeout is None else to_seconds(timeout, "ctx.as_completed(timeout=)")
        )

    async def now(self) -> datetime:
        """The time as an aware datetime in UTC, journaled."""
        text: str = await self._instant("now", lambda: self._run.clock.now().isoformat())
        return datetime.fromisoformat(text)

    async def random(self) -> float:
        """A random number in [0, 1), journaled."""
        number: float = await self._instant("random", random)
        return number

    async def uuid(self) -> uuid.UUID:
        """A random UUID (version 4), journaled."""
        return uuid.UUID(await self._instant("uuid", lambda: str(uuid.uuid4())))

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | int | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: datetime | int | None = None,
    ) -> None:
        """Buffers a message that is produced when the run completes. NoBrokerError in a run that was submitted.

        A value is written as JSON in its usual form (a set as an array), since it isn't read back; bytes go as they are
        and None is a tombstone. `timestamp` is aware, or milliseconds. Raises SerializationError for what can't be
        written, ValueError for what can't be the name of a topic.
        """
        run = self._run
        if not getattr(run.host, "sends", True):
            raise NoBrokerError(
                f"run {run.run_id} ({run.definition.name}): ctx.send to {topic!r}: a run that was submitted has no "
                "broker to send by. Bind the workflow to a topic, so that a KafkaWorker runs it for records, or "
                "produce in a step with a client of your own"
            )
        what = f"the message to {topic!r}"
        if not is_topic(topic):
            raise ValueError(f"{what}: the name of a topic is 1 to 249 of ASCII letters, digits, '.', '_' and '-'")
        if value is not None and not isinstance(value, bytes):
            value = encode_message(value, what, MAX_VALUE)
        elif value is not None and len(value) > MAX_VALUE:
            raise SerializationError(f"{what}: the value is {len(value):,} bytes, the limit is {MAX_VALUE:,}")
        output = Output(topic, value, _key(key, what), _headers(headers, what), partition, _milliseconds(timestamp))
        if not run.straight or present_run() is not run:
            await run.admit()
        if run.crew is not None:
            run.crew.count()
        else:
            machine = run.machine or run.begin()
            machine.asked += 1
        if run.outputs is None:
            run.outputs = [output]
        else:
            run.outputs.append(output)

    async def trigger(
        self,
        workflow: str | WorkflowDefinition[..., Any],
        event: Mapping[str, Any] | BaseModel,
        *,
        event_id: str | None = None,
    ) -> str | None:
        """Feeds a Collect or Debounce buffer, once: the id of the run that the event started by completing a batch, or
        None. The batch gathers the events of this run's owner, and its run has that owner, too.

        Raises ConfigurationError for a workflow that isn't imported here or has no trigger=, ValueError for an event
        that doesn't fit. A repeat of `event_id`, also by others with that owner, feeds nothing and gives the same
        answer.
        """
        definition = triggered(workflow)
        feeding = Feeding(definition, trigger_event(definition, event, event_id))
        name = definition.name
        run = self._run
        if not run.straight or present_run() is not run:
            await run.admit()
            if run.crew is not None:
                run_id: str | None = await run.crew.ask(TriggerOperation(feeding))
                return run_id
        machine = run.machine or run.begin()
        machine.asked = clock = machine.asked + 1
        op = str(clock)
        if machine.left:
            recorded = await self._recorded(op, "trigger", name)
            return read_run_id(recorded)
        run.in_place = op
        try:
            run_id, fed = await feed(run, op, feeding)
        except Exception as error:
            await run.fail(error)
            raise
        finally:
            run.in_place = None
        if not run.straight:
            await self._hand_in("trigger", name, op, "value", dumps(run_id), run_id)
            written(run, fed)
            return run_id
        run.write(("value", op, "trigger", name, clock, None, dumps(run_id)))
        written(run, fed)
        return run_id

    async def emit(self, item: Any) -> None:
        """Adds an item, written as JSON, to the run's events, for whoever follows the run: an event `emitted`.

        Once, however often the run is replayed; a further round of the run emits again what it does again.
        SerializationError for what has no form in JSON or is over 1 MiB."""
        data = encode_message(item, "the emitted item", MAX_VALUE)
        run = self._run
        if not run.straight or present_run() is not run:
            await run.admit()
            if run.crew is not None:
                await run.crew.ask(EmitOperation(data))
                return
        machine = run.machine or run.begin()
        machine.asked = clock = machine.asked + 1
        op = str(clock)
        if machine.left:
            await self._recorded(op, "emit", "")
            return
        # in one stretch, so that the store gets both or neither
        emitted(run, data)
        run.write(("value", op, "emit", "", clock, None, data))

    def patched(self, change_id: str) -> bool:
        """Whether the run takes the new way of a change: False if its journal is older. It holds for the run."""
        run = self._run
        machine = run.machine or run.begin()
        if machine.patches is None:
            machine.patches = {}
        answer = machine.patches.get(change_id)
        if answer is None:
            noted = machine.journal.note("patch", change_id) is not None
            machine.patches[change_id] = answer = noted or (not machine.left and run.stopped is None)
            if answer and not noted:
                run.write(Entry("patch", "", "", change_id, None, None, None))
        return answer

    @property
    def record(self) -> Any:
        """The Kafka record of a run bound to a topic, else None. Its `value` is the bytes as they were sent (None for a
        tombstone), whatever the body's parameter is; a parameter annotated Record[T] has it decoded."""
        return self._run.host.record(self._run)

    @property
    def run(self) -> RunInfo:
        """The run's id, workflow name, version and attempt; of a submitted run its owner and metadata too."""
        run = self._run
        owner, metadata = ("", None) if run.talking is None else run.talking.tenant(run)
        return RunInfo(run.run_id, run.definition.name, run.definition.version, run.attempt, owner, metadata)

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that is silent while the run replays, and names the run."""
        return _RunLogger(self._run)

    async def _instant(self, kind: str, make: Callable[[], Any]) -> Any:
        run = self._run
        if not run.straight or present_run() is not run:
            await run.admit()
            if run.crew is not None:
                return await run.crew.ask(InstantOperation(kind, make))
        machine = run.machine or run.begin()
        machine.asked = clock = machine.asked + 1
        op = str(clock)
        if machine.left:
            return loads((await self._recorded(op, kind, "")).value or b"null")
        value = make()
        run.write(("value", op, kind, "", clock, None, dumps(value)))
        return value

    async def _replayed(self, op: str, name: str, codec: Codec) -> Any:
        """A step's recorded value or error."""
        run = self._run
        entry = await self._recorded(op, "step", name)
        if entry.kind == "error":
            raise error_from(entry)
        try:
            return codec.decode(entry.value or b"null")
        except SerializationError as error:
            assert run.machine is not None
            await run.fail(run.machine.unreadable(entry, error))

    async def _hand_in(self, opkind: str, name: str, op: str, *answer: Any) -> Any:
        """What was executed in place while the run stopped being a straight one."""
        run = self._run
        if run.stopped is not None:
            await run.refuse()
        if run.crew is not None:
            return await run.crew.hand_in(opkind, name, op, answer)
        kind, data, value = answer
        assert run.machine is not None
        run.write((kind, op, opkind, name, run.machine.asked, None, data))
        if kind == "error":
            raise value
        return value

    async def _recorded(self, op: str, kind: str, name: str) -> Entry:
        run = self._run
        assert run.machine is not None
        try:
            return run.machine.take_next(op, kind, name)
        except NonDeterminismError as error:
            await run.fail(error)
            raise


class _RunLogger(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, run: Run) -> None:
        super().__init__(logging.getLogger(f"pyrula.run.{run.definition.name}"), {})
        self._run = run

    def isEnabledFor(self, level: int) -> bool:
        machine = self._run.machine
        if machine is None:
            journal = self._run.journal
            replaying = journal is not None and bool(journal.recorded)
        else:
            replaying = machine.left > 0
        return not replaying and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), "run_id": self._run.run_id}
        return f"[{self._run.run_id}] {msg}", kwargs


def _at_least_0(seconds: float | timedelta) -> float | timedelta:
    """A time that is over already is no mistake: it was computed by a clock that went on."""
    if isinstance(seconds, timedelta):
        return max(seconds, timedelta(0))
    return 0 if isinstance(seconds, (int, float)) and seconds < 0 else seconds


def _key(key: Any, what: str) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key).encode()
    raise SerializationError(f"{what}: a key is str, bytes, int or None, not {key!r}")


def _headers(headers: Headers | None, what: str) -> tuple[tuple[str, bytes], ...]:
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, _header(name, value, what)) for name, value in pairs)


def _header(name: Any, value: Any, what: str) -> bytes:
    if not isinstance(name, str):
        raise SerializationError(f"{what}: the name of a header is str, not {name!r}")
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise SerializationError(f"{what}: header {name!r} is str or bytes, not {value!r}")


def _milliseconds(timestamp: datetime | int | None) -> int | None:
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise TypeError("ctx.send(timestamp=) needs an aware datetime, or milliseconds since 1970")
        return round(timestamp.timestamp() * 1000)
    return timestamp
