"""What goes wrong at the command line and is for the person at the keyboard to mend: told without our own traceback."""

__all__ = ["Problem"]


class Problem(Exception):
    """The command can't do what was asked; the text says what happened and what to do. Exit status 2."""
