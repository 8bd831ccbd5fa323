"""Options of a worker: what a user may set, and which values contradict each other. Durations are seconds."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pyrula.workflows.egress import Egress
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.naming import meant

__all__ = ["WorkerOptions"]

# How long before its lease ends a worker that can't reach the store lets its bodies go.
MARGIN = 5.0

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]


def _heartbeat(data: dict[str, Any]) -> float:
    return min(5.0, float(data.get("lease_seconds", 30)) / 6)


class WorkerOptions(BaseModel):
    """How a worker works. Unknown names, impossible values and contradictions raise ConfigurationError.

    >>> WorkerOptions(max_concurrency=10).lease_seconds
    30.0
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True)

    claim_poll_interval: Seconds = 1.0
    """Between two looks for runs, should a wake-up get lost."""
    lease_seconds: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 30.0
    """A worker whose heartbeat stands still for so long is dead to the others, who take over its runs."""
    heartbeat_interval: Seconds = Field(default_factory=_heartbeat)
    """5, or a sixth of shorter leases."""
    max_concurrency: Count = 100
    """Bodies at once. A parked run takes no place."""
    park_after: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Shorter waits stay in memory."""
    drain_timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """So long after `stop()` bodies may go on; then they are cut, uncharged, and go on elsewhere."""
    query_concurrency: Count = 4
    """Queries answered at once, beside the bodies."""
    query_timeout: Seconds = 10.0
    """So long a query waits for its run to be settled, or to be replayed."""
    egress: Egress | None = None
    """Where the events of this worker's runs are sent."""
    egress_buffer: Count = 10_000
    """Events that may wait for `egress`; when it is full `worker.client` takes no new runs."""

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigurationError(f"WorkerOptions: {_told(error)}") from error

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.heartbeat_interval > self.lease_seconds / 3:
            raise ValueError(
                f"heartbeat_interval={self.heartbeat_interval:g} is more than a third of "
                f"lease_seconds={self.lease_seconds:g}: a lost heartbeat or two would be a death"
            )
        return self

    @property
    def patience(self) -> float:
        """Without the store for so long, a worker lets its bodies go: soon others may take over."""
        return self.lease_seconds - min(MARGIN, self.lease_seconds / 3)


def _told(error: ValidationError) -> str:
    told = []
    for wrong in error.errors(include_url=False, include_context=False, include_input=False):
        name = ".".join(map(str, wrong["loc"]))
        hint = meant(name, WorkerOptions.model_fields) or f" (there are: {', '.join(WorkerOptions.model_fields)})"
        text = f"no such option{hint}" if wrong["type"] == "extra_forbidden" else wrong["msg"]
        told.append(f"{name}: {text}" if name else text)
    return "; ".join(told)
