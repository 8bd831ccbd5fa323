"""The records by which a later assignment knows a partition's log again. Pure."""

from pyrula.kafka.record import RawRecord, Witness, fingerprint

__all__ = ["LogWitness"]


class LogWitness:
    """`top` is the highest offset known to be done, -1 before there is one. `known` and `anchor` are what the last
    commit named."""

    __slots__ = ("_anchor", "_highest", "_known", "_next_anchor", "top")

    def __init__(self, known: Witness | None, anchor: Witness | None) -> None:
        self.top = -1
        self._highest: RawRecord | None = None
        self._known = known
        self._anchor = anchor
        self._next_anchor: RawRecord | None = None

    def on_read(self, record: RawRecord) -> None:
        """A batch begins with it."""
        if self._next_anchor is None:
            self._next_anchor = record

    def on_done(self, record: RawRecord) -> None:
        """It needs nothing more."""
        offset = record.offset
        if offset > self.top:
            self.top, self._highest = offset, record

    def witness(self) -> Witness | None:
        """The highest record known to be done."""
        highest, known = self._highest, self._known
        if highest is None or (known is not None and known.offset > highest.offset):
            return known
        return Witness(highest.offset, fingerprint(highest))

    def anchor(self, committed: int) -> Witness | None:
        """A record below `committed`, the offset of the commit that is about to be made: the first one of a batch, now
        and then, since no record is kept once it is done."""
        record = self._next_anchor
        if record is not None and record.offset < committed:
            self._anchor, self._next_anchor = Witness(record.offset, fingerprint(record)), None
        return self._anchor
