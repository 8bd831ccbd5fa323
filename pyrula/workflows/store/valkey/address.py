"""The store's URL: where the server is and how to get in. No I/O; the password is in nothing that is ever shown."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import RedisError

from pyrula.workflows.errors import ConfigurationError

_SCHEMES = {"valkey": "redis", "redis": "redis", "valkeys": "rediss", "rediss": "rediss", "unix": "unix"}
_CLASSES: dict[str, Any] = {"redis": Connection, "rediss": SSLConnection, "unix": UnixDomainSocketConnection}
_OPTIONS = {"db", "username", "password"}
_FILES = {"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"}
_WRONG = (
    "the store's URL{given} can't be used; it must be valkey://user:password@host:port/db (or redis://, with TLS "
    "valkeys:// or rediss://) or unix:///path?db=0, special characters in user and password percent-encoded"
)


# Scheme, what may be secret, host and port and path, options.
_SHOWABLE = re.compile(r"(?:([\w+]+)://)?(?:(.*)@)?([\w.\[\]-]*(?::\d*)?(?:/[^?#@:]*)?)(\?.*)?", re.DOTALL)


def _wrong(url: object) -> str:
    """What is wrong with it, its user, password and options left out; all of it where they can't be told."""
    found = _SHOWABLE.fullmatch(url) if isinstance(url, str) else None
    if found is None or not url:
        return _WRONG.format(given="")
    scheme, secret, place, options = found.groups()
    rest = f"{'' if secret is None else '***@'}{place}{'' if options is None else '?***'}"
    said = _WRONG.format(given=f" {'' if scheme is None else f'{scheme}://'}{rest}")
    return said if scheme in _SCHEMES or not place else f"{said}. Did you mean valkey://{rest}?"


class Address:
    """Makes connections; its text leaves user and password out.

    >>> Address("valkey://app:secret@store.internal/2")
    Address('valkey://store.internal:6379/2')
    """

    __slots__ = ("_arguments", "_class", "_scheme", "host", "text")

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
        if scheme not in _SCHEMES:
            raise ConfigurationError(_wrong(url))
        kind = _SCHEMES[scheme]
        # A password with a bare '/' or '@' may land in any part of a URL, so redis-py's own words aren't shown.
        try:
            parts = urlsplit(url)
            options = parse_qs(parts.query, keep_blank_values=True)
            arguments: dict[str, Any] = dict(parse_url(f"{kind}://{rest}"))
            port = parts.port or 6379
        except ValueError:
            raise ConfigurationError(_wrong(url)) from None
        path = parts.path.strip("/")
        wanted = path if kind == "unix" else parts.hostname and (path.isdecimal() or not path)
        if not wanted or parts.fragment:
            raise ConfigurationError(_wrong(url))
        unknown = [name for name in options if name not in _OPTIONS and not (kind == "rediss" and name[:4] == "ssl_")]
        if unknown:
            raise ConfigurationError(f"the store's URL has options that {scheme}:// doesn't know: {unknown!r:.100}")
        for name in _FILES & arguments.keys():
            if not Path(arguments[name]).exists():
                raise ConfigurationError(f"{name} in the store's URL names no file: {arguments[name]!r}")
        self._class: Any = arguments.pop("connection_class", _CLASSES[kind])
        self._arguments = arguments
        self._scheme = "valkey" if kind == "unix" else scheme
        self.host = str(arguments.get("host", "127.0.0.1"))
        if kind == "unix":
            self.text = f"unix://{arguments['path']}?db={arguments.get('db', 0)}"
        else:
            self.text = self._told(port)
        try:
            self.connection(1.0)
        except (TypeError, ValueError, RedisError):
            raise ConfigurationError(f"the store's URL for {self.text} has a TLS option that can't be used") from None

    def _told(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{port}/{self._arguments.get('db', 0)}"

    def __repr__(self) -> str:
        return f"Address({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def at(self, host: str, port: int) -> "Address":
        """Another node of the same cluster: the same user, password and TLS."""
        node: Address = object.__new__(Address)
        node._arguments = {name: value for name, value in self._arguments.items() if name != "path"}
        node._arguments |= {"host": host, "port": port}
        node._class = Connection if self._class is UnixDomainSocketConnection else self._class
        node._scheme, node.host = self._scheme, host
        node.text = node._told(port)
        return node

    def connection(self, connect_timeout: float) -> Any:
        """A connection of redis-py, not connected yet."""
        return self._class(
            **self._arguments,
            protocol=2,
            decode_responses=False,
            # redis-py's own time-outs would make a task for every write; link.py keeps the time
            socket_timeout=None,
            socket_connect_timeout=connect_timeout,
            health_check_interval=0,
        )
