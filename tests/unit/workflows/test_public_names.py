import pyrula
import pyrula.workflows


def test_the_public_names_are_these() -> None:
    assert pyrula.__all__ == ["__version__"]
    assert sorted(pyrula.workflows.__all__) == [
        "BackpressureRejected",
        "Clock",
        "Collect",
        "ConfigurationError",
        "Context",
        "Debounce",
        "DurableInvocationCancelled",
        "DurableInvocationError",
        "DurableInvocationTimeout",
        "Egress",
        "EgressEvent",
        "Event",
        "InboxFullError",
        "InlineWorkflowRunner",
        "InterruptAnswer",
        "LeaseLost",
        "Limit",
        "ManualClock",
        "MemoryStore",
        "NonDeterminismError",
        "OpenInterrupt",
        "PolicyKeyWarning",
        "PyrulaError",
        "PyrulaWarning",
        "QueryError",
        "Rate",
        "Retry",
        "RunCancelled",
        "RunFinishedError",
        "RunHandle",
        "RunInfo",
        "RunNotFoundError",
        "RunNotWaitingError",
        "RunReport",
        "RunStatus",
        "SerializationError",
        "StaleToken",
        "StepDefinition",
        "StepError",
        "StoreError",
        "StoreUnavailable",
        "SystemClock",
        "TransitionRefused",
        "UpdateError",
        "UpdateRejected",
        "UpdateTimeout",
        "ValkeyStore",
        "WorkerOptions",
        "WorkflowClient",
        "WorkflowDefinition",
        "WorkflowWorker",
        "step",
        "workflow",
    ]


def test_every_public_name_exists() -> None:
    for name in pyrula.workflows.__all__:
        assert getattr(pyrula.workflows, name) is not None
