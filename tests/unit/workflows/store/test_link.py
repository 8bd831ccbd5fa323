"""What error replies and broken connections mean, and what they are told as."""

import ssl

import pytest
import redis.exceptions
from redis.asyncio.connection import BaseParser

from pyrula.workflows.errors import ConfigurationError, StoreError, StoreUnavailable
from pyrula.workflows.store.valkey.address import Address
from pyrula.workflows.store.valkey.link import Link, Meaning, StoreFull, meaning

LINK = Link(Address("valkey://user:s3cret@store"), 5.0)


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("NOSCRIPT No matching script. Please use EVAL.", Meaning.LOAD),
        ("LOADING Valkey is loading the dataset in memory", Meaning.WAIT),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Meaning.WAIT),
        ("CLUSTERDOWN The cluster is down", Meaning.WAIT),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Meaning.WAIT),
        ("NOREPLICAS Not enough good replicas to write.", Meaning.WAIT),
        ("BUSY Valkey is busy running a script.", Meaning.WAIT),
        ("MISCONF Errors writing to the AOF file: No space left on device", Meaning.WAIT),
        ("ERR max number of clients reached", Meaning.WAIT),
        ("READONLY You can't write against a read only replica.", Meaning.MOVED),
        ("OOM command not allowed when used memory > 'maxmemory'.", Meaning.FULL),
        ("OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'", Meaning.FULL),
        ("NOAUTH Authentication required.", Meaning.SETTINGS),
        ("WRONGPASS invalid username-password pair or user is disabled.", Meaning.SETTINGS),
        ("NOPERM User app has no permissions to run the 'evalsha' command", Meaning.SETTINGS),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Meaning.REFUSED),
        ("ERR user_script:12: attempt to index a nil value", Meaning.REFUSED),
        ("MOVED 3999 127.0.0.1:6381", Meaning.REFUSED),
        ("CROSSSLOT Keys in request don't hash to the same slot", Meaning.REFUSED),
    ],
)
def test_a_reply_means(reply: str, wanted: Meaning) -> None:
    error = BaseParser.parse_error(reply)
    assert meaning(error) is wanted
    told = LINK.error(error)
    kinds = {Meaning.SETTINGS: ConfigurationError, Meaning.REFUSED: StoreError, Meaning.FULL: StoreFull}
    assert type(told) is kinds.get(wanted, StoreUnavailable)
    assert str(told).startswith("valkey://store:6379/0 ")
    assert "s3cret" not in str(told)


def test_a_broken_connection_is_waited_for() -> None:
    for error in (
        redis.exceptions.ConnectionError("Connection closed by server."),
        redis.exceptions.TimeoutError("Timeout connecting to server"),
        redis.exceptions.InvalidResponse("Protocol Error: b'HTTP'"),
        ConnectionResetError("reset by peer"),
    ):
        assert meaning(error) is Meaning.WAIT
        assert type(LINK.error(error)) is StoreUnavailable


async def test_a_certificate_that_is_not_trusted_is_a_matter_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        async def connect(self) -> None:
            try:
                error = ssl.SSLCertVerificationError("certificate verify failed")
                error.verify_message = "self-signed certificate"
                raise error
            except OSError:
                raise redis.exceptions.ConnectionError("Error 1 connecting")  # noqa: B904 - as redis-py does

        async def disconnect(self, nowait: bool) -> None:
            pass

    monkeypatch.setattr(Address, "connection", lambda *_: Refusing())
    with pytest.raises(ConfigurationError, match="isn't trusted: self-signed certificate"):
        await Link(Address("valkeys://store"), 1.0).exchange([b"PING"], 1)
