"""What the bodies of a process share whoever reads their records: where clients reach them, and who may run alone."""

from pyrula.kafka.address_book import AddressBook
from pyrula.kafka.binding import Binding
from pyrula.kafka.endings import RunEndings
from pyrula.kafka.replayers import Replayers
from pyrula.kafka.solitude import Solitude

__all__ = ["Household"]


class Household:
    """`pools` are those beside the bindings' own; whoever counts the bodies of the process counts theirs, too."""

    def __init__(self, book: AddressBook, solitude: Solitude, pools: list[Replayers]) -> None:
        self.book = book
        self._solitude = solitude
        self._pools = pools

    def admit(self, binding: Binding, pool: Replayers, endings: RunEndings) -> None:
        """A pool begins."""
        pool.solitude = self._solitude
        self.book.serve(binding, pool, endings)
        self._pools.append(pool)

    def dismiss(self, binding: Binding, pool: Replayers) -> None:
        """A pool has ended, with all of its bodies."""
        self._pools.remove(pool)
        self.book.unserve(binding)
