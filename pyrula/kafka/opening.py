"""Taking over assigned partitions: claim, read, confirm, and only then start.

The order is what makes it safe. The claim raises the fence in the store, so the former assignee can journal nothing
more. Then the committed offset and its completion map are read, and committed back under our own generation: only a
member that the group still has succeeds, so nobody starts on a stale assignment. Then the map and the journal are
believed only if the log is the one they were written for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from aiokafka import TopicPartition

from pyrula.kafka.address_book import AddressBook
from pyrula.kafka.addresses import Registered
from pyrula.kafka.assignment import Assignment
from pyrula.kafka.binding import Binding
from pyrula.kafka.client import BrokerError, Committed, GroupClient, MetadataTooLarge
from pyrula.kafka.commit_map import CommitMap, Foreign, decode, encode
from pyrula.kafka.deaths import CAREFUL_AFTER, CAREFUL_AT_ONCE
from pyrula.kafka.done_rows import DONE_INDEX, DoneRows, split
from pyrula.kafka.record import RawRecord, Witness, fingerprint
from pyrula.workflows.errors import StaleToken, StoreError
from pyrula.workflows.store.port import Batch, Claim, SourceStore, Token

log = logging.getLogger("pyrula.kafka")

# Reads the first record at or after an offset; None when the log has none there any more.
Probe = Callable[[TopicPartition, int], Awaitable[RawRecord | None]]


@dataclass(frozen=True, slots=True)
class Opened:
    """A partition that may start: from `start`, without the records in `done`, knowing the journal in `claim`."""

    claim: Claim
    start: int
    done: tuple[tuple[int, int], ...]
    known: Witness | None
    anchor: Witness | None
    lost: int
    another_log: bool = False
    registered: Registered | None = None
    spilled: DoneRows = field(default_factory=DoneRows)


@dataclass(frozen=True, slots=True)
class NotOpened:
    """A partition that must not start, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """A partition that may well be opened when it is tried again."""

    reason: str


class Opener:
    """Opens the partitions of one assignment, and notes there what it has claimed."""

    def __init__(
        self,
        client: GroupClient,
        store: SourceStore,
        assignment: Assignment,
        bindings: Mapping[TopicPartition, Binding],
        sources: Mapping[TopicPartition, bytes],
        probe: Probe,
        book: AddressBook | None = None,
        fence: Callable[[TopicPartition], Awaitable[None]] | None = None,
    ) -> None:
        self._client = client
        self._store = store
        self._membership = assignment.membership
        self._claimed = assignment.claimed
        self._bindings = bindings
        self._sources = sources
        self._probe = probe
        self._book = book
        self._fence = fence

    async def open(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, "Opened | NotOpened | Postponed"]:
        """Try each partition; one that is in trouble holds up no other.

        Raises MembershipLost when the group went on, BrokerError and StoreError for what all of them need.
        """
        answers: dict[TopicPartition, Opened | NotOpened | Postponed] = {}
        claims, stale = await self._claim(list(partitions), {}, answers)
        await self._fence_all(claims, answers)
        starts = await self._read([*claims, *stale])
        await self._confirm(starts, claims, answers)
        if stale:
            # The broker took our commit, so the group is ours although the store knows a higher generation of it:
            # the group was made again. Its next incarnation begins.
            log.warning("group %s was made again: its stored generations are replaced", self._client.group)
            again, raced = await self._claim(list(stale), stale, answers)
            answers.update({tp: Postponed(f"it was claimed in between, as {token}") for tp, token in raced.items()})
            await self._fence_all(again, answers)
            starts.update(await self._read([tp for tp in again if self._bindings[tp].exactly_once]))
            await self._confirm({tp: starts[tp] for tp in again}, again, answers)
            claims.update(again)
        ready = [tp for tp in starts if tp not in answers]
        opened = await asyncio.gather(*(self._start(tp, claims[tp], starts[tp]) for tp in ready))
        answers.update(zip(ready, opened, strict=True))
        return answers

    async def _claim(
        self,
        partitions: list[TopicPartition],
        replaces: Mapping[TopicPartition, Token],
        answers: dict[TopicPartition, "Opened | NotOpened | Postponed"],
    ) -> tuple[dict[TopicPartition, Claim], dict[TopicPartition, Token]]:
        """Claims, and the stored tokens of those whose generation is not above ours."""
        found = await asyncio.gather(
            *(
                self._store.claim_source(self._sources[tp], self._membership.generation, replaces=replaces.get(tp))
                for tp in partitions
            ),
            return_exceptions=True,
        )
        claims: dict[TopicPartition, Claim] = {}
        stale: dict[TopicPartition, Token] = {}
        for tp, claim in zip(partitions, found, strict=True):
            if isinstance(claim, StaleToken):
                stale[tp] = claim.stored
            elif isinstance(claim, StoreError):
                answers[tp] = Postponed(str(claim))
            elif isinstance(claim, BaseException):
                raise claim
            else:
                claims[tp] = claim
                self._claimed[self._sources[tp]] = claim.token
        return claims, stale

    async def _fence_all(
        self,
        claims: dict[TopicPartition, Claim],
        answers: dict[TopicPartition, "Opened | NotOpened | Postponed"],
    ) -> None:
        """Before their offsets are read nobody else may be able to commit them in a transaction any more."""
        fenced = [tp for tp in claims if self._bindings[tp].exactly_once]
        if self._fence is None or not fenced:
            return
        found = await asyncio.gather(*(self._fence(tp) for tp in fenced), return_exceptions=True)
        for tp, error in zip(fenced, found, strict=True):
            if isinstance(error, BrokerError):
                answers[tp] = Postponed(str(error))
                del claims[tp]
            elif error is not None:
                raise error

    async def _read(self, partitions: list[TopicPartition]) -> dict[TopicPartition, "_Start | NotOpened"]:
        """What is committed, and what it means for the log as it is."""
        committed = await self._client.committed(partitions)
        ranges = await self._client.offsets(partitions)
        return {tp: self._where(tp, committed.get(tp), *ranges[tp]) for tp in partitions}

    async def _confirm(
        self,
        starts: "Mapping[TopicPartition, _Start | NotOpened]",
        claims: Mapping[TopicPartition, Claim],
        answers: dict[TopicPartition, "Opened | NotOpened | Postponed"],
    ) -> None:
        """Commit back under our membership what was read."""
        confirmed: dict[TopicPartition, _Start] = {}
        for tp, start in starts.items():
            if isinstance(start, NotOpened):
                continue
            try:
                await self._lower(tp, start, claims.get(tp))
            except StoreError as error:
                answers[tp] = Postponed(str(error))
            else:
                confirmed[tp] = start
        texts = {tp: Committed(start.offset, start.text) for tp, start in confirmed.items()}
        while True:
            try:
                return await self._client.commit(texts, self._membership)
            except MetadataTooLarge:
                # The broker takes less than when the map was committed; an empty text is always small enough.
                texts = {tp: self._smaller(start) for tp, start in confirmed.items()}

    async def _lower(self, tp: TopicPartition, start: "_Start", claim: Claim | None) -> None:
        """Whoever wrote an offset that isn't ours has reset the group's offsets by hand (or they are new)."""
        if claim is None or not isinstance(start.map, Foreign):
            return
        told, _ = split(claim.rows)
        if told:
            # They were true of the offsets before. Once ours stand in their place nobody could tell.
            rows = [(row.position, DONE_INDEX, b"") for row in told]
            (refused,) = await self._store.append_rows([Batch(self._sources[tp], claim.token, rows, claim.high or 0)])
            if refused is not None:
                raise refused
        if claim.below is None:
            return
        if start.offset < claim.below:
            log.warning("%s[%d]: offsets were reset to %d (from %d)", *tp, start.offset, claim.below)
        await self._store.lower_source(self._sources[tp], claim.token, start.offset)

    def _smaller(self, start: "_Start") -> Committed:
        done, witness = (start.map.ranges, start.map.witness) if isinstance(start.map, CommitMap) else ((), None)
        store, limit = self._store.instance_id, self._client.metadata_limit
        return Committed(start.offset, encode(start.offset, done, witness, store, limit, anchor=start.map.anchor))

    def _where(self, tp: TopicPartition, committed: Committed | None, first: int, end: int) -> "_Start | NotOpened":
        """The offset to start from, and the map of what is done above it."""
        binding = self._bindings[tp]
        if committed is None:
            offset = first if binding.auto_offset_reset == "earliest" else end
            return _Start(offset, self._empty(offset), Foreign("none"), first, end)
        offset, text = committed
        if first <= offset <= end:
            found = decode(text, offset, end)
            if isinstance(found, Foreign):
                if text:
                    log.warning(
                        "%s[%d]: the committed offset's metadata is not used (%s); processing starts at %d",
                        *tp, found.reason, offset,
                    )  # fmt: skip
                return _Start(offset, self._empty(offset), found, first, end)
            return _Start(offset, text, found, first, end)
        if offset < first:
            if binding.on_out_of_range == "stop":
                return NotOpened(stopped_by_loss(tp, offset, first))
            return self._at_first(offset, text, first, end)
        told = f"the committed offset {offset} is past the log's end {end}: it was cut or made again"
        if binding.on_out_of_range == "stop":
            return NotOpened(_stopped(tp, told))
        anchor = decode(text, offset, end).anchor
        where = f"; processing starts at {first}" if anchor is None else ""
        log.warning("%s[%d]: %s%s", tp.topic, tp.partition, told, where)
        return _Start(first, self._empty(first), Foreign("out of range", anchor), first, end)

    def _at_first(self, offset: int, text: str, first: int, end: int) -> "_Start":
        """The committed offset aged out; what was done of the rest of the log stays done."""
        found = decode(text, offset, end)
        if isinstance(found, CommitMap):
            ranges = tuple((max(start, first), stop) for start, stop in found.ranges if stop > first)
            found = replace(found, committed=first, ranges=ranges)
            text = encode(first, ranges, found.witness, self._store.instance_id, self._client.metadata_limit)
        else:
            text = self._empty(first)
        return _Start(first, text, found, first, end, lost=first - offset)

    def _empty(self, offset: int) -> str:
        return encode(offset, (), None, self._store.instance_id, self._client.metadata_limit)

    async def _start(
        self, tp: TopicPartition, claim: Claim, start: "_Start | NotOpened"
    ) -> "Opened | NotOpened | Postponed":
        if isinstance(start, NotOpened):
            return start
        try:
            return await self._registered(tp, await self._opened(tp, claim, start), start)
        except (BrokerError, StoreError) as error:
            return Postponed(str(error))

    async def _registered(self, tp: TopicPartition, opened: Opened | NotOpened, start: "_Start") -> Opened | NotOpened:
        """Before anything of it starts, what was sent to its runs is known."""
        if self._book is None or isinstance(opened, NotOpened):
            return opened
        over: Literal["nothing", "ended", "everything"] = "nothing"
        if opened.another_log:
            over = "everything"
        elif isinstance(start.map, Foreign) and opened.claim.below is not None:
            over = "ended"
        registered = await self._book.register(
            self._bindings[tp], tp.topic, tp.partition, self._sources[tp], opened.claim.token, opened.start, over
        )
        return replace(opened, registered=registered)

    async def _opened(self, tp: TopicPartition, claim: Claim, start: "_Start") -> Opened | NotOpened:
        """Believe the map and the journal if they are of this log."""
        done: tuple[tuple[int, int], ...] = ()
        known: Witness | None = None
        offset = start.offset
        done_rows, rows = split(claim.rows)
        claim, spilled = replace(claim, rows=rows), DoneRows(done_rows if isinstance(start.map, CommitMap) else ())
        if isinstance(start.map, CommitMap):
            known = start.map.witness
            done = (*start.map.ranges, *((first, last) for first, last in spilled.ranges() if last <= start.end))
            if self._store.durable and not start.map.written_with(self._store.instance_id):
                log.error(
                    "%s[%d]: the store is not the one that its offsets were committed with (emptied, or another one): "
                    "steps of unfinished records run again", *tp
                )  # fmt: skip
        witness = known
        if witness is None and claim.rows and claim.witness is not None:
            witness = Witness.from_bytes(claim.witness)
        same = None if witness is None else await self._same_log(tp, witness, start)
        another = False
        if same is False or (isinstance(start.map, Foreign) and start.map.anchor is not None):
            offset, told = await self._elsewhere(tp, start, known)
            if offset != start.offset and self._bindings[tp].on_out_of_range == "stop":
                return NotOpened(_stopped(tp, told))
            log.warning(
                "%s[%d]: %s. Completion map and journal of the former log are not used; processing starts at %d",
                tp.topic, tp.partition, told, offset
            )  # fmt: skip
            await self._store.lower_source(self._sources[tp], claim.token, offset, forget=True)
            done, known, claim, another = (), None, replace(claim, rows=[], below=offset), True
            spilled = DoneRows()
        if claim.crashes >= CAREFUL_AFTER:
            log.warning(
                "%s[%d]: %d workers in a row died here without a commit that moved on: at most %d records run at once, "
                "each marked, to find the one that kills them", tp.topic, tp.partition, claim.crashes, CAREFUL_AT_ONCE
            )  # fmt: skip
        if claim.below is not None and offset < claim.below and isinstance(start.map, CommitMap):
            log.warning(
                "%s[%d]: the committed offset %d is older than what was committed before (%d): processing starts there",
                *tp, offset, claim.below
            )  # fmt: skip
            offset = claim.below
        anchor = start.map.anchor
        kept = anchor if anchor is not None and anchor.offset < offset else None
        return Opened(claim, offset, done, known, kept, start.lost, another, spilled=spilled)

    async def _elsewhere(self, tp: TopicPartition, start: "_Start", known: Witness | None) -> tuple[int, str]:
        """Where to start in a log that holds another record than was committed for, and what became of it.

        If the anchor is still there the log was cut somewhere above it. What lies between was done, or is new.
        """
        anchor = start.map.anchor
        same = None if anchor is None else await self._same_log(tp, anchor, start)
        if same and anchor is not None:
            return anchor.offset + 1, f"the log was cut behind offset {anchor.offset}, which is still the same"
        if same is False or (known is not None and known.offset < start.offset):
            return start.first, "the log was made again: what lies below the committed offset isn't what it was"
        return start.offset, "the log was cut or made again: what lies above the committed offset isn't what it was"

    async def _same_log(self, tp: TopicPartition, witness: Witness, start: "_Start") -> bool | None:
        """Whether the witness is still where it was; None if it is compacted or expired, so that nothing tells."""
        if witness.offset >= start.end:
            return False
        if witness.offset < start.first:
            return None
        record = await self._probe(tp, witness.offset)
        if record is None or record.offset != witness.offset:
            return None
        return fingerprint(record) == witness.fingerprint


def stopped_by_loss(tp: TopicPartition, wanted: int, first: int) -> str:
    """Why a partition is not read on: retention took what came next."""
    return _stopped(tp, f"{first - wanted} offsets from {wanted} to {first - 1} are lost to retention")


def _stopped(tp: TopicPartition, told: str) -> str:
    return f'{tp.topic}[{tp.partition}]: {told}; on_out_of_range="stop", so reset the group\'s offset to go on'


@dataclass(frozen=True, slots=True)
class _Start:
    """Where to start in a log that has `first` to `end`; `text` is what to commit, and `map` what it says."""

    offset: int
    text: str
    map: CommitMap | Foreign
    first: int
    end: int
    lost: int = 0
