"""What a server must say of itself to be used."""

import pytest

from pyrula.workflows.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.store.valkey.checks import check_server, parse_info

GOOD = {"redis_version": "7.2.4", "role": "master", "aof_enabled": "1", "cluster_enabled": "0"}
WHERE = "valkey://store:6379/0"


def test_info_is_parsed_whatever_its_values_hold() -> None:
    text = (
        b"# Server\r\nredis_version:7.2.4\r\nexecutable:/opt/a:b\r\nempty:\r\n\r\n# Keyspace\r\nnonsense\r\nx:\xff\r\n"
    )
    assert parse_info(text) == {"redis_version": "7.2.4", "executable": "/opt/a:b", "empty": "", "x": "\ufffd"}


def test_a_good_server_gives_no_warning() -> None:
    assert check_server(WHERE, GOOD, "noeviction") == []


@pytest.mark.parametrize("version", ["7.0.15", "6.2.14", "5.0.7", "7.1.242"])
def test_an_old_server_is_refused_by_version(version: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"is version {version}; Pyrula needs Valkey or Redis 7\.2"):
        check_server(WHERE, GOOD | {"redis_version": version}, "noeviction")


@pytest.mark.parametrize("version", ["7.2.0", "7.4.1", "8.0.1", "10.0.0"])
def test_newer_servers_are_taken(version: str) -> None:
    assert check_server(WHERE, GOOD | {"redis_version": version}, "noeviction") == []


@pytest.mark.parametrize(
    "policy",
    [
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
    ],
)
def test_every_policy_that_evicts_is_refused_by_name(policy: str) -> None:
    with pytest.raises(ConfigurationError, match=f"maxmemory-policy {policy}.*noeviction"):
        check_server(WHERE, GOOD, policy)


def test_what_a_server_does_not_tell_is_a_warning() -> None:
    warnings = check_server(WHERE, {}, None)
    assert len(warnings) == 2
    assert "version" in warnings[0]
    assert "maxmemory-policy" in warnings[1]


def test_no_append_only_file_is_a_warning() -> None:
    (warning,) = check_server(WHERE, GOOD | {"aof_enabled": "0"}, "noeviction")
    assert "append-only file" in warning


def test_a_replica_is_waited_for() -> None:
    with pytest.raises(StoreUnavailable, match="replica"):
        check_server(WHERE, GOOD | {"role": "slave"}, "noeviction")


def test_a_node_of_a_cluster_is_as_good_as_a_server() -> None:
    assert check_server(WHERE, GOOD | {"cluster_enabled": "1"}, "noeviction") == []
