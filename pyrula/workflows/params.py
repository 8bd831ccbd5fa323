"""A run's params: a client's dict or model to JSON, and that JSON to the keyword arguments of a body.

Both sides validate by the body's annotations: the client so that a wrong call fails at once, the worker since a client
may not have had the definition. A client refuses fields the body doesn't take; a worker ignores them, so that clients
may be deployed first. Defaults are not written down: a later version of the body may have others.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, PydanticInvalidForJsonSchema, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on only

from pyrula.workflows.codec import Codec, encode_message
from pyrula.workflows.definition import WorkflowDefinition
from pyrula.workflows.errors import ConfigurationError, SerializationError
from pyrula.workflows.likeness import not_finite
from pyrula.workflows.model import MAX_VALUE

__all__ = ["Params", "ParamsError", "encode_unchecked"]

_TOLD = 3
_made: "WeakKeyDictionary[WorkflowDefinition[Any, Any], Params]" = WeakKeyDictionary()


class ParamsError(ValueError):
    """Params that don't fit a workflow; `problems` are (field, what is wrong with it), the field "" for all of them."""

    def __init__(self, workflow: str, problems: Sequence[tuple[str, str]]) -> None:
        self.workflow = workflow
        self.problems = tuple(problems)
        told = [f"{field or 'params'}: {message}" for field, message in self.problems[:_TOLD]]
        if len(self.problems) > _TOLD:
            told.append(f"and {len(self.problems) - _TOLD} more")
        super().__init__(f"workflow {workflow!r}, {'; '.join(told)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.workflow, self.problems)


class Params:
    """The params of one workflow.

    >>> from pyrula.workflows.definition import workflow
    >>> @workflow(name="params_example")
    ... async def example(ctx: Any, cents: int, note: str = "") -> None: ...
    >>> params = Params.of(example)
    >>> params.encode({"cents": "500"})
    b'{"cents":500}'
    >>> params.decode(b'{"cents":500,"later":1}')
    {'cents': 500}
    """

    __slots__ = ("_adapter", "_codec", "_name", "_names", "_what")

    def __init__(self, definition: WorkflowDefinition[Any, Any]) -> None:
        self._name = definition.name
        self._what = f"workflow {definition.name!r}"
        hints = definition.hints()
        shape = {
            parameter.name: NotRequired[annotation] if parameter.has_default else annotation
            for parameter in definition.parameters
            for annotation in (hints.get(parameter.name, Any),)
        }
        self._names = None if definition.accepts_extra else frozenset(shape)
        fields = cast(Any, TypedDict)("params", shape)
        fields.__pydantic_config__ = ConfigDict(
            extra="allow" if definition.accepts_extra else "ignore",
            ser_json_inf_nan="strings",
            ser_json_bytes="base64",
            val_json_bytes="base64",
        )
        try:
            self._codec = Codec.of(fields)
            self._adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(fields)
        except Exception as error:
            raise ConfigurationError(f"{self._what}: a parameter's annotation has no form in JSON: {error}") from error

    @staticmethod
    def of(definition: WorkflowDefinition[Any, Any]) -> "Params":
        """Compiled once. ConfigurationError for annotations that no JSON can be read by."""
        found = _made.get(definition)
        if found is None:
            found = _made[definition] = Params(definition)
        return found

    def encode(self, params: object) -> bytes:
        """ParamsError naming workflow and field, also of a NaN or infinity; SerializationError for what is too large or
        doesn't survive JSON."""
        given = _fields(params, self._name)
        if self._names is not None and (unknown := sorted(given.keys() - self._names)):
            known = ", ".join(sorted(self._names)) or "none"
            text = f"the body takes no such parameter (it takes: {known})"
            raise ParamsError(self._name, [(name, text) for name in unknown])
        try:
            validated = self._adapter.validate_python(given, by_alias=True, by_name=True)
        except ValidationError as error:
            raise ParamsError(self._name, _problems(error)) from error
        try:
            return self._codec.encode(validated, f"{self._what}: its params", MAX_VALUE)[0]
        except SerializationError:
            if (place := not_finite(validated)) is None:
                raise
            raise ParamsError(self._name, [(place[0], f"{place[1]!r} has no form in JSON")]) from None

    def decode(self, data: bytes) -> dict[str, Any]:
        """ParamsError naming workflow and field."""
        try:
            return self._adapter.validate_json(data, by_alias=True, by_name=True)
        except ValidationError as error:
            raise ParamsError(self._name, _problems(error)) from error

    def json_schema(self, ref_template: str) -> dict[str, Any]:
        """What a client may give, as JSON Schema 2020-12, its models under `$defs` and named by `ref_template`, as in
        "#/$defs/{model}". Any object, for annotations that have no schema."""
        try:
            schema = self._adapter.json_schema(ref_template=ref_template)
        except PydanticInvalidForJsonSchema:
            return {"type": "object"}
        if self._names is not None:
            schema["additionalProperties"] = False
        return schema


def encode_unchecked(name: str, params: object) -> bytes:
    """For a workflow that this process hasn't imported."""
    return encode_message(_fields(params, name), f"workflow {name!r}: its params", MAX_VALUE)


def _fields(params: object, name: str) -> dict[str, Any]:
    if params is None:
        return {}
    if isinstance(params, BaseModel):
        named = {name: getattr(params, name) for name in type(params).model_fields}
        return named | (params.model_extra or {})
    if not isinstance(params, Mapping):
        raise ParamsError(name, [("", f"params must be a dict or a model, not {type(params).__name__}")])
    for key in params:
        if not isinstance(key, str):
            raise ParamsError(name, [("", f"the names of params must be texts, not {key!r:.100}")])
    return dict(params)


def _problems(error: ValidationError) -> list[tuple[str, str]]:
    """What is wrong, field by field. Values are left out: they may be secret."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return [(".".join(map(str, wrong["loc"])), wrong["msg"]) for wrong in errors]
