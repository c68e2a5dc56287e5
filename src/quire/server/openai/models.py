"""GET /v1/models and GET /v1/models/{model}."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.server.anthropic.errors import speaks_anthropic
from quire.server.anthropic.models import ModelInfo, ModelPage, PageQuery, model_info, model_page
from quire.server.contract import contract
from quire.server.http.body import read_query
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


@contract(answer=(ModelList, ModelPage))
async def list_models(request: Request) -> Response:
    """Every name that requests may put in `model`; a page of them for Anthropic's clients."""
    if speaks_anthropic(request.scope):
        return model_page(request, read_query(request, PageQuery))
    server = server_state(request)
    cards = [_card(server, name) for name in server.names]
    return json_response(ModelList(cards))


@contract(answer=(ModelCard, ModelInfo), errors=[HTTPStatus.NOT_FOUND])
async def retrieve_model(request: Request) -> Response:
    """Return one model; 404 for an unknown one. A name may hold slashes."""
    if speaks_anthropic(request.scope):
        return model_info(request)
    server = server_state(request)
    card = _card(server, server.served_name(request.path_params["model"]))
    return json_response(card)


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
