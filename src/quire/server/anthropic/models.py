"""GET /v1/models and GET /v1/models/{model} in Anthropic's form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from quire.server.errors import invalid
from quire.server.http.json_text import json_response
from quire.server.state import ServerState, server_state

MAX_LISTED = 1000


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


def model_page(request: Request, query: PageQuery) -> Response:
    """Return a page of the names for a request's `model`.

    Raises:
        ApiError: 400 for an unknown id.
    """
    server = server_state(request)
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


def model_info(request: Request) -> Response:
    """Return one model.

    Raises:
        ApiError: 404 for an unknown name.
    """
    server = server_state(request)
    found = _info(server, server.served_name(request.path_params["model"]))
    return json_response(found)


def _info(server: ServerState, name: str) -> ModelInfo:
    created = datetime.fromtimestamp(server.created, UTC).isoformat().replace("+00:00", "Z")
    length = server.engine.max_model_len
    return ModelInfo(name, name, created, length, length)


def _place(names: list[str], name: str, field: str) -> int:
    if name not in names:
        raise invalid(f"{field} is not a model's id; the ids are {', '.join(names)}.", field)
    return names.index(name)
