"""`GET /openapi.json`: the endpoints in OpenAPI 3.1, from the types that check requests.

Every route is in the document. `contract` states the types of its body and answer, which are those
that the server decodes and encodes.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from quire import __version__
from quire.resolve.field_flags import module_docs
from quire.server.contract import EVENTS, JSON, Contract, contract, contract_of
from quire.server.http.middleware import OPEN_PATH, ApiKeyMiddleware
from quire.system.records import dataclass

_CONVERTED = re.compile(r"\{(\w+):\w+\}")
_PARAMETER = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_REF = "#/components/schemas/{name}"
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}
_WHEN = {
    HTTPStatus.BAD_REQUEST: "A field is unknown, wrong, or not implemented; `param` names it.",
    HTTPStatus.UNAUTHORIZED: "The API key is missing or wrong.",
    HTTPStatus.FORBIDDEN: "The server was not started to allow it.",
    HTTPStatus.NOT_FOUND: "What the request names is not here.",
    HTTPStatus.CONFLICT: "This is already in progress.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is larger than the server takes.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body does not claim to be JSON.",
    HTTPStatus.TOO_MANY_REQUESTS: "The queue is full; `Retry-After` says when to come back.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "This request could not be finished; the log has the cause.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The model loads, the engine restarts, or the server stops.",
}


@contract(answer=dict[str, Any])
async def show_openapi(request: Request) -> Response:
    """Return this document."""
    app = request.app
    if getattr(app.state, "openapi", None) is None:
        needs_key = any(each.cls is ApiKeyMiddleware for each in app.user_middleware)
        made = await asyncio.to_thread(document, app.routes, needs_key=needs_key)
        app.state.openapi = msgspec.json.encode(made)
    return Response(app.state.openapi, media_type=JSON)


def document(routes: Iterable[BaseRoute], *, needs_key: bool = False) -> dict[str, Any]:
    """Return the OpenAPI document of these routes, except those without `include_in_schema`.

    Args:
        needs_key: every endpoint except `/health` needs an API key.
    """
    operations = list(_operations(routes))
    schemas = _Schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        is_open = operation.path == OPEN_PATH
        described = operation.describe(schemas, needs_key=needs_key and not is_open)
        paths.setdefault(operation.path, {})[operation.method] = described
    components: dict[str, Any] = {"schemas": schemas.components}
    if needs_key:
        components["securitySchemes"] = _SCHEMES
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quire", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": components,
    }


class _Schemas:
    """JSON schemas of all types that the operations name."""

    def __init__(self, operations: Iterable[_Operation]) -> None:
        self._types: list[Any] = []
        for operation in operations:
            self._types += [t for t in operation.types if t not in self._types]
        made, self.components = msgspec.json.schema_components(self._types, ref_template=_REF)
        self._made = list(made)
        docs = _Docs()
        for component in self.components.values():
            _open(component)
        for kind in _classes(msgspec.inspect.multi_type_info(self._types), set()):
            if (described := self.components.get(kind.__name__)) is not None:
                docs.describe(kind, described.get("properties", {}))

    def __getitem__(self, kind: Any) -> dict[str, Any]:
        if isinstance(kind, tuple):
            return {"anyOf": [self[each] for each in kind]}
        return self._made[self._types.index(kind)]

    def fields(self, kind: Any) -> tuple[dict[str, Any], list[str]]:
        """Return a struct's fields by name, and which of them are required."""
        schema = self.components[self[kind]["$ref"].rpartition("/")[2]]
        return schema["properties"], schema.get("required", [])


def _open(schema: dict[str, Any]) -> None:
    """Mark a request's type as open: unknown fields without effect are ignored."""
    if schema.get("additionalProperties") is False:
        del schema["additionalProperties"]
        fields = schema["properties"]
        schema["properties"] = {k: v for k, v in fields.items() if v.get("type") != "null"}


class _Docs:
    """The docstrings of types' fields."""

    def __init__(self) -> None:
        self._of_modules: dict[str, dict[str, dict[str, str]]] = {}

    def describe(self, kind: type, properties: dict[str, dict[str, Any]]) -> None:
        """Add them to the schemas of its fields."""
        for each in reversed(kind.__mro__):
            for name, text in self._of(each).items():
                if name in properties:
                    properties[name]["description"] = text

    def _of(self, kind: type) -> dict[str, str]:
        name = kind.__module__
        if not name.startswith("quire."):
            return {}
        if name not in self._of_modules:
            self._of_modules[name] = module_docs(sys.modules[name])
        return self._of_modules[name].get(kind.__name__, {})


def _classes(found: Any, seen: set[type]) -> set[type]:
    """Return `seen` with all structs and dataclasses in types of `msgspec.inspect`."""
    if isinstance(found, list | tuple):
        for each in found:
            _classes(each, seen)
    elif isinstance(found, msgspec.inspect.Type | msgspec.inspect.Field):
        if isinstance(found, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if found.cls in seen:  # also where a type contains itself
                return seen
            seen.add(found.cls)
        for name in found.__struct_fields__:
            _classes(getattr(found, name), seen)
    return seen


@dataclass(frozen=True, slots=True)
class _Operation:
    """A method of a path; `text` is its function's docstring."""

    path: str
    method: str
    text: str
    contract: Contract

    @property
    def name(self) -> str:
        """Return an id that is unique even if two paths have one function."""
        return "_".join([self.method, *_WORD.findall(self.path)])

    @property
    def types(self) -> list[Any]:
        said = self.contract
        answers = said.answer if isinstance(said.answer, tuple) else (said.answer,)
        given = (said.body, said.query, *answers, said.events, said.error)
        return [kind for kind in given if kind is not None and not isinstance(kind, str)]

    def describe(self, schemas: _Schemas, *, needs_key: bool) -> dict[str, Any]:
        """Return the operation for the document."""
        first, _, more = self.text.partition("\n\n")
        described: dict[str, Any] = {"operationId": self.name, "summary": _line(first)}
        if more:
            described["description"] = _line(more)
        if parameters := [*self._path_parameters(), *self._query_parameters(schemas)]:
            described["parameters"] = parameters
        if self.contract.body is not None:
            content = {JSON: {"schema": schemas[self.contract.body]}}
            described["requestBody"] = {"required": True, "content": content}
        described["responses"] = self._responses(schemas, needs_key=needs_key)
        if needs_key:
            described["security"] = [{name: []} for name in _SCHEMES]
        return described

    def _path_parameters(self) -> Iterator[dict[str, Any]]:
        for name in _PARAMETER.findall(self.path):
            schema = {"type": "string", "minLength": 1}
            yield {"name": name, "in": "path", "required": True, "schema": schema}

    def _query_parameters(self, schemas: _Schemas) -> Iterator[dict[str, Any]]:
        if self.contract.query is None:
            return
        fields, required = schemas.fields(self.contract.query)
        for name, schema in fields.items():
            yield {"name": name, "in": "query", "required": name in required, "schema": schema}

    def _responses(self, schemas: _Schemas, *, needs_key: bool) -> dict[str, Any]:
        said = self.contract
        responses: dict[str, Any] = {"200": _answer(said, schemas)}
        statuses = {*said.errors, HTTPStatus.INTERNAL_SERVER_ERROR}
        if needs_key:
            statuses.add(HTTPStatus.UNAUTHORIZED)
        told = {"content": {JSON: {"schema": schemas[said.error]}}} if said.error else {}
        for status in sorted(statuses):
            responses[str(status.value)] = {"description": _WHEN[status], **told}
        return responses


def _answer(said: Contract, schemas: _Schemas) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done."}
    content: dict[str, Any] = {}
    if isinstance(said.answer, str):
        content[said.answer] = {"schema": {"type": "string"}}
    elif said.answer is not None:
        content[JSON] = {"schema": schemas[said.answer]}
    if said.events is not None:
        answer["description"] = "Whole, or with `stream` as server-sent events."
        content[EVENTS] = {"schema": _event(schemas[said.events])}
    return {**answer, "content": content} if content else answer


def _event(data: dict[str, Any]) -> dict[str, Any]:
    """Return one server-sent event: OpenAPI before 3.2 describes a stream by its events."""
    encoded = {"contentMediaType": JSON, "contentSchema": data}
    text = {"type": "string", "anyOf": [{"const": "[DONE]"}, encoded]}
    fields = {"event": {"type": "string"}, "data": text}
    return {"type": "object", "properties": fields, "required": ["data"]}


def _operations(routes: Iterable[BaseRoute]) -> Iterator[_Operation]:
    for route in routes:
        if not isinstance(route, Route) or not route.include_in_schema:
            continue
        text = (route.endpoint.__doc__ or route.name).strip()
        path, said = _CONVERTED.sub(r"{\1}", route.path), contract_of(route.endpoint)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield _Operation(path, method.lower(), text, said)


def _line(text: str) -> str:
    return " ".join(text.split())
