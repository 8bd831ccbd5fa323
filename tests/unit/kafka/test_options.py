"""Options: defaults, names, contradictions, and what the clients are given."""

import re
import ssl
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from pyrula.kafka import KafkaOptions
from pyrula.kafka import options as options_module
from pyrula.workflows.errors import ConfigurationError


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        KafkaOptions(**options)
    said = str(caught.value)
    assert said.startswith("KafkaOptions: ")
    return said


def test_the_defaults_are_those_of_the_design() -> None:
    options = KafkaOptions()
    assert options.session_timeout == 45
    assert options.heartbeat_interval == 3
    assert options.max_poll_interval == 300
    assert options.drain_timeout == 30
    assert options.commit_interval == 1
    assert options.commit_after == 10_000
    assert options.window_offsets == 100_000
    assert options.window_bytes == 16 * 1024 * 1024
    assert options.lane_bounds == (1000, 8 * 1024 * 1024, 64 * 1024 * 1024)
    assert KafkaOptions(lane_queue_records=0).lane_bounds.records == 0
    assert options.isolation_level == "read_committed"


def test_heartbeats_follow_a_short_session() -> None:
    intervals = [KafkaOptions(session_timeout=seconds).heartbeat_interval for seconds in (45, 9, 8, 6, 0.5)]
    assert intervals == [3, 3, 2, 1.5, 0.125]


def test_the_group_waits_for_the_drain() -> None:
    for drain in (0, 1, 30, 120, 299):
        options = KafkaOptions(drain_timeout=drain)
        assert options.rebalance_timeout == drain + 15
        assert options.request_timeout > options.rebalance_timeout, "or a join would be given up"
    assert KafkaOptions(rebalance_timeout=100).request_timeout == 115


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drain_timeout": 300}, "drain_timeout=300 is not below max_poll_interval=300"),
        ({"drain_timeout": 20, "max_poll_interval": 10}, "drain_timeout=20 is not below max_poll_interval=10"),
        (
            {"drain_timeout": 20, "rebalance_timeout": 22},
            "rebalance_timeout=22 leaves less than 5 s after drain_timeout=20",
        ),
        ({"request_timeout": 45}, "request_timeout=45 is not above rebalance_timeout=45"),
        ({"heartbeat_interval": 16}, "heartbeat_interval=16 is more than a third of session_timeout=45"),
        ({"fetch_max_wait": 60}, "fetch_max_wait=60 is not below request_timeout=60"),
        ({"buffer_bytes": 1000}, "max_partition_fetch_bytes=1048576 is more than buffer_bytes=1000"),
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile needs security_protocol SSL or SASL_SSL"),
        ({"ssl_context": ssl.create_default_context()}, "ssl_context needs security_protocol SSL or SASL_SSL"),
        (
            {"security_protocol": "SSL", "ssl_context": ssl.create_default_context(), "ssl_certfile": "c"},
            "ssl_context is given together with ssl_certfile",
        ),
        ({"security_protocol": "SSL", "ssl_keyfile": "key.pem"}, "ssl_keyfile is given without ssl_certfile"),
        ({"sasl_username": "me"}, "sasl_username needs security_protocol SASL_SSL or SASL_PLAINTEXT"),
        ({"sasl_password": "me"}, "sasl_username needs security_protocol SASL_SSL or SASL_PLAINTEXT"),
        ({"security_protocol": "SASL_SSL", "sasl_username": "me"}, "PLAIN needs sasl_username and sasl_password"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"},
            "OAUTHBEARER needs sasl_oauth_token_provider",
        ),
    ],
)
def test_a_contradiction_names_both_sides(options: dict[str, Any], said: str) -> None:
    assert said in refusal(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enable_auto_commit": True}, "enable_auto_commit is not an option: Pyrula commits a record's offset once"),
        ({"auto_commit_interval_ms": 1}, "commit_interval (seconds)"),
        ({"group_id": "g"}, "Binding(..., group=...)"),
        ({"group_instance_id": "g"}, "static members can't be fenced"),
        ({"partition_assignment_strategy": ["x"]}, "use assignor"),
        ({"assignor": "cooperative"}, "assignor: Input should be 'roundrobin', 'range' or 'sticky'"),
        ({"auto_offset_reset": "latest"}, "Binding(..., auto_offset_reset=...)"),
        ({"acks": 1}, "always wait for all replicas"),
        ({"enable_idempotence": False}, "always idempotent"),
        ({"session_timeout_ms": 1000}, "session_timeout_ms is not an option: use session_timeout, in seconds"),
        ({"linger_ms": 1}, "use linger, in seconds"),
        ({"sasl_plain_password": "x"}, "use sasl_password"),
        ({"bootstrap_server": "x"}, "bootstrap_server is not an option; did you mean bootstrap_servers?"),
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"bootstrap_servers": []}, "bootstrap_servers"),
        ({"bootstrap_servers": [1]}, "bootstrap_servers"),
        ({"client_id": ""}, "client_id"),
        ({"security_protocol": "TLS"}, "security_protocol"),
        ({"session_timeout": 0}, "session_timeout: Input should be greater than 0"),
        ({"session_timeout": float("inf")}, "session_timeout: Input should be a finite number"),
        ({"drain_timeout": -1}, "drain_timeout"),
        ({"drain_timeout": float("nan")}, "drain_timeout"),
        ({"drain_timeout": "soon"}, "drain_timeout"),
        ({"commit_after": 0}, "commit_after"),
        ({"commit_after": 1.5}, "commit_after"),
        ({"compression": "zip"}, "compression"),
        ({"isolation_level": "serializable"}, "isolation_level"),
    ],
)
def test_names_and_values_that_do_not_exist_are_refused(options: dict[str, Any], said: str) -> None:
    assert said in refusal(**options)


def test_every_problem_is_told_at_once() -> None:
    said = refusal(linger=-1, commit_after=0, nonsense=1)
    assert "linger" in said
    assert "commit_after" in said
    assert "nonsense" in said


def test_options_can_not_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        KafkaOptions().linger = 1.0  # type: ignore[misc]


def test_passwords_are_in_no_text() -> None:
    options = KafkaOptions(security_protocol="SASL_SSL", sasl_username="me", sasl_password="sesame")
    assert "sesame" not in repr(options) + str(options)
    assert "sesame" not in refusal(sasl_password="sesame")
    assert "sesame" not in refusal(sasl_password=["sesame"], security_protocol="SASL_SSL")
    assert "sesame" not in refusal(sasl_passwort="sesame")
    assert options.connection()["sasl_plain_password"] == "sesame"


def test_servers_may_be_a_list() -> None:
    assert KafkaOptions(bootstrap_servers=["a:1", "b:2"]).bootstrap_servers == "a:1,b:2"


@pytest.mark.parametrize("client", [AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient])
def test_every_client_takes_the_connection(client: Any) -> None:
    parameters = signature(client).parameters
    assert set(KafkaOptions().connection()) <= set(parameters)
    plain = KafkaOptions().connection()
    assert plain["ssl_context"] is None
    assert plain["security_protocol"] == "PLAINTEXT"


def test_tls_without_files_uses_the_systems_authorities() -> None:
    context = KafkaOptions(security_protocol="SSL").connection()["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    own = ssl.create_default_context()
    assert KafkaOptions(security_protocol="SSL", ssl_context=own).connection()["ssl_context"] is own


def test_tls_files_that_can_not_be_read_are_named_as_such(tmp_path: Path) -> None:
    no_certificate = tmp_path / "cert.pem"
    no_certificate.write_text("nothing")
    for options in (
        KafkaOptions(security_protocol="SSL", ssl_cafile=str(tmp_path / "missing.pem")),
        KafkaOptions(security_protocol="SSL", ssl_certfile=str(no_certificate), ssl_password="sesame"),
    ):
        with pytest.raises(ConfigurationError, match="the TLS files can't be used") as caught:
            options.connection()
        assert "sesame" not in str(caught.value)


def test_every_option_is_used() -> None:
    """An option that nothing reads would be a promise that isn't kept."""
    folder = Path(options_module.__file__).parent
    code = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    unused = [
        name
        for name in KafkaOptions.model_fields
        if not re.search(rf"(?:options|self|_options|_clusters\[cluster\])\.{name}\b", code)
    ]
    assert unused == []
