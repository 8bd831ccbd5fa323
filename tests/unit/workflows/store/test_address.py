"""Which store URLs are taken, and what is ever shown of one."""

import re
import traceback

import pytest

from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.store.valkey import ValkeyStore
from pyrula.workflows.store.valkey.address import Address


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("valkey://localhost", "valkey://localhost:6379/0"),
        ("valkey://localhost:6379", "valkey://localhost:6379/0"),
        ("redis://10.0.0.1:7000/3", "redis://10.0.0.1:7000/3"),
        ("redis://10.0.0.1:7000/", "redis://10.0.0.1:7000/0"),
        ("redis://host?db=4", "redis://host:6379/4"),
        ("valkeys://user:p%40ss%2Fword@store.internal", "valkeys://store.internal:6379/0"),
        ("rediss://:secret@store.internal:6380/1", "rediss://store.internal:6380/1"),
        ("rediss://store?ssl_cert_reqs=none&ssl_check_hostname=false", "rediss://store:6379/0"),
        ("valkey://[::1]:6380/2", "valkey://[::1]:6380/2"),
        ("unix:///run/valkey.sock", "unix:///run/valkey.sock?db=0"),
        ("unix:///run/valkey.sock?db=5&password=secret", "unix:///run/valkey.sock?db=5"),
    ],
)
def test_urls_that_are_taken(url: str, text: str) -> None:
    assert Address(url).text == text
    assert repr(Address(url)) == f"Address('{text}')"


def test_user_and_password_are_decoded_once() -> None:
    connection = Address("valkey://us%25er:p%40ss%2Fw%2520rd@localhost").connection(1.0)
    assert (connection.username, connection.password) == ("us%er", "p@ss/w%20rd")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("localhost:6379", "URL localhost:6379 can't be used; .* Did you mean valkey://localhost:6379?"),
        ("http://u:s3cret@h:1/2?a=s3cret", "URL http://***@h:1/2?*** can't .* Did you mean valkey://***@h:1/2?***?"),
        ("valkey://user:s3cret@localhost/zero", "URL valkey://***@localhost/zero can't be used; .*"),
        ("valkey://:s3c@ret/word@localhost/x", "URL valkey://***@localhost/x can't be used; .*"),
        ("valkey://user:s3cret", "URL can't be used; .*"),
    ],
)
def test_a_url_that_is_refused_is_shown_without_its_secrets(url: str, told: str) -> None:
    pattern = "the store's " + re.escape(told).replace(re.escape(".*"), ".*")
    with pytest.raises(ConfigurationError, match=f"^{pattern}$"):
        Address(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost:6379",
        "postgres://user:s3cret@localhost",
        "valkey://",
        "valkey:///0",
        "valkey://user:s3cret@",
        "valkey://:s3cret/word@localhost",
        "valkey://:s3cret#word@localhost",
        "valkey://:s3cret[word@localhost",
        "valkey://user:s3cret@localhost:port",
        "valkey://user:s3cret@localhost:70000",
        "valkey://user:s3cret@localhost/zero",
        "valkey://user:s3cret@localhost/-1",
        "valkey://user:s3cret@localhost?db=one",
        "valkey://user:s3cret@localhost?socket_timeout=s3cret",
        "valkey://user:s3cret@localhost?ssl_cert_reqs=none",
        "rediss://user:s3cret@localhost?ssl_nonsense=1",
        "rediss://user:s3cret@localhost?ssl_cert_reqs=s3cret",
        "rediss://user:s3cret@localhost?ssl_ca_certs=/nowhere/ca.pem",
        "unix://",
        "unix:///?password=s3cret",
        None,
        b"valkey://localhost",
    ],
)
def test_urls_that_are_refused_say_how_one_looks_and_show_no_secret(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Address(url)
    told = "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in told.split("ConfigurationError")[-1]
    assert "s3cret" not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_a_store_shows_neither_user_nor_password() -> None:
    store = ValkeyStore("valkey://admin:s3cret@store.internal:6380/2", namespace="orders")
    assert repr(store) == "ValkeyStore('valkey://store.internal:6380/2', namespace='orders')"
    assert "s3cret" not in str(vars(store))


@pytest.mark.parametrize(
    "options",
    [
        {"namespace": ""},
        {"namespace": "a b"},
        {"namespace": "a{b}"},
        {"namespace": "a:b"},
        {"namespace": "é"},
        {"namespace": "a\n"},
        {"namespace": "x" * 65},
        {"namespace": None},
        {"shards": 0},
        {"shards": 16385},
        {"shards": "16"},
        {"shards": True},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"timeout": "5"},
        {"retry_for": -0.1},
        {"retry_for": float("nan")},
    ],
)
def test_options_that_can_not_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        ValkeyStore(**options)  # type: ignore[arg-type]
