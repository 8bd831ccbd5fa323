"""Numbers on the command line."""

import argparse

__all__ = ["count"]


def count(text: str) -> int:
    """An argument's type: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)
