"""Who is let in: by token, by a function of one's own, or, with neither, from this machine alone.

Rules: without authentication a request is answered only if it came in on a loopback address under a loopback name, so
that neither another machine nor a web page that rebinds its own name gets in, and only if no other site's page sent it.
Whoever is refused isn't told why a token was no good.
"""

import inspect
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request

from pyrula.http.problems import Refusal
from pyrula.http.tokens import Principal, Role, Tokens
from pyrula.workflows.errors import ConfigurationError

__all__ = ["Access", "Authenticate", "Needs", "is_loopback"]

log = logging.getLogger("pyrula.http")

Authenticate: TypeAlias = Callable[[Request], Principal | Awaitable[Principal | None] | None]
"""Says who asks, from a request's headers; None, or an exception, refuses it."""

_LOCAL: Final = Principal(None, Role.ADMIN, "local")
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})

REMEDY: Final = (
    "give it tokens (`pyrula token` makes one; tokens= or --tokens) or a function (authenticate=), or say that "
    "whoever reaches it may do everything (allow_anonymous=True or --allow-anonymous)"
)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a route asks of who calls it. `all_owners`: it isn't for tenants."""

    role: Role
    all_owners: bool = False


class Access:
    """Decides for each request. `allowed_hosts`: names under which it may be asked, beside loopback ones if there is no
    authentication; None with authentication: any."""

    def __init__(
        self,
        *,
        tokens: Tokens | None = None,
        authenticate: Authenticate | None = None,
        allow_anonymous: bool = False,
        allowed_hosts: Iterable[str] | None = None,
    ) -> None:
        if tokens is not None and authenticate is not None:
            raise ConfigurationError("tokens= and authenticate= exclude each other: let authenticate look up tokens")
        if allow_anonymous and (tokens is not None or authenticate is not None):
            raise ConfigurationError("allow_anonymous=True would let in whoever comes without a token")
        if isinstance(allowed_hosts, str):
            raise ConfigurationError(f"allowed_hosts is a list of names, not the text {allowed_hosts!r}")
        self._tokens = tokens
        self._authenticate = authenticate
        self._hosts = None if allowed_hosts is None else frozenset(host.lower() for host in allowed_hosts)
        self._anonymous = allow_anonymous

    @property
    def authenticated(self) -> bool:
        return self._tokens is not None or self._authenticate is not None

    def check_address(self, host: str) -> None:
        """ConfigurationError for an address on which others could do as they like."""
        if not self.authenticated and not self._anonymous and not is_loopback(host):
            raise ConfigurationError(f"the API won't listen on {host!r} for everybody: {REMEDY}")

    async def admit(self, request: Request, needs: Needs) -> Principal:
        """Who asks, if that one may. Raises Refusal."""
        self.check_origin(request)
        principal = await self._principal(request)
        if principal.role < needs.role:
            raise Refusal("Forbidden", f"this needs the role {needs.role.name.lower()}")
        if needs.all_owners and principal.owner is not None:
            raise Refusal("Forbidden", "this is for tokens of all owners")
        return principal

    def holds(self, request: Request, principal: Principal) -> bool:
        """Whether who was let in still would be, as far as tokens tell: one may have been taken back, or have expired.
        A function of one's own is asked once a request."""
        return self._tokens is None or self._of_token(request) == principal

    def check_origin(self, request: HTTPConnection) -> None:
        """The part of `admit` that needs no credentials."""
        host = _host_of(request)
        if self._hosts is not None:
            if host not in self._hosts and not (is_loopback(host) and not self.authenticated):
                raise Refusal("HostNotAllowed", "the server isn't known under this name")
        elif not self.authenticated and not self._anonymous and not is_loopback(host):
            raise Refusal("HostNotAllowed", "without authentication the API answers under loopback names only")
        if self.authenticated:
            return
        if not self._anonymous and not _came_by_loopback(request):
            raise Refusal("Forbidden", f"without authentication the API answers on loopback addresses only: {REMEDY}")
        if request.scope.get("method") not in _SAFE and _is_foreign(request):
            raise Refusal("Forbidden", "another site's page sent this request")

    async def _principal(self, request: Request) -> Principal:
        if not self.authenticated:
            return _LOCAL
        principal = await self._of_function(request) if self._authenticate else self._of_token(request)
        if not isinstance(principal, Principal):
            raise Refusal(
                "Unauthorized", "this needs a valid bearer token", headers={"WWW-Authenticate": 'Bearer realm="pyrula"'}
            )
        return principal

    def _of_token(self, request: Request) -> Principal | None:
        scheme, _, presented = request.headers.get("authorization", "").partition(" ")
        if self._tokens is None or scheme.lower() != "bearer":
            return None
        return self._tokens.find(presented.strip())

    async def _of_function(self, request: Request) -> Principal | None:
        assert self._authenticate is not None
        try:
            answer: Any = self._authenticate(request)
            found: Principal | None = await answer if inspect.isawaitable(answer) else answer
        except Exception as error:  # noqa: BLE001 - whatever a library raises for a token that is no good
            log.warning("authenticate raised %s: %s; the request is refused", type(error).__name__, error)
            return None
        return found


def is_loopback(host: str) -> bool:
    """Whether a host name or address, as one types it, is this machine for itself."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host_of(request: HTTPConnection) -> str:
    # one only, or a server behind could go by another than was checked
    hosts = request.headers.getlist("host")
    if len(hosts) != 1:
        return ""
    return _authority(f"//{hosts[0]}")[0]


def _came_by_loopback(request: HTTPConnection) -> bool:
    server = request.scope.get("server")
    # a Unix socket has no port: who may open it is the file system's affair
    return server is not None and (server[1] is None or is_loopback(str(server[0])))


def _is_foreign(request: HTTPConnection) -> bool:
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = request.headers.get("origin")
    return origin is not None and _authority(origin)[1] != request.headers.get("host", "").lower()


def _authority(url: str) -> tuple[str, str]:
    """Host name and netloc of a URL; nothing for what is none."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.netloc.lower()
    except ValueError:
        return "", ""
