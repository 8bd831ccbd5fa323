"""Which workers are dead, judged from their counters. Pure: what was read and this process's own time come in.

Rules: a counter is compared with itself only, and time is the observer's monotonic one, so nobody's clock matters. An
observer that was cut off from the store has seen nothing meanwhile: it forgets, and begins again.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

__all__ = ["Watch"]


B = TypeVar("B", bound=Hashable)


class Watch(Generic[B]):
    """Remembers since when each counter stands still. A counter is anything that equals what it was while it stands.

    >>> from pyrula.workflows.store.runs import Suspect
    >>> watch = Watch[Suspect](lease_seconds=30)
    >>> beat = Suspect(shard=0, worker="w1", counter=7)
    >>> watch.observe([beat], 100.0), watch.observe([beat], 130.0)
    ([], [Suspect(shard=0, worker='w1', counter=7)])
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        self._since: dict[B, float] = {}

    def observe(self, beats: Iterable[B], now: float) -> list[B]:
        """Those whose counter has stood still for a whole lease while this process looked on."""
        self._since = {beat: self._since.get(beat, now) for beat in beats}
        return [beat for beat, since in self._since.items() if now - since >= self._lease]

    def forget(self) -> None:
        self._since.clear()
