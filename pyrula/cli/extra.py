"""What an extra brings: imported where a command needs it, so that the other commands do without."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyrula.cli.problem import Problem

__all__ = ["needing_http"]


@contextmanager
def needing_http() -> Iterator[None]:
    """Around an import from `pyrula.http`: Problem, naming the extra, if what that needs isn't installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("pyrula"):
            raise
        raise Problem(f"this needs {error.name}, of the extra http: pip install 'pyrula[http]'") from error
