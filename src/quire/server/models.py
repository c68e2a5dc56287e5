"""GET /v1/models and GET /v1/models/{model}, in OpenAI's and in Anthropic's form."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from quire.server.anthropic.errors import speaks_anthropic
from quire.server.contract import contract
from quire.server.errors import invalid
from quire.server.http.body import read_query
from quire.server.http.json_text import json_response
from quire.server.state import ServerState, server_state

MAX_LISTED = 1000


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
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


class PageQuery(msgspec.Struct):
    """A page: the first models after `after_id`, or the last before `before_id`."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 20
    after_id: str | None = None
    before_id: str | None = None


@contract(answer=(ModelList, ModelPage))
async def list_models(request: Request) -> Response:
    """Every name that requests may put in `model`; a page of them for Anthropic's clients."""
    server = server_state(request)
    if speaks_anthropic(request.scope):
        return _page(server, read_query(request, PageQuery))
    cards = [_card(server, name) for name in server.names]
    return json_response(ModelList(cards))


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


def _page(server: ServerState, query: PageQuery) -> Response:
    """Return a page of the names for a request's `model`.

    Raises:
        ApiError: 400 for an unknown id.
    """
    names = list(server.names)
    first, last = 0, len(names)
    if query.after_id is not None:
        first = _place(names, query.after_id, "after_id") + 1
    if query.before_id is not None:
        last = _place(names, query.before_id, "before_id")
    found = names[first:last]
    backwards = query.before_id is not None and query.after_id is None
    page = found[-query.limit :] if backwards else found[: query.limit]
    ids = (page[0], page[-1]) if page else (None, None)
    models = [_info(server, name) for name in page]
    return json_response(ModelPage(models, len(found) > len(page), *ids))


def _info(server: ServerState, name: str) -> ModelInfo:
    created = datetime.fromtimestamp(server.created, UTC).isoformat().replace("+00:00", "Z")
    length = server.engine.max_model_len
    return ModelInfo(name, name, created, length, length)


def _place(names: list[str], name: str, field: str) -> int:
    if name not in names:
        raise invalid(f"{field} is not a model's id; the ids are {', '.join(names)}.", field)
    return names.index(name)
