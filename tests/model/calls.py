"""The calls that the model's processes make to a store, as plain values, and how each is made through the port.

A call is a tuple: its name, who makes it, arguments. So is its answer. Both stores are called by the same code, so that
what was found in one can be tried in the other. Rules: an answer holds nothing that only one of the stores knows
(times, counters), and a refusal is an answer: ("lost",).
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

from pyrula.kafka.record import record_identity, stream_digest
from pyrula.workflows.errors import LeaseLost, StaleToken
from pyrula.workflows.store.lanes import HandingOver, LaneBounds, LiningUp, lane_of
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.messages import Change, End, Lease, Message, Wait
from pyrula.workflows.store.port import Batch, Token
from pyrula.workflows.store.record_changes import RecordChange, RecordEnd, RecordId
from pyrula.workflows.store.records import Registration
from pyrula.workflows.store.refusals import RunFinishedError, RunNotFoundError, TransitionRefused

Call: TypeAlias = tuple[Any, ...]
Answer: TypeAlias = tuple[Any, ...]

PLACE = ("default", "billing", "orders", 3)
SOURCE = record_identity(*PLACE)
ADDRESS = f"k{stream_digest(*PLACE[:3])}-3"
SERVED = f"@{ADDRESS.rpartition('-')[0]}"
WAITS = (Wait("signal", "go"),)
ROWS = ((0, b"row"),)
FAILURE = b'{"type":"ValueError","message":"no","trace":""}'
HANDED, QUEUED = b'{"handed":1}', b'{"queued":1}'
"""What a run in the store is executed from: it says how it came there."""


def run_id(store: Any, offset: int, token: str) -> RecordId:
    return RecordId(store.shard_of(SOURCE), ADDRESS, offset, Token.parse(token).incarnation)


def registration(below: int, worker: int, over: Any = "nothing") -> Registration:
    return Registration(SOURCE, ADDRESS, "cart", "1", f"w{worker}", b"{}", below, over)


async def _claim(store: Any, worker: int, generation: int, replaces: str) -> Answer:
    try:
        claim = await store.claim_source(SOURCE, generation, replaces=Token.parse(replaces) if replaces else None)
    except StaleToken as stale:
        return "stale", str(stale.stored)
    return "claimed", str(claim.token), tuple(tuple(row) for row in claim.rows)


async def _register(store: Any, worker: int, token: str, below: int, over: str) -> Answer:
    board = await store.register_source(Token.parse(token), registration(below, worker, over))
    return "registered", tuple(sorted(board.items()))


async def _lanes(store: Any, worker: int) -> Answer:
    lanes = await store.lanes(SOURCE, ADDRESS)
    return "lanes", tuple(sorted((lane[1:].decode(), state.floor, state.away) for lane, state in lanes.items()))


async def _wait(store: Any, worker: int, token: str, offset: int, holder: str, number: int) -> Answer:
    """The run stands still: its rows and what it waits for."""
    change = RecordChange(
        run_id(store, offset, token), holder, number, RunStatus.SIGNAL_WAITING, WAITS, rows=ROWS if number == 1 else ()
    )
    return await _append(store, token, offset, change)


async def _end(store: Any, worker: int, token: str, offset: int, holder: str, number: int) -> Answer:
    """The run that somebody may have addressed ends here."""
    end = RecordEnd("completed", b"null", None, 0)
    return await _append(store, token, offset, RecordChange(run_id(store, offset, token), holder, number, end=end))


async def _append(store: Any, token: str, offset: int, change: RecordChange) -> Answer:
    (refused,) = await store.append_rows([Batch(SOURCE, Token.parse(token), (), offset, None, change)])
    if refused is not None:
        raise refused
    return ("written",)


async def _hand_over(
    store: Any, worker: int, token: str, offset: int, key: str, seen: int, failed: bool = False
) -> Answer:
    """A run that waits, or that failed and blocks its lane, goes to the store."""
    lane = lane_of(key.encode()) if key else None
    waits, failure = ((), FAILURE) if failed else (WAITS, None)
    run = HandingOver(run_id(store, offset, token), lane, SERVED, HANDED, 1, seen, waits, ROWS, failure)
    try:
        answer = await store.hand_over(registration(0, worker), Token.parse(token), run)
    except LeaseLost:
        raise
    except (KeyError, ResponseError):
        return ("nothing to hand over",)
    return ("taken",) if answer.taken else ("kept", tuple(unread.number for unread in answer.messages))


async def _line_up(
    store: Any, worker: int, token: str, lines: Sequence[tuple[str, Sequence[int]]], most: int
) -> Answer:
    """Records of lanes that are away go behind their heads."""
    lanes = [
        LiningUp(lane_of(key.encode()), [(run_id(store, offset, token), QUEUED) for offset in offsets])
        for key, offsets in lines
    ]
    bounds = LaneBounds(most, 1 << 20, 1 << 20)
    answers = await store.line_up(registration(0, worker), Token.parse(token), SERVED, lanes, bounds)
    return tuple((answer.taken, answer.rest) for answer in answers)


async def _come_home(store: Any, worker: int, token: str, asked: Sequence[tuple[str, int]]) -> Answer:
    lanes = [(lane_of(key.encode()), offset) for key, offset in asked]
    answers = await store.come_home(registration(0, worker), Token.parse(token), lanes)
    return tuple(answer.where if answer.where in ("taken", "home") else "away" for answer in answers)


async def _prune(store: Any, worker: int, token: str, below: int) -> Answer:
    await store.prune_source(SOURCE, Token.parse(token), below, None)
    return ("pruned",)


async def _pass(store: Any, worker: int, token: str, below: int, positions: Sequence[int]) -> Answer:
    gone = await store.pass_records(registration(0, worker), Token.parse(token), below, list(positions))
    return "passed", tuple(sorted(lane[1:].decode() for lane in gone))


def run_text(store: Any, run: str) -> str:
    """The id of a run, of which `run` is what stands behind the address."""
    return f"{store.shard_of(SOURCE):02x}-{ADDRESS}-{run}"


def run_of(text: str) -> str:
    return text.rpartition("-")[2]


def offset_of(run: str) -> int:
    return int(run.partition(".")[0])


async def _tell(store: Any, client: int, run: str, kind: Any, number: int) -> Answer:
    """A client sends a signal or a cancel."""
    name = "go" if kind == "signal" else ""
    message = Message(kind, f"{kind}{number}" if name else "cancel", name)
    try:
        answer = await store.deliver(run_text(store, run), message)
    except (RunFinishedError, RunNotFoundError) as refused:
        return type(refused).__name__, ""
    return "told", str(answer.status)


async def _retry(store: Any, client: int, run: str) -> Answer:
    """A client lets a run that failed, and blocks its lane, go on."""
    try:
        return "retried", str(await store.retry(run_text(store, run)))
    except TransitionRefused:
        return ("refused",)


async def _take(store: Any, executor: int) -> Answer:
    """Claims one run that is ready."""
    claims = await store.claim(f"x{executor}", [(SERVED, "1")], 1)
    if not claims.runs:
        return ("none",)
    (run,) = claims.runs
    if run.params == HANDED:
        assert run.rows[:1] == ROWS, f"run {run.lease.run_id} has lost its journal: {run.rows}"
    messages = tuple((unread.number, unread.message.kind) for unread in run.messages)
    return "run", run_of(run.lease.run_id), run.lease.epoch, messages


def _lease(store: Any, executor: int, run: str, epoch: int) -> Lease:
    return Lease(run_text(store, run), f"x{executor}", epoch)


async def _finish(store: Any, executor: int, run: str, epoch: int, consumed: Sequence[int], status: Any) -> Answer:
    change = Change(1, consumed=tuple(consumed))
    finished = await store.finish(_lease(store, executor, run, epoch), change, End(status))
    return "finished", str(finished.status)


async def _park(store: Any, executor: int, run: str, epoch: int, consumed: Sequence[int]) -> Answer:
    change = Change(1, seen=max(consumed, default=0), consumed=tuple(consumed))
    reply = await store.park(_lease(store, executor, run, epoch), change, WAITS)
    return ("parked",) if reply.parked else ("kept", tuple(unread.number for unread in reply.messages))


async def _block(store: Any, executor: int, run: str, epoch: int, consumed: Sequence[int]) -> Answer:
    """It has failed again: it blocks its lane until somebody retries or cancels it."""
    await store.pause(_lease(store, executor, run, epoch), Change(1, consumed=tuple(consumed)), FAILURE, failed=True)
    return ("blocked",)


async def _reap(store: Any, executor: int) -> Answer:
    """Others take an executor for dead, and put its runs back."""
    suspects = [suspect for suspect in await store.beats() if suspect.worker == f"x{executor}"]
    return "reaped", sum([await store.reap(suspect) for suspect in suspects])


_CALLS: dict[str, Callable[..., Coroutine[Any, Any, Answer]]] = {
    "claim": _claim,
    "register": _register,
    "lanes": _lanes,
    "wait": _wait,
    "end": _end,
    "hand over": _hand_over,
    "line up": _line_up,
    "come home": _come_home,
    "prune": _prune,
    "pass": _pass,
    "tell": _tell,
    "take": _take,
    "finish": _finish,
    "park": _park,
    "block": _block,
    "retry": _retry,
    "reap": _reap,
}

EXECUTOR = frozenset({"take", "finish", "park", "block", "reap", "tell", "retry"})
"""Calls that no holder of a source makes."""


async def call(stores: Sequence[Any], call: Call) -> Answer:
    """Make a call: `stores` are the processes' own handles on one store, the last one for executors and clients."""
    name, who, *arguments = call
    store = stores[-1] if name in EXECUTOR else stores[who]
    try:
        return await _CALLS[name](store, who, *arguments)
    except LeaseLost:
        return ("lost",)
