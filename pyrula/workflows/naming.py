"""What to say of a name that isn't known: the one that was perhaps meant; of a URL where a store belongs; and what can
be the name of a topic."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

from pyrula.workflows.errors import ConfigurationError

__all__ = ["is_topic", "meant", "names_checked", "options_of", "refuse_unknown", "refuse_url"]

C = TypeVar("C", bound=type[Any])

# org.apache.kafka.common.internals.Topic
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic(name: object) -> bool:
    """Whether Kafka takes it for the name of a topic."""
    return isinstance(name, str) and _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def meant(name: str, known: Iterable[str]) -> str:
    """The question whether the name that is most like it was meant; nothing if none is."""
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def refuse_url(store: object) -> None:
    """ConfigurationError for the URL of a store in a store's place."""
    if isinstance(store, str):
        raise ConfigurationError("store= takes a store, such as ValkeyStore(url) or MemoryStore(), not a URL itself")


def options_of(function: Callable[..., Any], *besides: str) -> tuple[str, ...]:
    """The names of its parameters but `self` and those named."""
    return tuple(name for name in inspect.signature(function).parameters if name not in ("self", *besides))


def refuse_unknown(given: Iterable[str], known: tuple[str, ...], what: str) -> None:
    """ConfigurationError for the first name that isn't known."""
    for name in given:
        if name not in known:
            hint = meant(name, known) or f" (it takes {', '.join(known)})"
            raise ConfigurationError(f"{what} takes no {name}={hint}")


def names_checked(cls: C) -> C:
    """Makes a class refuse unknown keywords with a ConfigurationError instead of a TypeError."""
    init = cls.__init__
    known = options_of(init)

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        refuse_unknown(kwargs, known, cls.__name__)
        init(self, *args, **kwargs)

    cls.__init__ = checked
    return cls
