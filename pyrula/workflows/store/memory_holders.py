"""The worker's side of submitted runs in memory."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from pyrula.workflows.errors import LeaseLost
from pyrula.workflows.store.ids import RunId
from pyrula.workflows.store.lifecycle import RunStatus
from pyrula.workflows.store.memory_board import Board, Chain, Known
from pyrula.workflows.store.memory_senders import Listening
from pyrula.workflows.store.messages import (
    WAIT_STATUS,
    Applied,
    Change,
    End,
    Lease,
    Reply,
    Unread,
    Wait,
    wakes,
)
from pyrula.workflows.store.refusals import RunNotFoundError
from pyrula.workflows.store.runs import (
    LINKS_KEPT,
    RETENTION_SECONDS,
    Beat,
    ClaimedRun,
    Claims,
    Finished,
    Query,
    Subscription,
    Suspect,
)

DEATHS_TO_ALONE = 3
_ANSWER_SECONDS = 60.0


class MemoryRunHolder:
    """RunHolder in memory."""

    _shard: ClassVar[int] = 0
    _board: Board

    async def claim(self, worker: str, served: Sequence[tuple[str, str]], n: int) -> Claims:
        board = self._board
        board.expire()
        board.fire()
        stamps = dict(served)
        classes = [*served, *((name, None) for name in stamps)]
        board.beats.setdefault(worker, next(board.counters))
        runs: list[ClaimedRun] = []
        for taken in board.queue.take(classes, n, board.microseconds()):
            chain = board.chains[taken.run]
            chain.version = chain.version or stamps[chain.name]
            chain.paid = chain.paid or taken.paid
            chain.since = board.now()
            runs.append(self._hold(chain, worker))
        await asyncio.sleep(0)
        return Claims(tuple(runs), board.next_due())

    def _hold(self, chain: Chain, worker: str) -> ClaimedRun:
        chain.status, chain.worker = RunStatus.RUNNING, worker
        chain.epoch += 1
        chain.number = 0
        self._board.held.setdefault(worker, {})[chain.id] = None
        self._board.changed(chain.id)
        return self._claimed(chain)

    def _claimed(self, chain: Chain) -> ClaimedRun:
        assert chain.worker is not None
        assert chain.version is not None
        return ClaimedRun(
            lease=Lease(chain.run_id, chain.worker, chain.epoch),
            name=chain.name,
            version=chain.version,
            params=chain.params,
            rows=tuple(sorted(chain.rows.items())),
            messages=chain.unread(),
            attempt=chain.attempt,
            owner=chain.owner,
            metadata=chain.metadata,
            created_at=chain.created_at,
            parent=chain.parent,
            deaths=chain.deaths,
            alone=chain.deaths >= DEATHS_TO_ALONE,
            doomed=chain.doomed,
            retried=chain.retried,
            interrupts=chain.open_interrupts(),
            children=tuple(chain.children.values()),
        )

    async def next_due(self) -> float | None:
        await asyncio.sleep(0)
        return self._board.next_due()

    async def append(self, lease: Lease, change: Change) -> Reply:
        chain = self._board.held_by(lease)
        self._write(chain, change)
        await asyncio.sleep(0)
        return Reply(chain.unread(change.seen))

    def _write(self, chain: Chain, change: Change) -> None:
        if change.number <= chain.number:
            return
        if change.number != chain.number + 1:
            raise LeaseLost(f"run {chain.run_id} has change {chain.number}, so {change.number} can't be the next")
        chain.number = change.number
        chain.retried = False
        if change.rows:
            chain.deaths = 0
        for index, data in change.rows:
            if data:
                chain.rows[index] = data
            else:
                chain.rows.pop(index, None)
        self._consume(chain, change.consumed)
        for applied in change.applied:
            self._apply(chain, applied)
        chain.interrupts.update(change.opened)
        for wait_id in change.closed:
            chain.interrupts.pop(wait_id, None)
        for child in change.children:
            chain.children.setdefault(child.run_id, child)
        chain.events += change.events
        if change.attempt is not None:
            chain.attempt = change.attempt
        chain.alone = chain.alone or change.alone
        if change.applied or change.opened:
            self._board.changed(chain.id)

    def _consume(self, chain: Chain, numbers: Sequence[int]) -> None:
        now = self._board.now()
        for number in numbers:
            unread = chain.inbox.pop(number, None)
            if unread is None:
                continue
            kind, message_id = unread.message[:2]
            if kind == "child":
                chain.children.pop(message_id, None)
            known = chain.known.get((kind, message_id))
            if known is not None:
                known.consumed_at = now
        if numbers:
            chain.known = {
                key: known
                for key, known in chain.known.items()
                if known.consumed_at is None or known.consumed_at + RETENTION_SECONDS > now
            }

    def _apply(self, chain: Chain, applied: Applied) -> None:
        known = chain.known.setdefault(("update", applied.update_id), Known())
        known.applied, known.consumed_at = applied, self._board.now()

    async def unread(self, lease: Lease, seen: int) -> tuple[Unread, ...]:
        await asyncio.sleep(0)
        return self._board.held_by(lease).unread(seen)

    async def park(self, lease: Lease, change: Change, waits: Sequence[Wait]) -> Reply:
        reply = self._park(lease, change, waits)
        await asyncio.sleep(0)
        return reply

    def _park(self, lease: Lease, change: Change, waits: Sequence[Wait]) -> Reply:
        if self._left(lease):
            return Reply(parked=True)
        chain = self._board.held_by(lease)
        self._write(chain, change)
        unread = chain.unread(change.seen)
        if any(wakes(waits, message.kind, message.name) for _, message, _ in unread):
            return Reply(unread)
        status = WAIT_STATUS[waits[0].kind]
        self._leave(chain)
        self._board.wait(chain, status, list(waits))
        return Reply(parked=True)

    def _left(self, lease: Lease) -> bool:
        """Whether this lease ended by a park, pause or release of its holder's."""
        try:
            return self._board.find(lease.run_id).left_by == lease[1:]
        except RunNotFoundError:
            return False

    def _leave(self, chain: Chain) -> None:
        assert chain.worker is not None
        chain.left_by = (chain.worker, chain.epoch)
        chain.alone = False
        self._board.let_go(chain)

    async def pause(self, lease: Lease, change: Change, reason: bytes, *, failed: bool = False) -> None:
        await asyncio.sleep(0)
        if self._left(lease):
            return
        chain = self._board.held_by(lease)
        self._write(chain, change)
        for number in [number for number, unread in chain.inbox.items() if unread.message.kind == "pause"]:
            del chain.inbox[number]
        self._leave(chain)
        chain.error, chain.failed = reason, failed
        self._board.wait(chain, RunStatus.PAUSED, [])

    async def release(self, lease: Lease, change: Change | None = None) -> None:
        await asyncio.sleep(0)
        if self._left(lease):
            return
        chain = self._board.held_by(lease)
        if change is not None:
            self._write(chain, change)
        self._leave(chain)
        self._board.enqueue(chain)

    async def finish(self, lease: Lease, change: Change, end: End) -> Finished:
        answer = self._finish(lease, change, end)
        await asyncio.sleep(0)
        return answer

    def _finish(self, lease: Lease, change: Change, end: End) -> Finished:
        try:
            chain = self._board.find(lease.run_id)
        except RunNotFoundError:
            raise LeaseLost(f"run {lease.run_id} is not in the store any more") from None
        continues = end.status == "continued_as_new"
        if not continues and chain.finished and chain.ended_by == lease[1:]:
            return Finished(chain.status, chain.unread())
        following = (lease.worker, lease.epoch + 1)
        if continues and chain.continued_by == lease[1:] and (chain.worker, chain.epoch) == following:
            return Finished(RunStatus.CONTINUED_AS_NEW, next=self._claimed(chain))
        chain = self._board.held_by(lease)
        self._write(chain, change)
        chain.events += end.events
        if continues:
            return Finished(RunStatus.CONTINUED_AS_NEW, next=self._continue(chain, end))
        chain.ended_by = (lease.worker, lease.epoch)
        chain.retention = RETENTION_SECONDS if end.seconds is None else end.seconds
        self._board.end(chain, RunStatus(end.status), end.value, end.error)
        return Finished(chain.status, chain.unread())

    def _continue(self, chain: Chain, end: End) -> ClaimedRun:
        assert chain.worker is not None
        before = chain.run_id
        chain.status = RunStatus.CONTINUED_AS_NEW
        chain.links[chain.link] = (self._board.now(), chain.history(), chain.events)
        chain.links.pop(chain.link - LINKS_KEPT, None)
        self._board.expire_later(chain)
        chain.continued_by = (chain.worker, chain.epoch)
        chain.link += 1
        chain.rows = {}
        chain.events = [self._board.event("continued", run_id=before)]
        chain.interrupts = {}
        # answers to the old body's interrupts
        chain.inbox = {number: unread for number, unread in chain.inbox.items() if unread.message.kind != "resume"}
        chain.params = end.params or b"{}"
        chain.version = end.version or chain.version
        chain.attempt, chain.deaths, chain.alone = 1, 0, False
        return self._hold(chain, chain.worker)

    async def heartbeat(self, worker: str, held: Mapping[Lease, int]) -> Beat:
        board = self._board
        board.beats[worker] = next(board.counters)
        chains = [board.chains[chain_id] for chain_id in board.held.get(worker, ())]
        leases = {Lease(chain.run_id, worker, chain.epoch): chain for chain in chains}
        strays = leases.keys() - held.keys()
        for lease in sorted(strays & board.strays.get(worker, set())):
            # held for a whole beat without its holder knowing: the answer to its claim was lost
            chain = leases.pop(lease)
            self._leave(chain)
            board.enqueue(chain)
        board.strays[worker] = strays & leases.keys()
        lost = [lease for lease in held if lease not in leases]
        unread = [lease.run_id for lease, seen in held.items() if lease in leases and leases[lease].counter > seen]
        await asyncio.sleep(0)
        return Beat(tuple(lost), tuple(unread))

    async def beats(self) -> list[Suspect]:
        await asyncio.sleep(0)
        return [Suspect(self._shard, worker, counter) for worker, counter in self._board.beats.items()]

    async def reap(self, suspect: Suspect) -> int:
        board = self._board
        if board.beats.get(suspect.worker) != suspect.counter:
            return 0
        del board.beats[suspect.worker]
        board.strays.pop(suspect.worker, None)
        dead = [board.chains[chain_id] for chain_id in sorted(board.held.get(suspect.worker, ()))]
        for chain in dead:
            chain.epoch += 1
            chain.deaths += 1
            chain.doomed = chain.alone
            chain.alone = False
            board.let_go(chain)
            board.enqueue(chain)
        await asyncio.sleep(0)
        return len(dead)

    async def leave(self, worker: str) -> None:
        board = self._board
        board.beats.pop(worker, None)
        board.strays.pop(worker, None)
        for chain_id in sorted(board.held.get(worker, ())):
            self._leave(board.chains[chain_id])
            board.enqueue(board.chains[chain_id])
        await asyncio.sleep(0)

    async def relay(self) -> int:
        # in memory a result reaches the parent with the finish itself
        await asyncio.sleep(0)
        return 0

    async def questions(self, worker: str, served: Sequence[tuple[str, str]], n: int) -> tuple[Query, ...]:
        board = self._board
        classes: set[tuple[str, str | None]] = {*served, *((name, None) for name, _ in served)}
        now = board.now()
        board.answers = {key: kept for key, kept in board.answers.items() if kept[1] > now}
        board.queries = {key: asked for key, asked in board.queries.items() if asked.until > now}
        mine = [asked for asked in board.queries.values() if asked.cls in classes]
        taken: list[Query] = []
        for asked in mine:
            chain = board.chains.get(RunId.parse(asked.query.run_id).chain)
            if chain is not None and not chain.finished:
                # it may have another version by now
                asked.cls = (chain.name, chain.version)
                if asked.cls not in classes or (chain.status is RunStatus.RUNNING and chain.worker != worker):
                    continue
            if len(taken) < n:
                del board.queries[asked.query.id]
                run_id = asked.query.run_id if chain is None or chain.finished else chain.run_id
                taken.append(asked.query._replace(run_id=run_id))
        await asyncio.sleep(0)
        return tuple(taken)

    async def answer(self, query: Query, answer: bytes) -> None:
        self._board.answers[query.id] = (answer, self._board.now() + _ANSWER_SECONDS)
        self._board.changed(RunId.parse(query.run_id).chain)
        await asyncio.sleep(0)

    def on_ready(self, callback: Callable[[], None]) -> Subscription:
        return Listening(self._board.on_ready, callback, lambda: None)

    def on_inbox(self, worker: str, callback: Callable[[str], None]) -> Subscription:
        listeners = self._board.on_inbox
        callbacks = listeners.setdefault(worker, [])

        def end() -> None:
            if not callbacks and listeners.get(worker) is callbacks:
                del listeners[worker]

        return Listening(callbacks, callback, end)
