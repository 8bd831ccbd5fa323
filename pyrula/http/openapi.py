"""The OpenAPI document with each imported workflow's parameters: a path of its own, whose body has their schema.

Rules: the document is made when it is asked for, and again when other workflows are there than the last time. The
models of a workflow are named after it, so that two workflows may each have an `Order`.
"""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import quote

from fastapi import FastAPI

from pyrula.workflows.definition import WorkflowDefinition, registered_definitions
from pyrula.workflows.errors import ConfigurationError
from pyrula.workflows.params import Params

__all__ = ["describe_workflows"]

_STARTING: Final = ("/{name}/runs", "/{name}/stream")


def describe_workflows(
    app: FastAPI,
    *,
    prefix: str = "",
    definitions: Callable[[], Mapping[str, WorkflowDefinition[Any, Any]]] = registered_definitions,
) -> None:
    """Have the app's OpenAPI document show how each workflow is started: all that this process has imported, unless
    `definitions` gives others. `prefix` is where the router was included."""
    plain = app.openapi
    made: tuple[dict[str, WorkflowDefinition[Any, Any]], dict[str, Any]] | None = None

    def described() -> dict[str, Any]:
        nonlocal made
        present = dict(definitions())
        if made is None or made[0] != present:
            made = present, document_of(present)
        return made[1]

    def document_of(present: Mapping[str, WorkflowDefinition[Any, Any]]) -> dict[str, Any]:
        app.openapi_schema = None
        document = plain()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name, definition in sorted(present.items()):
            body = _body(name, definition, schemas)
            for template in _STARTING:
                general = document["paths"].get(prefix + template, {}).get("post")
                if general is not None and body is not None:
                    path = prefix + template.replace("{name}", quote(name, safe=""))
                    document["paths"].setdefault(path, {})["post"] = _special(general, name, body)
        return document

    app.openapi = described  # type: ignore[method-assign]


def _body(name: str, definition: WorkflowDefinition[Any, Any], schemas: dict[str, Any]) -> str | None:
    """Adds the schema of the workflow's request to `schemas`; its name."""
    slug = _slug(name)
    try:
        params = Params.of(definition).json_schema(f"#/components/schemas/{slug}.{{model}}")
    except ConfigurationError:
        # an annotation that no params can be read by: a submit says which
        return None
    for model, schema in params.pop("$defs", {}).items():
        schemas[f"{slug}.{model}"] = schema
    request = deepcopy(schemas["SubmitRequest"])
    request["title"] = f"Start {name}"
    request["properties"]["params"] = params | {"title": f"Params of {name}"}
    if params.get("required"):
        request["required"] = sorted({*request.get("required", ()), "params"})
    schemas[f"{slug}.SubmitRequest"] = request
    return f"{slug}.SubmitRequest"


def _special(general: dict[str, Any], name: str, body: str) -> dict[str, Any]:
    operation = deepcopy(general)
    operation["operationId"] = f"{general['operationId']}_{_slug(name)}"
    operation["summary"] = f"{general['summary']}: {name}"
    operation["parameters"] = [each for each in general.get("parameters", ()) if each["name"] != "name"]
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}},
    }
    return operation


def _slug(name: str) -> str:
    """A name as components may have it; two names never share one."""
    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if kept == name:
        return name
    return f"{kept}-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
