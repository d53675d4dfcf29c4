"""``/openapi.json``: what the routes take and answer, made from their tables.

Routes read and check their bodies themselves, so FastAPI knows little of them; this fills in
bodies, parameters of paths, kinds of answers, errors and the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from gristmill.serve.errors import FORMS

_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_TEXT_ROUTES = frozenset({"/metrics", "/"})
_OPEN = frozenset({"/health"})
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "type", "param"],
            "properties": {
                "code": {"type": "integer"},
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
            },
        }
    },
}


def document(
    app: FastAPI, bodies: Mapping[str, type[BaseModel] | None], prefix: str, keyed: bool
) -> dict[str, Any]:
    """The whole document, made once. ``bodies`` are those of POST routes, by path."""
    if app.openapi_schema:
        return app.openapi_schema
    made: dict[str, Any] = get_openapi(
        title="gristmill",
        version=app.version,
        summary="Serves a language model to clients of OpenAI, Anthropic, llama-server, vLLM "
        "and Ollama.",
        routes=app.routes,
        servers=[{"url": prefix}] if prefix else None,
    )
    schemas: dict[str, Any] = {"Error": _ERROR}
    docs = _first_lines(app)
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            body = bodies.get(path) if method == "post" else None
            _describe(operation, path, method, docs.get((path, method), ""))
            if body is not None:
                _body(operation, body, schemas)
            streams = body is not None and "stream" in body.model_fields
            operation["responses"] = _responses(path, streams)
            if keyed and path not in _OPEN:
                operation["security"] = [{"key": []}]
    made["components"] = {"schemas": schemas}
    if keyed:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    app.openapi_schema = made
    return made


def _first_lines(app: FastAPI) -> dict[tuple[str, str], str]:
    """The first sentence of each handler's docstring, by path and method."""
    found: dict[tuple[str, str], str] = {}
    for route in app.routes:
        if isinstance(route, APIRoute):
            lines = (route.endpoint.__doc__ or "").strip().splitlines()
            for method in route.methods or ():
                found[route.path_format, method.lower()] = lines[0] if lines else ""
    return found


def _describe(operation: dict[str, Any], path: str, method: str, text: str) -> None:
    words = re.sub(r"\W+", "_", path).strip("_") or "root"
    operation["operationId"] = f"{method}_{words}"
    operation["summary"] = text
    operation.pop("description", None)
    names = _PARAMETER.findall(path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]


def _body(operation: dict[str, Any], body: type[BaseModel], schemas: dict[str, Any]) -> None:
    schema = body.model_json_schema(ref_template=_REF)
    schemas.update(schema.pop("$defs", {}))
    schemas[body.__name__] = schema
    content = {"application/json": {"schema": {"$ref": _REF.format(model=body.__name__)}}}
    operation["requestBody"] = {"required": True, "content": content}


def _responses(path: str, streams: bool) -> dict[str, Any]:
    ollama = path.startswith("/api/")
    good: dict[str, Any] = {"application/json": {"schema": {}}}
    if path in _TEXT_ROUTES:
        good["text/plain"] = {"schema": {"type": "string"}}
    if streams:
        good["application/x-ndjson" if ollama else "text/event-stream"] = {
            "schema": {"type": "string"}
        }
    # A dialect's errors have a form of their own.
    own = any(path.startswith(form) for form in FORMS)
    error: dict[str, Any] = {"type": "object"} if own else {"$ref": _REF.format(model="Error")}
    return {
        "200": {"description": "The answer.", "content": good},
        "default": {
            "description": "An error; its status says of what kind.",
            "content": {"application/json": {"schema": error}},
        },
    }
