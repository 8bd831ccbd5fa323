"""Who may do what: principals with a role and perhaps one owner, and the bearer tokens that stand for them.

Rules: a token is 32 random bytes, so one round of SHA-256 keeps it as safe as a slow hash would. Only hashes are kept;
a presented token is compared with each of them in constant time. A file of tokens is read again when it changes, so
that a token can be taken back; one that can't be read then changes nothing. Nothing here does HTTP.
"""

import base64
import hashlib
import hmac
import logging
import re
import secrets
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from time import monotonic
from typing import Any, Final

from pyrula.workflows.errors import ConfigurationError

__all__ = ["Principal", "Role", "Token", "Tokens", "hash_of", "new_token"]

log = logging.getLogger("pyrula.http")

LOOK_SECONDS: Final = 1.0
"""Between looks at whether the file of tokens has changed."""

PREFIX: Final = "pyrula_"
"""Of every token, so that scanners for leaked secrets know one."""

_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


class Role(IntEnum):
    """What one may do; each role includes those before it."""

    READ = 1
    """Look at runs, and query them."""
    OPERATE = 2
    """Start runs, talk to them, stop them and retry them; pause and fire schedules."""
    ADMIN = 3
    """Make and delete schedules; start and stop backfills."""

    @classmethod
    def named(cls, name: str) -> "Role":
        """ConfigurationError for what is no role."""
        try:
            return cls[name.upper()]
        except (KeyError, AttributeError):
            known = ", ".join(role.name.lower() for role in cls)
            raise ConfigurationError(f"role {name!r:.100} is none of {known}") from None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. `owner` None may see and touch the runs of all owners; any other only those with that owner.

    >>> Principal("acme", Role.OPERATE).sees("globex")
    False
    """

    owner: str | None
    role: Role
    name: str = ""

    def __post_init__(self) -> None:
        if self.owner is not None and (not isinstance(self.owner, str) or not self.owner):
            raise ConfigurationError(f"a principal's owner is a text that isn't empty, or None for all: {self.owner!r}")
        if not isinstance(self.role, Role):
            raise ConfigurationError(f"a principal's role is a Role, not {self.role!r}")

    def sees(self, owner: str) -> bool:
        return self.owner is None or self.owner == owner

    @property
    def trusted(self) -> bool:
        """Whether it is told what concerns the whole installation, such as hosts and stack traces."""
        return self.owner is None and self.role is Role.ADMIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as it is kept: its hash, and whom it stands for. `owner` None: all owners."""

    hash: str
    owner: str | None
    role: Role
    name: str = ""
    expires: datetime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.hash, str) or not _HASH.fullmatch(self.hash):
            raise ConfigurationError(
                f"token {self.name!r}: its hash is `sha256:` and 64 hex digits, as `pyrula token` prints it"
            )
        if self.expires is not None and (not isinstance(self.expires, datetime) or self.expires.tzinfo is None):
            raise ConfigurationError(f"token {self.name!r}: expires must be a time with a time zone")
        Principal(self.owner, self.role)


class Tokens:
    """The tokens of an installation: given, or those of a file, as it is by now.

    >>> token = new_token()
    >>> tokens = Tokens([Token(hash=hash_of(token), owner="acme", role=Role.READ)])
    >>> tokens.find(token)
    Principal(owner='acme', role=<Role.READ: 1>, name='')
    """

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._tokens = tuple(tokens)
        if not self._tokens:
            raise ConfigurationError("there is no token in it; make one with `pyrula token`")
        self._path: Path | None = None
        self._seen: object = None
        self._look_again = 0.0

    def __iter__(self) -> Iterator[Token]:
        return iter(self._tokens)

    def find(self, presented: str) -> Principal | None:
        """Whom the token stands for; None for one that isn't known, has expired, or was taken out of its file."""
        self._read_again()
        digest = hash_of(presented).encode()
        found = None
        for token in self._tokens:
            # all of them, so that the time it takes says nothing
            if hmac.compare_digest(token.hash.encode(), digest):
                found = token
        if found is None or (found.expires is not None and found.expires <= datetime.now(UTC)):
            return None
        return Principal(found.owner, found.role, found.name)

    @classmethod
    def load(cls, path: str | Path) -> "Tokens":
        """From a TOML file of `[[tokens]]` tables with `hash`, `role`, and either `owner` or `all_owners = true`;
        `name` and `expires` if wanted. ConfigurationError naming the table and what is wrong with it.

        What changes in the file later counts within a second."""
        file = Path(path)
        seen = _look_of(file)
        try:
            tokens = cls(_tokens_of(file))
        except ConfigurationError as error:
            raise ConfigurationError(f"the tokens file {path}: {error}") from error
        tokens._path, tokens._seen = file, seen
        return tokens

    def _read_again(self) -> None:
        if self._path is None or monotonic() < self._look_again:
            return
        self._look_again = monotonic() + LOOK_SECONDS
        seen = _look_of(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._tokens = tuple(_tokens_of(self._path))
        except ConfigurationError as error:
            log.error("the tokens file %s: %s; the tokens of before still hold", self._path, error)
        else:
            log.info("the tokens file %s has changed: it has %d tokens", self._path, len(self._tokens))


def new_token() -> str:
    """A token, for `hash_of` and for whom it is meant; it is kept nowhere."""
    return PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def hash_of(token: str) -> str:
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _look_of(path: Path) -> object:
    """What is another once the file has been written, or another one put in its place."""
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino


def _tokens_of(path: Path) -> list[Token]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("tokens", [])
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"it can't be read: {error}") from error
    if not isinstance(tables, list):
        raise ConfigurationError("`tokens` must be tables, [[tokens]]")
    return [_token(table, number) for number, table in enumerate(tables, 1)]


def _token(table: Any, number: int) -> Token:
    what = f"token {number}"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{what} is no table")
    unknown = sorted(table.keys() - {"hash", "role", "owner", "all_owners", "name", "expires"})
    if unknown:
        raise ConfigurationError(f"{what}: no such field as {unknown[0]!r}")
    owner = table.get("owner")
    if (owner is not None) == (table.get("all_owners") is True):
        raise ConfigurationError(f'{what} needs either owner = "..." or all_owners = true')
    return Token(
        hash=table.get("hash", ""),
        owner=owner,
        role=Role.named(table.get("role", "")),
        name=str(table.get("name", what)),
        expires=table.get("expires"),
    )
