"""The workflows that are served, by name and version, and whether what they declare can start them.

A schedule or a trigger that could start no run is found here, when the worker is made, and not when its time has come.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.params import Params

__all__ = ["Served"]

_OF_A_BATCH: Final = ("key", "events", "count")


class Served:
    """Definitions by name and version. Of several versions of a name, the last one listed takes unstamped runs."""

    def __init__(self, workflows: Iterable[WorkflowDefinition[Any, Any]] = ()) -> None:
        self._definitions: dict[tuple[str, str], WorkflowDefinition[Any, Any]] = {}
        if not isinstance(workflows, Iterable):
            raise ConfigurationError(
                f"workflows= must hold workflows, declared by @workflow: workflows=[charge], not {workflows!r}"
            )
        for definition in workflows:
            if not isinstance(definition, WorkflowDefinition):
                raise ConfigurationError(f"workflows= must hold workflows, declared by @workflow, not {definition!r}")
            key = definition.name, definition.version
            if self._definitions.get(key, definition) is not definition:
                raise ConfigurationError(
                    f"workflow {definition.name!r}, version {definition.version!r}, is served twice"
                )
            self.add(definition)
            _check_starts(definition)

    def add(self, definition: WorkflowDefinition[Any, Any]) -> None:
        """Replaces one of the same name and version."""
        definition.hints()
        key = definition.name, definition.version
        self._definitions.pop(key, None)
        self._definitions[key] = definition

    def __iter__(self) -> Iterator[WorkflowDefinition[Any, Any]]:
        return iter(self._definitions.values())

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(self._definitions)

    def find(self, name: str, version: str | None) -> WorkflowDefinition[Any, Any] | None:
        """`version` None: an unstamped run's."""
        if version is not None:
            return self._definitions.get((name, version))
        return next((each for (one, _), each in reversed(self._definitions.items()) if one == name), None)


def _check_starts(definition: WorkflowDefinition[Any, Any]) -> None:
    """ConfigurationError for a declared schedule or trigger that gives the body less than it needs."""
    if definition.schedule is not None:
        try:
            Params.of(definition).encode({})
        except ValueError as error:
            raise ConfigurationError(f"{error}; schedule= starts it without params") from error
    if definition.trigger is None:
        return
    needed = [each.name for each in definition.parameters if not each.has_default and each.name not in _OF_A_BATCH]
    if needed:
        raise ConfigurationError(
            f"workflow {definition.name!r}: its trigger= starts it with key, events and count, so nobody gives "
            f"{' and '.join(needed)}: drop it, or give it a default"
        )
