"""Where tasks stand: each has a place in its run, given when it is created.

A place is the parent's place, the coroutine's `__qualname__` and how many of that name the parent has made before. It
doesn't depend on when a task first runs or asks for something, nor on helper tasks of other names.
"""

import asyncio
from typing import Any, Final

__all__ = ["Place", "escaped", "name_of", "still_armed"]

# The operations' own coroutines are tasks in a gather; journals shouldn't depend on what their methods are called.
_NAMES: Final = {
    f"Context.{name}": name for name in ("step", "sleep", "now", "random", "uuid", "send", "gather", "wait", "trigger")
} | {
    f"Talking.{name}": name for name in ("wait_for_signal", "interrupt", "run_child", "start_child", "continue_as_new")
}


class Place:
    """A task's place.

    `asked` counts the operations it asked for; `alarms` are timers that would cancel them. It is `told` once it knows
    that the run was cancelled.
    """

    __slots__ = ("_children", "alarms", "asked", "coro", "path", "serial", "task", "told")

    def __init__(self, path: str, serial: int) -> None:
        self.path = path
        self.serial = serial
        self.asked = 0
        self.task: asyncio.Task[Any] | None = None
        self.coro: Any = None
        self.alarms: list[asyncio.TimerHandle] | None = None
        self.told = False
        self._children: dict[str, int] = {}

    def next_id(self) -> str:
        """The id of the next operation of this task."""
        self.asked += 1
        return f"{self.path}:{self.asked}" if self.path else str(self.asked)

    def next_child(self, name: str) -> str:
        """The path of the next child task of that name."""
        number = self._children.get(name, 0)
        self._children[name] = number + 1
        return f"{self.path}/{name}.{number}" if self.path else f"{name}.{number}"

    def armed(self) -> list[asyncio.TimerHandle]:
        """The alarms that could still go off."""
        self.alarms = alarms = still_armed(self.alarms or [])
        return alarms


def still_armed(alarms: list[asyncio.TimerHandle]) -> list[asyncio.TimerHandle]:
    """Those timers that are neither cancelled nor gone off."""
    return [
        alarm
        for alarm in alarms
        if alarm._scheduled and not alarm.cancelled()  # type: ignore[attr-defined]  # noqa: SLF001
    ]


def name_of(coro: Any) -> str:
    """The name that a coroutine gives to its task's place."""
    name = getattr(coro, "__qualname__", None) or type(coro).__qualname__
    return _NAMES.get(name) or name.replace("/", "_").replace(":", "_")


def escaped(text: str) -> str:
    """A text of a user's as a part of a path: different ones stay different."""
    return text.replace("%", "%25").replace("/", "%2F").replace(":", "%3A")
