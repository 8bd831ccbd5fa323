"""What a body asks the replay machine for when it has several tasks. No I/O, no asyncio, no clock."""

from pyrula.workflows.replay.mismatch import describe

__all__ = ["Operation"]


class Operation:
    """Something a body asked for and waits for. The id is the place of its task and its number there."""

    __slots__ = ("id", "kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.id = ""
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return describe(self.kind, self.name, self.id)
