import pyrula
import pyrula.workflows


def test_the_public_names_are_these() -> None:
    assert pyrula.__all__ == ["__version__"]
    assert sorted(pyrula.workflows.__all__) == [
        "Clock",
        "Collect",
        "ConfigurationError",
        "Context",
        "Debounce",
        "LeaseLost",
        "Limit",
        "ManualClock",
        "MemoryStore",
        "NonDeterminismError",
        "PolicyKeyWarning",
        "PyrulaError",
        "PyrulaWarning",
        "Rate",
        "Retry",
        "RunCancelled",
        "RunInfo",
        "SerializationError",
        "StaleToken",
        "StepDefinition",
        "StepError",
        "StoreError",
        "StoreUnavailable",
        "SystemClock",
        "ValkeyStore",
        "WorkflowDefinition",
        "step",
        "workflow",
    ]


def test_every_public_name_exists() -> None:
    for name in pyrula.workflows.__all__:
        assert getattr(pyrula.workflows, name) is not None
