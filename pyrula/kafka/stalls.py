"""A loop that stands still: noticed, measured, and blamed on the run that held it.

While code blocks the loop no heartbeat goes out, so a block longer than the session ends the membership. The loop's own
clockwork tells how long it lasted; a thread looks meanwhile at what the loop's thread executes, since afterwards nobody
knows. It can look only while the interpreter lets it: a block inside C code that keeps the lock stays nameless.
"""

import asyncio
import logging
import sys
import threading
from time import monotonic
from types import FrameType

from pyrula.workflows.context import Context

log = logging.getLogger("pyrula.kafka")

BEAT_SECONDS = 0.5
STALL_SECONDS = 2.0


class StallWatch:
    """Watches the loop that it is started in."""

    def __init__(self, session_timeout: float) -> None:
        self._session_timeout = session_timeout
        self._ended = threading.Event()
        self._due = 0.0
        self._beating: asyncio.TimerHandle | None = None
        self._holder: str | None = None
        self._thread_id = 0

    def start(self) -> None:
        """Watch the running loop, whose thread is this one."""
        self._thread_id = threading.get_ident()
        self._schedule()
        threading.Thread(target=self._look_regularly, name="pyrula-stalls", daemon=True).start()

    def stop(self) -> None:
        """End the watch; its thread ends by itself."""
        self._ended.set()
        if self._beating is not None:
            self._beating.cancel()

    def _schedule(self) -> None:
        self._due = monotonic() + BEAT_SECONDS
        self._beating = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        late = monotonic() - self._due
        holder, self._holder = self._holder, None
        if late > STALL_SECONDS:
            log.warning(
                "the event loop stood still for %.1f s%s; session_timeout is %g s, and no heartbeat goes out meanwhile",
                late, holder or " (in no run that was seen: was the process suspended?)", self._session_timeout
            )  # fmt: skip
        self._schedule()

    def _look_regularly(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            if self._holder is None and monotonic() - self._due > STALL_SECONDS / 2:
                self._holder = _blamed(sys._current_frames().get(self._thread_id))  # noqa: SLF001


def _blamed(frame: FrameType | None) -> str | None:
    """The run among the frames that are executing, known by the context that its body was given."""
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, Context):
                run = value.run
                return (
                    f" in run {run.id} of workflow {run.name}: blocking work belongs in a sync step, "
                    "which runs in a thread"
                )
        frame = frame.f_back
    return None
