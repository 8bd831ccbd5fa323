"""How often Python looks for cyclic garbage while workers run in the process.

A worker holds thousands of records and hundreds of runs that come and go, with few cycles among them. By Python's own
settings it would look through the youngest objects every few records, and find nothing.
"""

import gc
from collections.abc import Callable
from typing import Final

# Objects made and not freed between two looks. Cycles, of a body's own too, may keep so many objects for a while.
YOUNG: Final = 20_000


class Rarely:
    """Raises the threshold with the first who wants it, puts it back with the last unless somebody else has changed it.

    A threshold that is higher, or 0 for no looks at all, stays as it is.
    """

    def __init__(self) -> None:
        self._wanted = 0
        self._former: tuple[int, int, int] | None = None

    def want(self) -> Callable[[], None]:
        """From now on, until what it gives is called."""
        self._wanted += 1
        former = gc.get_threshold()
        if self._former is None and 0 < former[0] < YOUNG:
            self._former = former
            gc.set_threshold(YOUNG, *former[1:])
        return self._give_up

    def _give_up(self) -> None:
        self._wanted -= 1
        if not self._wanted and self._former is not None:
            if gc.get_threshold() == (YOUNG, *self._former[1:]):
                gc.set_threshold(*self._former)
            self._former = None


collected_rarely: Final = Rarely()
