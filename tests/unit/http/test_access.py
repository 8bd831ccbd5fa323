"""Who is let in, decided from a request's head alone."""

from collections.abc import Awaitable
from typing import Any

import pytest
from fastapi.exceptions import HTTPException
from starlette.requests import Request

from pyrula.http.access import Access, Needs, is_loopback
from pyrula.http.tokens import Principal, Role, Token, Tokens, hash_of, new_token
from pyrula.workflows import ConfigurationError

READ, ADMIN = Needs(Role.READ), Needs(Role.ADMIN)
TOKEN = new_token()
TOKENS = Tokens([Token(hash=hash_of(TOKEN), owner="acme", role=Role.OPERATE)])


def request(
    *headers: tuple[str, str], method: str = "GET", server: tuple[str, int | None] | None = ("127.0.0.1", 80)
) -> Request:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return Request({"type": "http", "method": method, "path": "/", "headers": raw, "server": server})


async def code_of(answer: Awaitable[Any]) -> str:
    try:
        await answer
    except HTTPException as refused:
        return str(getattr(refused, "code", refused.status_code))
    return "ok"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *(
            (host, True)
            for host in ("127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LocalHost.", "a.localhost")
        ),
        *((host, False) for host in ("", "0.0.0.0", "::", "10.0.0.1", "evil.example", "::ffff:10.0.0.1", "2130706433")),
        *((host, False) for host in ("127.0.0.1.evil.example", "localhost.evil.example")),
    ],
)
def test_what_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.0.7", "example.com"])
def test_another_address_is_refused_unless_somebody_asks_who_it_is(host: str) -> None:
    with pytest.raises(ConfigurationError, match="pyrula token"):
        Access().check_address(host)
    Access(tokens=TOKENS).check_address(host)
    Access(authenticate=lambda _: None).check_address(host)
    Access(allow_anonymous=True).check_address(host)
    Access().check_address("127.0.0.1")


@pytest.mark.parametrize(
    "options",
    [
        {"tokens": TOKENS, "authenticate": lambda _: None},
        {"tokens": TOKENS, "allow_anonymous": True},
        {"allowed_hosts": "example.com"},
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Access(**options)


async def test_without_authentication_only_this_machine_is_answered() -> None:
    access = Access()
    good = ("Host", "127.0.0.1:8321")
    assert (await access.admit(request(good), ADMIN)).trusted
    assert (await access.admit(request(("Host", "localhost")), ADMIN)).trusted
    assert (await access.admit(request(("Host", "[::1]:8321"), server=("::1", 8321)), ADMIN)).trusted
    assert (await access.admit(request(("Host", "localhost"), server=("/run/api.sock", None)), ADMIN)).trusted
    # DNS rebinding: the browser comes to us under the name of a page
    for host in (
        "evil.example",
        "evil.example:8321",
        "127.0.0.1.evil.example",
        "",
        "localhost@evil.example",
        "[",
        "a b",
    ):
        assert await code_of(access.admit(request(("Host", host)), READ)) == "HostNotAllowed"
    assert await code_of(access.admit(request(), READ)) == "HostNotAllowed"
    assert await code_of(access.admit(request(good, ("Host", "evil.example")), READ)) == "HostNotAllowed"
    assert await code_of(access.admit(request(good, server=("10.0.0.7", 8321)), READ)) == "Forbidden"
    assert await code_of(access.admit(request(good, server=None), READ)) == "Forbidden"


async def test_without_authentication_pages_of_other_sites_change_nothing() -> None:
    access, host = Access(), ("Host", "localhost:8321")
    for foreign in (
        ("Origin", "https://evil.example"), ("Origin", "null"), ("Origin", "http://localhost:9999"), ("Origin", "http://["),
        ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-site"),
    ):  # fmt: skip
        for method in ("POST", "PUT", "DELETE"):
            assert await code_of(access.admit(request(host, foreign, method=method), READ)) == "Forbidden"
    for own in (("Origin", "http://localhost:8321"), ("Sec-Fetch-Site", "none"), ("Sec-Fetch-Site", "same-origin")):
        assert await code_of(access.admit(request(host, own, method="POST"), READ)) == "ok"
    assert await code_of(Access(allow_anonymous=True).admit(request(host, foreign, method="POST"), READ)) == "Forbidden"


async def test_only_names_that_are_allowed() -> None:
    access = Access(tokens=TOKENS, allowed_hosts=["API.example"])
    bearer = ("Authorization", f"Bearer {TOKEN}")
    assert await code_of(access.admit(request(("Host", "api.EXAMPLE:443"), bearer), READ)) == "ok"
    assert await code_of(access.admit(request(("Host", "localhost"), bearer), READ)) == "HostNotAllowed"
    anonymous = Access(allowed_hosts=["dev.internal"])
    assert await code_of(anonymous.admit(request(("Host", "dev.internal")), READ)) == "ok"
    assert await code_of(anonymous.admit(request(("Host", "localhost")), READ)) == "ok"


async def test_a_token_in_the_header_and_nothing_else() -> None:
    access = Access(tokens=TOKENS)
    principal = await access.admit(request(("Authorization", f"bearer  {TOKEN} "), server=("10.0.0.7", 80)), READ)
    assert (principal.owner, principal.role) == ("acme", Role.OPERATE)
    for header in ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {hash_of(TOKEN)}", "Bearer", "Bearer é"):
        assert await code_of(access.admit(request(("Authorization", header)), READ)) == "Unauthorized"
    assert await code_of(access.admit(request(), READ)) == "Unauthorized"
    assert await code_of(access.admit(request(("Authorization", f"Bearer {TOKEN}")), ADMIN)) == "Forbidden"
    for_all = Needs(Role.READ, all_owners=True)
    assert await code_of(access.admit(request(("Authorization", f"Bearer {TOKEN}")), for_all)) == "Forbidden"


async def test_a_function_of_ones_own_says_who_asks() -> None:
    def sync(request: Request) -> Principal | None:
        return Principal("acme", Role.READ) if request.headers.get("x-user") == "ada" else None

    async def late(request: Request) -> Principal | None:
        return sync(request)

    def broken(request: Request) -> Principal | None:
        raise LookupError("the key server is away")

    for function in (sync, late):
        access = Access(authenticate=function)
        assert (await access.admit(request(("X-User", "ada")), READ)).owner == "acme"
        assert await code_of(access.admit(request(("X-User", "eve")), READ)) == "Unauthorized"
    assert await code_of(Access(authenticate=broken).admit(request(), READ)) == "Unauthorized"
    truthy: Any = lambda _: "acme"  # noqa: E731 - what somebody might write
    assert await code_of(Access(authenticate=truthy).admit(request(), READ)) == "Unauthorized"
