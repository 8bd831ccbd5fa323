"""Options of the Kafka side of a worker: what a user may set, and which values contradict each other.

Durations are seconds. What Pyrula decides itself (offsets are committed by hand, producers are idempotent and wait for
all replicas) is no option. Knows no client; `connection` gives the arguments that every aiokafka client takes.
"""

import ssl
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.naming import meant
from pyrula.workflows.store.lanes import LaneBounds

# What a group's coordinator allows beyond the drain, for the commit and the join that follow it.
REBALANCE_MARGIN = 15.0
_LEAST_MARGIN = 5.0

_NOT_OPTIONS = {
    "enable_auto_commit": "Pyrula commits a record's offset once its run is complete; this can't be turned off",
    "auto_commit_interval_ms": "Pyrula commits by itself; see commit_interval (seconds) and commit_after (records)",
    "group_id": "the group belongs to a binding: Binding(..., group=...)",
    "group_instance_id": "static members can't be fenced with this client; docs/kafka-groups.md says what follows",
    "partition_assignment_strategy": "use assignor",
    "auto_offset_reset": "it belongs to a binding: Binding(..., auto_offset_reset=...)",
    "acks": "Pyrula's producers always wait for all replicas",
    "enable_idempotence": "Pyrula's producers are always idempotent",
    "value_deserializer": "it belongs to a binding: Binding(..., value_serde=...)",
    "sasl_plain_username": "use sasl_username",
    "sasl_plain_password": "use sasl_password",
    "compression_type": "use compression",
}


def _servers(value: Any) -> Any:
    """A list of servers is as good as a text with commas."""
    return ",".join(value) if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value) else value


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]


def _heartbeat_interval(data: dict[str, Any]) -> float:
    session = float(data.get("session_timeout", 0))
    return 3.0 if session >= 9 or not session else session / 4


def _rebalance_timeout(data: dict[str, Any]) -> float:
    return float(data.get("drain_timeout", 0)) + REBALANCE_MARGIN


def _request_timeout(data: dict[str, Any]) -> float:
    # A join waits at the broker until the slowest member has drained, and is a request like any other to the client.
    return max(40.0, float(data.get("rebalance_timeout", 0)) + REBALANCE_MARGIN)


class KafkaOptions(BaseModel):
    """How a worker talks to Kafka. Unknown names, impossible values and contradictions raise ConfigurationError.

    >>> KafkaOptions(bootstrap_servers="localhost:9092").rebalance_timeout
    45.0

    `lane_queue_records` and `lane_queue_bytes` say how much of one key is queued in the store behind a record of it
    that was handed over, `partition_queue_bytes` how much of all keys of a partition; 0 records queue nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    bootstrap_servers: Annotated[Text, BeforeValidator(_servers)] = "localhost:9092"
    client_id: Text = "pyrula"

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_context: ssl.SSLContext | None = None
    ssl_cafile: Text | None = None
    ssl_certfile: Text | None = None
    ssl_keyfile: Text | None = None
    ssl_password: SecretStr | None = None
    sasl_mechanism: Literal["PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "PLAIN"
    sasl_username: Text | None = None
    sasl_password: SecretStr | None = None
    sasl_kerberos_service_name: Text = "kafka"
    sasl_kerberos_domain_name: Text | None = None
    sasl_oauth_token_provider: Any = Field(default=None, repr=False)

    session_timeout: Seconds = 45.0
    heartbeat_interval: Seconds = Field(default_factory=_heartbeat_interval)
    max_poll_interval: Seconds = 300.0
    drain_timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    rebalance_timeout: Seconds = Field(default_factory=_rebalance_timeout)
    request_timeout: Seconds = Field(default_factory=_request_timeout)
    metadata_max_age: Seconds = 300.0
    assignor: Literal["roundrobin", "range", "sticky"] = "roundrobin"

    commit_interval: Seconds = 1.0
    commit_after: Count = 10_000

    fetch_max_wait: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    fetch_min_bytes: Count = 1
    fetch_max_bytes: Count = 16 * 1024 * 1024
    max_partition_fetch_bytes: Count = 1024 * 1024
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"

    buffer_records: Count = 50_000
    buffer_bytes: Count = 64 * 1024 * 1024
    window_offsets: Count = 100_000
    window_bytes: Count = 16 * 1024 * 1024

    lane_queue_records: Annotated[int, Field(ge=0)] = 1000
    lane_queue_bytes: Count = 8 * 1024 * 1024
    partition_queue_bytes: Count = 64 * 1024 * 1024

    linger: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    compression: Literal["gzip", "snappy", "lz4", "zstd"] | None = None
    max_request_size: Count = 1024 * 1024
    max_batch_size: Count = 16 * 1024

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, data: Any, handler: Any) -> Self:
        try:
            options: Self = handler(data)
        except ValidationError as error:
            raise ConfigurationError("KafkaOptions: " + "; ".join(map(_said, error.errors()))) from None
        problems = list(options._contradictions())
        if problems:
            raise ConfigurationError("KafkaOptions: " + "; ".join(problems))
        return options

    def _contradictions(self) -> list[str]:
        said: list[str] = []
        if self.heartbeat_interval * 3 > self.session_timeout:
            said.append(
                f"heartbeat_interval={self.heartbeat_interval:g} is more than a third of "
                f"session_timeout={self.session_timeout:g}, so that two late heartbeats end the session"
            )
        if self.drain_timeout >= self.max_poll_interval:
            said.append(
                f"drain_timeout={self.drain_timeout:g} is not below max_poll_interval={self.max_poll_interval:g}, "
                "so that the group would go on without a worker that still drains"
            )
        if self.rebalance_timeout < self.drain_timeout + _LEAST_MARGIN:
            said.append(
                f"rebalance_timeout={self.rebalance_timeout:g} leaves less than {_LEAST_MARGIN:g} s after "
                f"drain_timeout={self.drain_timeout:g}, so that the group would go on without a worker that still "
                "drains; leave rebalance_timeout out, it follows drain_timeout"
            )
        if self.request_timeout <= self.rebalance_timeout:
            said.append(
                f"request_timeout={self.request_timeout:g} is not above rebalance_timeout={self.rebalance_timeout:g}, "
                "so that a join would be given up while other members drain"
            )
        if self.fetch_max_wait >= self.request_timeout:
            said.append(f"fetch_max_wait={self.fetch_max_wait:g} is not below request_timeout={self.request_timeout:g}")
        if self.max_partition_fetch_bytes > self.buffer_bytes:
            said.append(
                f"max_partition_fetch_bytes={self.max_partition_fetch_bytes} is more than "
                f"buffer_bytes={self.buffer_bytes}, so that one fetch would overfill the buffer"
            )
        return said + self._security_contradictions()

    def _security_contradictions(self) -> list[str]:
        said: list[str] = []
        files = [name for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password") if getattr(self, name)]
        if self.ssl_context is not None and files:
            said.append(f"ssl_context is given together with {files[0]}; the context already says it")
        if "SSL" not in self.security_protocol and (self.ssl_context is not None or files):
            said.append(f"{files[0] if files else 'ssl_context'} needs security_protocol SSL or SASL_SSL")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            said.append("ssl_keyfile is given without ssl_certfile")
        sasl = self.security_protocol.startswith("SASL")
        if not sasl and (self.sasl_username or self.sasl_password):
            said.append("sasl_username needs security_protocol SASL_SSL or SASL_PLAINTEXT")
        by_password = sasl and self.sasl_mechanism not in ("GSSAPI", "OAUTHBEARER")
        if by_password and not (self.sasl_username and self.sasl_password):
            said.append(f"sasl_mechanism={self.sasl_mechanism} needs sasl_username and sasl_password")
        if sasl and self.sasl_mechanism == "OAUTHBEARER" and self.sasl_oauth_token_provider is None:
            said.append("sasl_mechanism=OAUTHBEARER needs sasl_oauth_token_provider")
        return said

    @property
    def lane_bounds(self) -> LaneBounds:
        """How much may be queued in the store behind records that were handed over."""
        return LaneBounds(self.lane_queue_records, self.lane_queue_bytes, self.partition_queue_bytes)

    def connection(self) -> dict[str, Any]:
        """Arguments that consumer, producer and admin client share. ConfigurationError for unreadable TLS files."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.client_id,
            "security_protocol": self.security_protocol,
            "ssl_context": self._context(),
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": None if self.sasl_password is None else self.sasl_password.get_secret_value(),
            "sasl_kerberos_service_name": self.sasl_kerberos_service_name,
            "sasl_kerberos_domain_name": self.sasl_kerberos_domain_name,
            "sasl_oauth_token_provider": self.sasl_oauth_token_provider,
        }

    def _context(self) -> ssl.SSLContext | None:
        if self.ssl_context is not None or "SSL" not in self.security_protocol:
            return self.ssl_context
        password = None if self.ssl_password is None else self.ssl_password.get_secret_value()
        try:
            context = ssl.create_default_context(cafile=self.ssl_cafile)
            if self.ssl_certfile is not None:
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigurationError(f"KafkaOptions: the TLS files can't be used: {error}") from error
        return context


def _said(error: Mapping[str, Any] | ErrorDetails) -> str:
    """One of pydantic's errors in words; values are not repeated, since one may be a password."""
    name = ".".join(map(str, error["loc"])) or "options"
    if error["type"] != "extra_forbidden":
        return f"{name}: {error['msg']}"
    if name in _NOT_OPTIONS:
        return f"{name} is not an option: {_NOT_OPTIONS[name]}"
    if name.endswith("_ms") and name[:-3] in KafkaOptions.model_fields:
        return f"{name} is not an option: use {name[:-3]}, in seconds"
    return f"{name} is not an option{meant(name, KafkaOptions.model_fields)}"
