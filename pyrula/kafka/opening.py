"""Taking over assigned partitions: claim, read, confirm, and only then start.

The order is what makes it safe. The claim raises the fence in the store, so the former assignee can journal nothing
more. Then the committed offset and its completion map are read, and committed back under our own generation: only a
member that the group still has succeeds, so nobody starts on a stale assignment. Then the map and the journal are
believed only if the log is the one they were written for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from aiokafka import TopicPartition

from pyrula.kafka.binding import Binding
from pyrula.kafka.client import Committed, GroupClient, Membership, MetadataTooLarge
from pyrula.kafka.commit_map import CommitMap, Foreign, decode, encode
from pyrula.kafka.partition import Raw
from pyrula.kafka.record import Witness, fingerprint
from pyrula.workflows.errors import StaleToken
from pyrula.workflows.store.port import Claim, SourceStore, Token

log = logging.getLogger("pyrula.kafka")

# Reads the first record at or after an offset; None when the log has none there any more.
Probe = Callable[[TopicPartition, int], Awaitable[Raw | None]]


@dataclass(frozen=True, slots=True)
class Opened:
    """A partition that may start: from `start`, without the records in `done`, knowing the journal in `claim`."""

    claim: Claim
    start: int
    done: tuple[tuple[int, int], ...]
    known: Witness | None
    lost: int


@dataclass(frozen=True, slots=True)
class NotOpened:
    """A partition that must not start, and why."""

    reason: str


class Opener:
    """Opens the partitions of one assignment."""

    def __init__(
        self,
        client: GroupClient,
        store: SourceStore,
        membership: Membership,
        bindings: Mapping[TopicPartition, Binding],
        sources: Mapping[TopicPartition, bytes],
        probe: Probe,
    ) -> None:
        self._client = client
        self._store = store
        self._membership = membership
        self._bindings = bindings
        self._sources = sources
        self._probe = probe
        self.claimed: dict[TopicPartition, Token] = {}

    async def open(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Opened | NotOpened]:
        """Open each partition. Raises MembershipLost when the group went on, BrokerError and StoreUnavailable."""
        wanted = list(partitions)
        if not wanted:
            return {}
        claims, stale = await self._claim(wanted, {})
        starts = await self._confirm(wanted, claims)
        if stale:
            # The broker took our commit, so the group is ours although the store knows a higher generation of it:
            # the group was made again. Its next incarnation begins.
            log.warning("group %s was made again: its stored generations are replaced", self._client.group)
            again, still = await self._claim(list(stale), stale)
            claims.update(again)
            starts.update(await self._confirm(list(again), again))
            wanted = [tp for tp in wanted if tp not in still]
        opened = await asyncio.gather(*(self._start(tp, claims[tp], starts[tp]) for tp in wanted))
        return dict(zip(wanted, opened, strict=True))

    async def _claim(
        self, partitions: list[TopicPartition], replaces: Mapping[TopicPartition, Token]
    ) -> tuple[dict[TopicPartition, Claim], dict[TopicPartition, Token]]:
        answers = await asyncio.gather(
            *(
                self._store.claim_source(self._sources[tp], self._membership.generation, replaces=replaces.get(tp))
                for tp in partitions
            ),
            return_exceptions=True,
        )
        claims: dict[TopicPartition, Claim] = {}
        stale: dict[TopicPartition, Token] = {}
        for tp, answer in zip(partitions, answers, strict=True):
            if isinstance(answer, StaleToken):
                stale[tp] = answer.stored
            elif isinstance(answer, BaseException):
                raise answer
            else:
                claims[tp] = answer
                self.claimed[tp] = answer.token
        return claims, stale

    async def _confirm(
        self, partitions: list[TopicPartition], claims: Mapping[TopicPartition, Claim]
    ) -> dict[TopicPartition, "_Start | NotOpened"]:
        """Read what is committed and commit it back under our membership."""
        committed = await self._client.committed(partitions)
        ranges = await self._client.offsets(partitions)
        starts: dict[TopicPartition, _Start | NotOpened] = {}
        confirm: dict[TopicPartition, Committed] = {}
        for tp in partitions:
            start = self._where(tp, committed.get(tp), *ranges[tp])
            starts[tp] = start
            if isinstance(start, _Start):
                claim = claims.get(tp)
                if claim is not None and claim.below is not None and isinstance(start.map, Foreign):
                    # Whoever wrote this offset wasn't us: the offsets were reset by hand (or are new).
                    if start.offset < claim.below:
                        log.warning("%s: offsets were reset to %d (from %d)", tp, start.offset, claim.below)
                    await self._store.lower_source(self._sources[tp], claim.token, start.offset)
                confirm[tp] = Committed(start.offset, start.text)
        await self._commit(confirm, starts)
        return starts

    async def _commit(
        self, confirm: Mapping[TopicPartition, Committed], starts: "Mapping[TopicPartition, _Start | NotOpened]"
    ) -> None:
        while True:
            try:
                return await self._client.commit(confirm, self._membership)
            except MetadataTooLarge:
                # The broker takes less than when the map was committed; an empty text is always small enough.
                confirm = {tp: self._smaller(start) for tp, start in starts.items() if isinstance(start, _Start)}

    def _smaller(self, start: "_Start") -> Committed:
        done, witness = (start.map.ranges, start.map.witness) if isinstance(start.map, CommitMap) else ((), None)
        text = encode(start.offset, done, witness, self._store.instance_id, self._client.metadata_limit)
        return Committed(start.offset, text)

    def _where(self, tp: TopicPartition, committed: Committed | None, first: int, end: int) -> "_Start | NotOpened":
        """The offset to start from, and the map of what is done above it."""
        binding = self._bindings[tp]
        if committed is None:
            offset = first if binding.auto_offset_reset == "earliest" else end
            return _Start(offset, self._empty(offset), Foreign("none"), 0)
        offset, text = committed
        if first <= offset <= end:
            found = decode(text, offset, end)
            if isinstance(found, Foreign):
                if text:
                    log.warning(
                        "%s: the committed offset's metadata is not used (%s); processing starts at %d",
                        tp, found.reason, offset,
                    )  # fmt: skip
                return _Start(offset, self._empty(offset), found, 0)
            return _Start(offset, text, found, 0)
        lost = max(0, first - offset)
        told = f"{tp.topic}[{tp.partition}]: the committed offset {offset} is outside the log ({first} to {end}); " + (
            f"{lost} offsets from {offset} to {first - 1} are lost to retention"
            if lost
            else "the log was cut or made again"
        )
        if binding.on_out_of_range == "stop":
            return NotOpened(f'{told}; on_out_of_range="stop", so reset the group\'s offset to go on')
        log.warning("%s; processing starts at %d", told, first)
        return _Start(first, self._empty(first), Foreign("out of range"), lost)

    def _empty(self, offset: int) -> str:
        return encode(offset, (), None, self._store.instance_id, self._client.metadata_limit)

    async def _start(self, tp: TopicPartition, claim: Claim, start: "_Start | NotOpened") -> Opened | NotOpened:
        if isinstance(start, NotOpened):
            return start
        done: tuple[tuple[int, int], ...] = ()
        known: Witness | None = None
        offset = start.offset
        if isinstance(start.map, CommitMap):
            done, known = tuple(start.map.ranges), start.map.witness
            if self._store.durable and not start.map.written_with(self._store.instance_id):
                log.error(
                    "%s: the store is not the one that its offsets were committed with (emptied, or another one): "
                    "steps of unfinished records run again", tp
                )  # fmt: skip
        witness = known
        if witness is None and claim.witness is not None:
            witness = Witness.from_bytes(claim.witness)
        if (done or claim.rows) and witness is not None and not await self._same_log(tp, witness):
            log.warning(
                "%s: offset %d holds another record than before: the topic was made again or its log cut, so the "
                "completion map and the journal of the former log are not used", tp, witness.offset
            )  # fmt: skip
            await self._store.lower_source(self._sources[tp], claim.token, offset, forget=True)
            done, known, claim = (), None, replace(claim, rows=[], below=offset)
        if claim.below is not None and offset < claim.below and isinstance(start.map, CommitMap):
            log.warning(
                "%s: the committed offset %d is older than what was committed before (%d): processing starts there",
                tp, offset, claim.below
            )  # fmt: skip
            offset = claim.below
        return Opened(claim, offset, done, known, start.lost)

    async def _same_log(self, tp: TopicPartition, witness: Witness) -> bool:
        """Whether the witness is still where it was. Compacted or expired: nothing speaks against it."""
        first, end = (await self._client.offsets([tp]))[tp]
        if witness.offset >= end:
            return False
        if witness.offset < first:
            return True
        record = await self._probe(tp, witness.offset)
        if record is None or record.offset != witness.offset:
            return True
        return fingerprint(record) == witness.fingerprint


@dataclass(frozen=True, slots=True)
class _Start:
    offset: int
    text: str
    map: CommitMap | Foreign
    lost: int
