"""GET /v1/models and GET /v1/models/{model}, in OpenAI's and in Anthropic's form."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.server.anthropic.errors import speaks_anthropic
from quire.server.contract import contract
from quire.server.http.json_text import json_response
from quire.server.state import ServerState, server_state


class ModelCard(msgspec.Struct):
    id: str
    created: int
    root: str
    max_model_len: int
    parent: str | None = None
    """The base model of an adapter."""
    object: str = "model"
    owned_by: str = "quire"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


class ModelInfo(msgspec.Struct):
    """A model. Its context length limits both the prompt and the answer."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int
    lifecycle: str = "active"
    type: str = "model"


class ModelPage(msgspec.Struct):
    """All models on one page, whatever page the query asks for."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str
    last_id: str


@contract(answer=(ModelList, ModelPage))
async def list_models(request: Request) -> Response:
    """Return every name that requests may put in `model`."""
    server = server_state(request)
    names = server.names
    if speaks_anthropic(request.scope):
        models = [_info(server, name) for name in names]
        return json_response(ModelPage(models, False, names[0], names[-1]))
    return json_response(ModelList([_card(server, name) for name in names]))


@contract(answer=(ModelCard, ModelInfo), errors=[HTTPStatus.NOT_FOUND])
async def retrieve_model(request: Request) -> Response:
    """Return one model; 404 for an unknown one. A name may hold slashes."""
    server = server_state(request)
    name = server.served_name(request.path_params["model"])
    form = _info if speaks_anthropic(request.scope) else _card
    return json_response(form(server, name))


def _card(server: ServerState, name: str) -> ModelCard:
    model = server.model_names[0]
    is_adapter = server.adapters.get(name) is not None
    return ModelCard(
        id=name,
        created=server.created,
        root=name if is_adapter else model,
        max_model_len=server.engine.max_model_len,
        parent=model if is_adapter else None,
    )


def _info(server: ServerState, name: str) -> ModelInfo:
    created = datetime.fromtimestamp(server.created, UTC).isoformat().replace("+00:00", "Z")
    length = server.engine.max_model_len
    return ModelInfo(name, name, created, length, length)
