"""What bars are drawn with, on terminals that know only some characters."""

from typing import TextIO

__all__ = ["bar"]


def bar(share: float, width: int, stream: TextIO) -> str:
    """So much of a bar is full."""
    full = int(share * width)
    filled, empty = "█░" if _can_say("█░", stream) else "#-"
    return filled * full + empty * (width - full)


def _can_say(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
