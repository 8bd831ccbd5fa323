"""Numbers on the command line."""

import argparse

__all__ = ["count", "port"]


def count(text: str) -> int:
    """An argument's type: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def port(text: str) -> int:
    """An argument's type: a port, or 0 for any that is free."""
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: a whole number from 0 to 65535")
    return int(text)
